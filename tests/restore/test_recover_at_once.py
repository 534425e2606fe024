"""The documented restore, by somebody in a hurry: the backup comes to life, and `tally recover` is run at once.

What the lost life sent last is still on its way then: its row is lost, no list shows it, and the fee is another one by
now, so that it is made anew under another key.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from tallystick.recovery.flow import Recovered, recover
from tests.restore.backups import backed_up
from tests.restore.cells import FEE_CENTS
from tests.restore.life import Life, alive
from tests.restore.test_restore import books, ground

CENTS = 12_345


async def recovered(life: Life) -> Recovered:
    main = life.main
    return await recover(
        main.database, main.providers, main.settler, main.payments, main.refunds, by="tests", wait=False
    )


async def test_a_payout_that_was_on_its_way_is_not_paid_again_under_another_fee(tmp_path: Path) -> None:
    async with ground(tmp_path) as place, AsyncExitStack() as stack:
        life = await stack.enter_async_context(alive(place))
        restore = await backed_up(place.server, place.dsn, "base")
        await life.payout("lost", "stripe", CENTS, life.fees)
        place.control.plan("stripe.transfer:slow_before(8)@*")
        ticking = asyncio.create_task(life.main.settler.tick())
        while not place.control.struck():
            await asyncio.sleep(0.02)
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        await stack.aclose()
        place.control.call("DELETE", "faults")
        await restore()
        life = await stack.enter_async_context(alive(place))
        early = await recovered(life)
        assert books(place) == [], "it is on its way"
        assert (early.is_confirmed, early.wait_seconds > 0) == (False, True)
        async with asyncio.timeout(30):
            while not books(place):
                await asyncio.sleep(0.1)
        life.pass_time()
        found = await recovered(life)
        assert (found.is_confirmed, found.orphans) == (True, 1)
        await life.change_fee(FEE_CENTS * 10_000)
        again = await life.payout("lost", "stripe", CENTS, life.fees)
        for _ in range(3):
            await life.work()
            life.pass_time()
        assert (await life.read_payout(again.id, life.fees)).reason == "moved_under_another_key"
        assert len(books(place)) == 1
