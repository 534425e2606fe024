"""A serverless function: a process that runs one tick, and may be terminated in the middle of it.

python -m tests.acceptance.function DSN SIMULATOR PROVIDER [before_the_send | after_the_answer]
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tallystick import app
from tallystick.providers.port import Provider
from tallystick.providers.words import Answer, Instruction, Sending
from tests.providers.worlds import WORLDS, Control
from tests.settlements import Shop, shop

# A tick is much shorter; a machine may be much slower.
_SECONDS = 60.0


class Terminated:
    """A provider's adapter in a process that ends, by SIGKILL, just before it sends or just after it was answered."""

    def __init__(self, adapter: Provider, when: str) -> None:
        self._adapter = adapter
        self._when = when

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)

    async def send(self, transfer: Instruction, sending: Sending) -> Answer:
        if self._when == "before_the_send":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await self._adapter.send(transfer, sending)
        if self._when == "after_the_answer":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


def adapter(name: str, url: str) -> Provider:
    """The provider of that name: a dialect's, or the simulator's own."""
    if name == "simulator":
        return app.simulator(url)
    return next(world for world in WORLDS if world.name == name).make(url, "", "")


async def terminated(one: Shop, when: str, *, provider: str = "simulator") -> None:
    """Run a tick in a process of its own that is terminated at that moment."""
    child = await _started(one, provider, when)
    assert await asyncio.wait_for(child.wait(), _SECONDS) == -signal.SIGKILL


async def terminated_once(one: Shop, is_time: Callable[[], bool], *, provider: str = "simulator") -> None:
    """Run a tick in a process of its own, and terminate that when it is time."""
    child = await _started(one, provider, "")
    async with asyncio.timeout(_SECONDS):
        while not is_time():
            assert child.returncode is None, "it ended before it could be terminated"
            await asyncio.sleep(0.005)
    child.kill()
    assert await child.wait() == -signal.SIGKILL


async def _started(one: Shop, provider: str, when: str) -> asyncio.subprocess.Process:
    arguments = (one.dsn, one.control.url, provider, when)
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.acceptance.function", *arguments)


async def main(dsn: str, url: str, name: str, when: str) -> None:
    made: Any = Terminated(adapter(name, url), when)
    async with shop(dsn, Control(url), providers={name: made}, by="function") as one:
        await one.tick()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:5]))
