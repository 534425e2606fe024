"""The database's clock is hours wrong and stays so: nobody has noticed.

Lists go by the provider's clock, which is right. A machine that a backup is brought to may not have heard of the time
yet.
"""

from datetime import timedelta

import pytest

from tallystick import app
from tallystick.movement.life import store as whereabouts
from tallystick.movement.steps import MOVED_UNDER_ANOTHER_KEY
from tallystick.recovery.reading import Reader
from tests.clocks import Movable, Time
from tests.movement.life.test_flow import copied
from tests.payments import charged, checkout
from tests.providers.worlds import Control
from tests.recoveries import recovering
from tests.settlements import books, shop

HOURS = timedelta(hours=5)
A_WHILE = timedelta(minutes=10)


@pytest.mark.parametrize("by_hand", [False, True], ids=["by itself", "tally recover"])
@pytest.mark.parametrize("wrong", [HOURS, -HOURS], ids=["ahead", "behind"])
async def test_what_a_lost_life_paid_is_found_whatever_the_clock_says(
    server: Movable,
    control: Control,
    time: Time,
    wrong: timedelta,
    by_hand: bool,  # noqa: FBT001 - a case of the test
) -> None:
    """Made again under another fee it has another key: only the books tell that it was paid."""
    dsn = server.fresh_database()
    provider = app.simulator(control.url)
    providers = {"simulator": provider}
    try:
        # One that is ahead was so before; one that is behind is another machine's.
        time.is_wrong_by(max(wrong, timedelta()))
        async with shop(dsn, control, providers=providers) as before:
            await before.create("early")
            assert (await before.tick()).transferred == 1
        backup = await copied(dsn)
        async with shop(dsn, control, providers=providers) as before:
            whereabouts._SEEN.clear()
            await before.create("lost")
            assert (await before.tick()).transferred == 1
        time.is_wrong_by(wrong)
        async with shop(backup, control, providers=providers) as after:
            whereabouts._SEEN.clear()
            if by_hand:
                found = await recovering(after.database, providers, settler=after.settler)
                assert (found.is_confirmed, found.orphans) == (True, 1)
            await after.tick()
            await after.set_fee(percent_ppm=100_000)
            again = await after.create("lost")
            for _ in range(3):
                time.passes(A_WHILE)
                whereabouts._SEEN.clear()
                await Reader(after.database, providers).run_once()
                await after.tick()
            assert len(books(control)) == 2
            assert (await after.read(again.id)).reason == MOVED_UNDER_ANOTHER_KEY
    finally:
        await provider.close()


@pytest.mark.parametrize("wrong", [HOURS, -HOURS], ids=["ahead", "behind"])
async def test_a_charge_that_moved_is_found_whatever_the_clock_says(
    server: Movable, control: Control, time: Time, wrong: timedelta
) -> None:
    """Its answer was lost. Read from too late, the books do not show it: a day later it was closed as never seen."""
    time.is_wrong_by(wrong)
    async with checkout(server.fresh_database(), control, ttl=timedelta(hours=1)) as desk:
        control.plan("stripe.charge:execute_then_drop")
        order = await desk.order()
        await desk.pending(order)
        for _ in range(4):
            time.passes(timedelta(hours=9))
            await desk.payments.collect()
        view = await desk.view(order)
        assert view is not None
        assert (view.status, len(charged(control))) == ("COMPLETED", 1)
