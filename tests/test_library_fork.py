"""A fork after `open()`: the child is told so at once, and the parent notices nothing."""

import subprocess
import sys

import pytest

from tests import servers

# Longer than any call takes; a child that hangs is killed.
CHILD_SECONDS = 20
SYNC = """
import os, signal, sys, tallystick, tallystick.sync
with tallystick.sync.open(database_url=sys.argv[1]) as tally:
    tally.put_account("a", currency="USD", floor_micros=None)
    child = os.fork()
    if child == 0:
        signal.alarm(int(sys.argv[2]))
        try:
            tally.account("a")
        except tallystick.TallystickError as error:
            print(type(error).__name__, error, flush=True)
        # Leaves the block, and must neither hang nor close what is the parent's.
        sys.exit(7)
    print("child", os.waitpid(child, 0)[1] >> 8, flush=True)
    print("parent", tally.account("a").balance_micros, flush=True)
"""
ASYNC = """
import asyncio, os, signal, sys, tallystick
async def main():
    async with tallystick.open(database_url=sys.argv[1]) as tally:
        await tally.put_account("a", currency="USD", floor_micros=None)
        await tally.put_account("b", currency="USD")
        give = tallystick.Transfer(debit="a", credit="b", amount_micros=1, currency="USD")
        child = os.fork()
        if child == 0:
            signal.alarm(int(sys.argv[2]))
            asyncio._set_running_loop(None)
            for call in (lambda: tally.account("a"), lambda: tally.submit(give, idempotency_key="k")):
                try:
                    asyncio.new_event_loop().run_until_complete(call())
                except tallystick.TallystickError as error:
                    print(type(error).__name__, error, flush=True)
            os._exit(7)
        print("child", os.waitpid(child, 0)[1] >> 8, flush=True)
        print("parent", type(await tally.submit(give, idempotency_key="k")).__name__, flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize(("script", "calls", "after"), [(SYNC, 1, "parent 0"), (ASYNC, 2, "parent Committed")])
def test_a_child_that_uses_its_parents_tally_is_told_to_open_its_own(
    embedded18: servers.Server, script: str, calls: int, after: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, embedded18.fresh_database(), str(CHILD_SECONDS)],
        capture_output=True,
        text=True,
        timeout=3 * CHILD_SECONDS,
        check=False,
    )
    said = done.stdout.splitlines()
    assert said[:calls] == [line for line in said if line.startswith("Forked ")], done
    assert "open" in said[0]
    assert said[calls:] == ["child 7", after], done
