"""A worker to be killed: one tick after another, until its standard input is closed.

python -m tests.faults.settling DSN SIMULATOR DIALECT NAME
"""

import asyncio
import os
import sys
import time
from dataclasses import replace
from datetime import timedelta

import msgspec
import uvloop

from tallystick.errors import TallystickError, Unreachable
from tallystick.movement.steps import Patience
from tallystick.providers.port import Provider
from tallystick.settings import LIMITS
from tests.planted.bugs import BUGS
from tests.providers.worlds import WORLDS, Control, impatient
from tests.settlements import shop

SETTLEMENTS = int(os.environ.get("TALLY_TEST_SETTLEMENTS", "1500"))
IS_SHORT = SETTLEMENTS < 10_000
# Minutes become seconds, in the same proportion: a claim is longer than a permit and an answer together, and what is
# in flight is given longer than the simulator ever delays it. A long run on a busy machine needs more of each.
UNIT_SECONDS = 1.0 if IS_SHORT else 2.0
LONGEST_IN_FLIGHT = timedelta(seconds=2 * UNIT_SECONDS)
PATIENCE = Patience(stuck_after=timedelta(seconds=4 * UNIT_SECONDS), budget=4)
HURRIED = replace(LIMITS, send_seconds=2 * UNIT_SECONDS, settlement_chunk=100 if IS_SHORT else 500)
PAUSE_SECONDS = 0.2
TICK_SECONDS = 10.0


def hurried(url: str, dialect: str) -> Provider:
    """The simulator as a provider that is waited for a second instead of minutes."""
    provider = next(world for world in WORLDS if world.name == dialect).make(url, "", "")
    provider.facts = msgspec.structs.replace(
        provider.facts, longest_in_flight=LONGEST_IN_FLIGHT, answer_seconds=UNIT_SECONDS
    )
    impatient(provider, UNIT_SECONDS)
    return provider


async def main(dsn: str, url: str, dialect: str, name: str) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), stopped.set)
    provider = hurried(url, dialect)
    async with shop(
        dsn, Control(url), providers={dialect: provider}, patience=PATIENCE, limits=HURRIED, by=name
    ) as one:
        while not stopped.is_set():
            try:
                ticked = await one.tick(budget_seconds=TICK_SECONDS)
            except TallystickError as error:
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            print(ticked, flush=True)
            if ticked.claimed + ticked.reclaimed == 0:
                await asyncio.sleep(PAUSE_SECONDS)
    await provider.close()


if __name__ == "__main__":
    if planted := os.environ.get("TALLY_TEST_PLANT"):
        BUGS[planted].plant()
    while True:
        try:
            uvloop.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4]))
            break
        except Unreachable:
            # Started while the database was away: as whoever supervises it would, once more.
            time.sleep(PAUSE_SECONDS)
