"""What goes wrong inside the simulator: it is said or tried again, and stays where it went wrong. One process."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tallystick.providers.simulator.dialect import Endpoint, Reply, Request
from tallystick.providers.simulator.dialects import every_dialect
from tallystick.providers.simulator.server import Simulator
from tallystick.providers.simulator.webhooks import AFTER_FAILURE, MOST_AT_ONCE
from tests.simulator.station import SECRET, Receiver


@pytest.fixture
async def simulator(tmp_path: Path) -> AsyncIterator[Simulator]:
    made = Simulator(tmp_path / "books", every_dialect())
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


async def control(simulator: Simulator, method: str, path: str, body: bytes = b"") -> Reply:
    return await asyncio.wait_for(simulator.control.answer(Request(method, f"/_sim/{path}", {}, {}, body)), 5)


def emit(simulator: Simulator, dialect: str, event_id: str) -> None:
    simulator.books.emit(dialect, "transfer.created", {"id": event_id}, simulator.clock.now(), "tr_1")


def deliveries(simulator: Simulator) -> list[tuple[str, str, int, str]]:
    """Oldest first."""
    rows = simulator.books.execute("SELECT event_id, state, attempts, note FROM delivery ORDER BY number")
    return rows.fetchall()


async def until(fact: Any, seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not fact():
            await asyncio.sleep(0.01)


def forbid(simulator: Simulator, change: str) -> None:
    """As a full disk would."""
    simulator.books.execute(f"CREATE TRIGGER full BEFORE {change} BEGIN SELECT RAISE(ABORT, 'full'); END")
    simulator.books.commit()


async def test_a_key_that_cannot_sign_is_a_failed_attempt(simulator: Simulator) -> None:
    """It was made again and again without a pause, and no other webhook was sent."""
    key = ec.generate_private_key(ec.SECP256R1())
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(encoding, form, serialization.NoEncryption()).decode()
    simulator.books.set_endpoint("wise", Endpoint("http://127.0.0.1:9/", (secret,)))
    emit(simulator, "wise", "evt_1")
    assert (await control(simulator, "POST", "clock", b'{"advance_seconds": 0}')).status == 200
    [(_, state, attempts, note)] = deliveries(simulator)
    assert (state, attempts) == ("pending", 1)
    assert "RSA" in note


async def test_an_attempt_that_is_not_recorded_is_not_made_again_at_once(
    simulator: Simulator, receiver: Receiver
) -> None:
    simulator.set_endpoints({"stripe": Endpoint(receiver.url, (SECRET,))})
    forbid(simulator, "UPDATE ON delivery")
    emit(simulator, "stripe", "evt_1")
    assert (await control(simulator, "POST", "clock", b'{"advance_seconds": 0}')).status == 200
    await asyncio.sleep(0.3)
    assert len(receiver.received) == 1
    simulator.books.execute("DROP TRIGGER full")
    await until(lambda: deliveries(simulator)[0][1] == "delivered")


async def test_an_attempt_from_before_a_reset_marks_nothing_after_it(simulator: Simulator) -> None:
    knocked, answer = asyncio.Event(), asyncio.Event()

    async def slow(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        knocked.set()
        await answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(slow, "127.0.0.1", 0) as server:
        endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", (SECRET,))
        simulator.set_endpoints({"stripe": endpoint})
        emit(simulator, "stripe", "evt_before")
        await asyncio.wait_for(knocked.wait(), 5)
        simulator.control.reset()
        simulator.set_endpoints({"stripe": endpoint})
        simulator.faults.add("stripe.webhook:webhook_late")
        emit(simulator, "stripe", "evt_after")
        answer.set()
        assert (await control(simulator, "POST", "clock", b'{"advance_seconds": 0}')).status == 200
    assert deliveries(simulator) == [("evt_after", "pending", 0, "")]


async def test_a_receiver_that_refuses_is_not_knocked_at_without_a_pause(
    simulator: Simulator, receiver: Receiver
) -> None:
    """Knocking took three quarters of the calls' time."""
    receiver.statuses = [500] * 500
    simulator.set_endpoints({"stripe": Endpoint(receiver.url, (SECRET,))})
    for number in range(20 * MOST_AT_ONCE):
        emit(simulator, "stripe", f"evt_{number}")
    await until(lambda: receiver.received)
    await asyncio.sleep(5 * AFTER_FAILURE)
    assert len(receiver.received) <= 8 * MOST_AT_ONCE


async def test_what_happens_by_itself_goes_on_after_the_disk_was_full(
    simulator: Simulator, caplog: pytest.LogCaptureFixture
) -> None:
    forbid(simulator, "DELETE ON agenda")
    simulator.books.later("stripe", "pay", "po_none", simulator.clock.now())
    await until(lambda: "it is tried again" in caplog.text)
    simulator.books.execute("DROP TRIGGER full")
    await until(lambda: simulator.books.next_due_at() is None)


async def test_a_control_call_that_fails_is_answered(simulator: Simulator) -> None:
    forbid(simulator, "INSERT ON balance")
    reply = await control(simulator, "PUT", "balances/stripe", b'{"usd": 5}')
    assert reply.status == 500
    assert b"its log tells why" in reply.body


async def test_two_jumps_at_once_are_their_sum(simulator: Simulator) -> None:
    simulator.books.later("stripe", "pay", "po_none", simulator.clock.now() + timedelta(seconds=5))
    jump = b'{"advance_seconds": 10}'
    await asyncio.gather(*(control(simulator, "POST", "clock", jump) for _ in range(2)))
    assert simulator.clock.offset_seconds == 20
