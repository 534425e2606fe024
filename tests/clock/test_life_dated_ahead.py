"""A clock that was ahead has dated what was sent last. What a lost life did since is read all the same.

The books are read from the newest step that is remembered: one that is dated hours ahead would have them read from a
time that has not come. A life that began then is over as soon as another one, and not hours later.
"""

from datetime import timedelta

from tallystick import app
from tallystick.movement.life import store as whereabouts
from tallystick.recovery.reading import Reader
from tests.clocks import Movable, Time
from tests.ledgers import fetchval
from tests.movement.life.test_flow import copied
from tests.providers.worlds import Control
from tests.recoveries import recovering
from tests.settlements import shop

AHEAD = timedelta(hours=5)
A_WHILE = timedelta(minutes=10)


async def test_what_was_lost_after_a_clock_was_ahead_is_found_in_the_books(
    server: Movable, control: Control, time: Time
) -> None:
    dsn = server.fresh_database()
    provider = app.simulator(control.url)
    providers = {"simulator": provider}
    try:
        time.is_wrong_by(AHEAD)
        async with shop(dsn, control, providers=providers) as before:
            await before.create("early")
            assert (await before.tick()).transferred == 1
        time.is_wrong_by(timedelta())
        backup = await copied(dsn)
        async with shop(dsn, control, providers=providers) as before:
            whereabouts._SEEN.clear()
            await before.create("lost")
            assert (await before.tick()).transferred == 1
        async with shop(backup, control, providers=providers) as after:
            whereabouts._SEEN.clear()
            await after.tick()
            time.passes(A_WHILE)
            whereabouts._SEEN.clear()
            assert (await Reader(after.database, providers).run_once()).orphans == 1
            found = await recovering(after.database, providers, settler=after.settler)
            assert (found.is_confirmed, found.orphans) == (True, 1)
    finally:
        await provider.close()


async def test_a_life_that_began_while_the_clock_was_ahead_is_read_once_it_is_right(
    server: Movable, control: Control, time: Time
) -> None:
    """Whoever comes to it then is another process, which remembers no other time."""
    dsn = server.fresh_database()
    provider = app.simulator(control.url)
    providers = {"simulator": provider}
    try:
        async with shop(dsn, control, providers=providers) as before:
            await before.create("early")
            await before.tick()
        backup = await copied(dsn)
        time.is_wrong_by(AHEAD)
        async with shop(backup, control, providers=providers) as after:
            whereabouts._SEEN.clear()
            await after.tick()
            assert await fetchval(backup, "SELECT count(*) FROM tally.life") == 1
        time.is_wrong_by(timedelta())
        async with shop(backup, control, providers=providers) as after:
            reader = Reader(after.database, providers)
            whereabouts._SEEN.clear()
            assert (await reader.run_once()).complete == 0, "what the lost life sent may be on its way"
            time.passes(A_WHILE)
            whereabouts._SEEN.clear()
            assert (await reader.run_once()).complete == 1
            assert await fetchval(backup, "SELECT life FROM tally.unread('simulator')") is None
            await after.create("late")
            assert (await after.tick()).transferred == 1
    finally:
        await provider.close()
