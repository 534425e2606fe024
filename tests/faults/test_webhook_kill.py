"""SIGKILL of the receiver, and of the database under it: every webhook that was acknowledged is there, once.

TALLY_TEST_SEED chooses when the kills come; the counts are printed.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests import servers
from tests.deliveries import request, stored
from tests.ledgers import broken

SEED = int(os.environ.get("TALLY_TEST_SEED", "7"))
CALLERS = 50
PATIENCE_SECONDS = 60


class Receiver:
    """A child that can be killed and started again."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.start()

    def start(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.receiver", self._dsn], stdout=subprocess.PIPE
        )
        assert self._child.stdout is not None
        self.port = int(self._child.stdout.readline())

    def kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        self._child.wait()


@pytest.fixture
def server() -> Iterator[servers.Server]:
    """A server of its own: it will be stopped the hard way."""
    made = servers.embedded18()
    made.start()
    yield made
    made.remove()


async def deliver(port: int, number: int) -> tuple[int, bytes]:
    """As a provider does: the status and the head of the answer; 0: the connection broke."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(request(number))
                head = await reader.readuntil(b"\r\n\r\n")
            finally:
                writer.close()
    except (OSError, asyncio.IncompleteReadError):
        return 0, b""
    return int(head.split()[1]), head


class Provider:
    """Tells events one after another on many connections, until told to stop; and again what was not acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.refused = 0
        self._next = 0
        self._again: list[int] = []

    async def tell(self, port: int, until: Callable[[], bool]) -> None:
        async def caller() -> None:
            while not until():
                number = self._again.pop() if self._again else self._take()
                status, _ = await deliver(port, number)
                if status == 200:
                    self.acknowledged.add(number)
                    continue
                self.refused += 1
                self._again.append(number)
                if not status:
                    return

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    def _take(self) -> int:
        self._next += 1
        return self._next

    @property
    def owed(self) -> list[int]:
        return list(self._again)


async def test_every_acknowledged_webhook_outlives_the_receiver(
    embedded18: servers.Server, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(SEED)
    dsn = embedded18.fresh_database()
    provider = Provider()
    receiver = Receiver(dsn)
    kills = 0
    try:
        for _ in range(4):
            enough = len(provider.acknowledged) + chance.randrange(200, 600)

            async def kill_when(enough: int) -> None:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while len(provider.acknowledged) < enough:
                        await asyncio.sleep(0.001)
                receiver.kill()

            await asyncio.gather(provider.tell(receiver.port, lambda: False), kill_when(enough))
            kills += 1
            found = await stored(dsn)
            lost = {number for number in provider.acknowledged if f"evt_{number}" not in found}
            assert not lost, f"{len(lost)} acknowledged webhooks are gone"
            receiver.start()
        # What was never acknowledged is told again, and all of it is there in the end.
        await provider.tell(receiver.port, lambda: not provider.owed)
    finally:
        receiver.kill()
    assert {f"evt_{number}" for number in provider.acknowledged} <= (await stored(dsn)).keys()
    assert await broken(dsn) == {}
    record_property(
        "counted",
        f"webhook receiver: seed {SEED}: {kills} kills, {len(provider.acknowledged)} acknowledged, 0 lost, 0 doubled",
    )


async def test_a_database_that_is_away_is_told_to_the_provider_and_nothing_is_lost(server: servers.Server) -> None:
    dsn = server.fresh_database()
    receiver = Receiver(dsn)
    try:
        assert (await deliver(receiver.port, 1))[0] == 200
        server.stop(immediate=True)
        answers = await asyncio.gather(*(deliver(receiver.port, number) for number in range(2, 12)))
        assert {status for status, _ in answers} == {503}
        assert all(b"retry-after: 1" in head.lower() for _, head in answers)
        server.start()
        again = await asyncio.gather(*(deliver(receiver.port, number) for number in range(1, 12)))
        assert {status for status, _ in again} == {200}
    finally:
        receiver.kill()
    assert (await stored(dsn)).keys() == {f"evt_{number}" for number in range(1, 12)}
    assert await broken(dsn) == {}


async def test_a_database_that_restarts_under_load_loses_and_doubles_nothing(server: servers.Server) -> None:
    """Connections break around COMMIT: the batch runs again, and the guard knows what it did before."""
    dsn = server.fresh_database()
    provider = Provider()
    receiver = Receiver(dsn)
    restarted = asyncio.Event()

    async def restart() -> None:
        for _ in range(2):
            enough = len(provider.acknowledged) + 300
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(provider.acknowledged) < enough:
                    await asyncio.sleep(0.001)
            await asyncio.to_thread(server.stop, immediate=True)
            await asyncio.to_thread(server.start)
        restarted.set()

    try:
        await asyncio.gather(provider.tell(receiver.port, restarted.is_set), restart())
        await provider.tell(receiver.port, lambda: not provider.owed)
    finally:
        receiver.kill()
    assert {f"evt_{number}" for number in provider.acknowledged} == (await stored(dsn)).keys()
    assert await broken(dsn) == {}
