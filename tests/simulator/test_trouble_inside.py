"""What goes wrong inside the simulator: it is said or tried again, and stays where it went wrong. One process."""

import asyncio
import hmac
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tallystick.simulator.books import Books, Entry
from tallystick.simulator.dialect import Call, Dialect, Endpoint, KeyRule, Reply, Request
from tallystick.simulator.dialects import every_dialect
from tallystick.simulator.posting import Answered, Posting
from tallystick.simulator.server import Simulator
from tallystick.simulator.stripe.api import Stripe
from tallystick.simulator.webhooks import AFTER_FAILURE, MOST_AT_ONCE, Webhooks
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


def let_it_answer(simulator: Simulator) -> None:
    """The answer that waits is given in this turn of the loop: a wait that is short enough for a test may be missed."""
    (timer,) = simulator._handling._delayed
    answer = timer._callback  # type: ignore[attr-defined]
    timer.cancel()
    asyncio.get_running_loop().call_soon(answer)


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


@asynccontextmanager
async def answering(answer: Callable[[bytes, bytes], Awaitable[int]]) -> AsyncIterator[str]:
    """The address of a receiver that answers a head and a body with this status, as soon as it is there."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.write(b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % await answer(head, body))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


class _Told:
    """In place of a client's connection."""

    def __init__(self) -> None:
        self.reply: Reply | None = None

    def answer(self, reply: Reply) -> None:
        self.reply = reply


async def statuses(simulator: Simulator, dialect: Dialect, *paths: str) -> list[int]:
    """What calls of one turn are answered."""
    told = [_Told() for _ in paths]
    for path, exchange in zip(paths, told, strict=True):
        simulator._handling.handle(dialect, Request("POST", path, {}, {}, b""), exchange)  # type: ignore[arg-type]
    await until(lambda: all(exchange.reply is not None for exchange in told))
    return [exchange.reply.status for exchange in told if exchange.reply is not None]


@pytest.mark.parametrize("is_halfway", [True, False], ids=["halfway", "before it changed anything"])
async def test_a_call_that_fails_takes_its_turn_with_it_only_if_it_changed_something(
    simulator: Simulator, *, is_halfway: bool
) -> None:
    """Nobody is told of what was undone: not the one that failed, and not those of the same commit."""

    def good(books: Books, now: datetime) -> Reply:
        books.insert(Entry("stripe", "transfer", "tr_good", "", "", 5, "usd", "moved", now, {}))
        return Reply(200)

    def bad(books: Books, now: datetime) -> Reply:
        if is_halfway:
            books.insert(Entry("stripe", "transfer", "tr_bad", "", "", 5, "usd", "moved", now, {}))
        raise RuntimeError("a bug")

    class Broken(Stripe):
        def route(self, request: Request) -> Call | Reply:
            return Call("transfer", bad if request.path == "/bad" else good)

    assert await statuses(simulator, Broken(), "/good", "/bad") == ([500, 500] if is_halfway else [200, 500])
    assert [each.id for each in simulator.books.find("stripe", "transfer")] == ([] if is_halfway else ["tr_good"])
    # One that comes after it in the same turn is told the same, and nothing of it stays.
    simulator.control.reset()
    assert await statuses(simulator, Broken(), "/bad", "/good") == ([500, 500] if is_halfway else [500, 200])
    assert [each.id for each in simulator.books.find("stripe", "transfer")] == ([] if is_halfway else ["tr_good"])


async def test_a_call_for_which_the_disk_is_full_takes_its_turn_with_it(simulator: Simulator) -> None:
    """SQLite undoes the whole transaction, and the call itself had changed nothing: the others were told 200."""

    class Full(Stripe):
        def route(self, request: Request) -> Call | Reply:
            return Call("transfer", partial(transfer, request.path))

    def transfer(path: str, books: Books, now: datetime) -> Reply:
        body = {"filler": "x" * 100_000 if path == "/large" else ""}
        books.insert(Entry("stripe", "transfer", f"tr_{path[1:]}", "", "", 5, "usd", "moved", now, body))
        return Reply(200)

    # So that this is no change of the call that fails.
    simulator.books.next_number()
    simulator.books.commit()
    pages = simulator.books.execute("PRAGMA page_count").fetchone()[0]
    simulator.books.execute(f"PRAGMA max_page_count = {pages}")
    assert await statuses(simulator, Full(), "/small", "/large") == [500, 500]
    assert simulator.books.find("stripe", "transfer") == []


async def test_a_row_that_cannot_be_written_undoes_the_turn_it_waited_in(simulator: Simulator) -> None:
    """Whose row it was is not known any more when it is written: nobody of that turn is told that all is well."""

    class Announcing(Stripe):
        def route(self, request: Request) -> Call | Reply:
            return Call("transfer", partial(transfer, request.path[1:]))

    def transfer(id_: str, books: Books, now: datetime) -> Reply:
        books.insert(Entry("stripe", "transfer", id_, "", "", 5, "usd", "moved", now, {}))
        if id_ == "tr_bad":
            books.emit("stripe", "transfer.created", {"id": "evt_bad"}, now, id_)
        return Reply(200)

    forbid(simulator, "INSERT ON event")
    assert await statuses(simulator, Announcing(), "/tr_1", "/tr_bad", "/tr_2") == [500, 500, 500]
    assert simulator.books.find("stripe", "transfer") == []
    assert await statuses(simulator, Announcing(), "/tr_3") == [200]


async def test_a_row_that_cannot_be_written_alone_leaves_its_neighbours(simulator: Simulator) -> None:
    forbid(simulator, "INSERT ON event WHEN NEW.id = 'evt_bad'")
    emit(simulator, "stripe", "evt_1")
    with pytest.raises(sqlite3.IntegrityError, match="full"), simulator.books.alone():
        emit(simulator, "stripe", "evt_bad")
    await simulator.books.committed()
    assert [event.id for event in simulator.books.events("stripe")] == ["evt_1"]


class _Transfers(Stripe):
    """Each path is a transfer of that id. `/tr_large` is more than SQLite can count, `/tr_bug` fails halfway."""

    def route(self, request: Request) -> Call | Reply:
        return Call("transfer", partial(self._transfer, request.path[1:]))

    def _transfer(self, id_: str, books: Books, now: datetime) -> Reply:
        amount = 2**63 if id_ == "tr_large" else 5
        books.insert(Entry("stripe", "transfer", id_, "", "", amount, "usd", "moved", now, {}))
        if id_ == "tr_bug":
            raise RuntimeError("a bug")
        return Reply(200, b'{"id":"%s"}' % id_.encode())


def transfers(simulator: Simulator) -> list[str]:
    """Oldest first."""
    return [each.id for each in simulator.books.find("stripe", "transfer", newest_first=False)]


def take(simulator: Simulator, id_: str) -> None:
    """From now on the id is taken."""
    now = simulator.clock.now()
    simulator.books.insert(Entry("stripe", "transfer", id_, "", "", 5, "usd", "moved", now, {}))
    simulator.books.commit()


@pytest.mark.parametrize("is_read", [True, False], ids=["written by a reader", "written by the commit"])
async def test_a_number_too_large_for_the_file_undoes_the_turn_it_waited_in(
    simulator: Simulator, *, is_read: bool
) -> None:
    """That is no error of SQLite's: who read lost the neighbours' rows, and the commit told nobody anything."""
    told = [_Told() for _ in range(3)]
    for path, exchange in zip(("/tr_1", "/tr_large", "/tr_2"), told, strict=True):
        if is_read and path == "/tr_2":
            with pytest.raises(sqlite3.DataError, match="too large"):
                transfers(simulator)
        simulator._handling.handle(_Transfers(), Request("POST", path, {}, {}, b""), exchange)  # type: ignore[arg-type]
    await until(lambda: all(exchange.reply is not None for exchange in told))
    assert [exchange.reply.status for exchange in told if exchange.reply is not None] == [500] * 3
    assert transfers(simulator) == []
    assert await statuses(simulator, _Transfers(), "/tr_3") == [200]


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_late_answer_tells_what_became_of_its_turn(simulator: Simulator, number: int) -> None:
    """It had a commit of its own, in the middle of the turn: of those that were told 500 some stayed."""
    simulator.faults.add(f"stripe.transfer:slow_after(0.05)@{number}")
    assert await statuses(simulator, _Transfers(), "/tr_1", "/tr_bug", "/tr_2") == [500] * 3
    assert transfers(simulator) == []
    simulator.faults.clear()
    assert await statuses(simulator, _Transfers(), "/tr_3") == [200]


async def test_a_late_answer_is_not_good_when_its_row_could_not_be_written(simulator: Simulator) -> None:
    take(simulator, "tr_1")
    simulator.faults.add("stripe.transfer:slow_after(0.05)@2")
    assert await statuses(simulator, _Transfers(), "/tr_2", "/tr_1") == [500, 500]
    assert transfers(simulator) == ["tr_1"]


async def test_a_late_answer_that_is_safe_does_not_share_the_fate_of_another_turn(simulator: Simulator) -> None:
    """It was told 500 of what stayed."""
    simulator.faults.add("stripe.transfer:slow_after(60)@1")
    slow, bug = _Told(), _Told()

    def handle(path: str, exchange: _Told) -> None:
        simulator._handling.handle(_Transfers(), Request("POST", path, {}, {}, b""), exchange)  # type: ignore[arg-type]

    handle("/tr_1", slow)
    await until(lambda: simulator._handling._delayed)
    # In the turn of the answer, and before it.
    asyncio.get_running_loop().call_soon(handle, "/tr_bug", bug)
    let_it_answer(simulator)
    await until(lambda: slow.reply is not None and bug.reply is not None)
    assert slow.reply is not None
    assert slow.reply.status == 200
    assert transfers(simulator) == ["tr_1"]


async def test_a_late_answer_frees_its_key_though_the_keys_were_switched_meanwhile(simulator: Simulator) -> None:
    """It freed the key it would have had by now, and its own was in flight for ever."""

    class Scoped(_Transfers):
        def route(self, request: Request) -> Call | Reply:
            return Call("transfer", partial(self._transfer, request.path[1:]), "key")

        def keys(self, books: Books) -> KeyRule:
            scope = books.switch("wise.key_scope")
            return msgspec.structs.replace(super().keys(books), scope=lambda _call: scope)

    simulator.faults.add("stripe.transfer:slow_after(60)@1")
    slow = asyncio.create_task(statuses(simulator, Scoped(), "/tr_1"))
    await until(lambda: simulator._handling._delayed)
    simulator.books.set_switch("wise.key_scope", "client")
    let_it_answer(simulator)
    assert await slow == [200]
    simulator.books.set_switch("wise.key_scope", "account")
    assert await statuses(simulator, Scoped(), "/tr_1") == [200]


async def test_a_fault_that_meets_a_row_that_cannot_be_written_is_answered_with_its_turn(simulator: Simulator) -> None:
    """Nobody ended the turn that was undone: the next call, which was good, was undone in its place."""
    take(simulator, "tr_1")
    await simulator.books.committed()
    simulator.faults.add("stripe.transfer:reversed@1")
    assert await statuses(simulator, _Transfers(), "/tr_1") == [500]
    assert await statuses(simulator, _Transfers(), "/tr_2") == [200]
    assert transfers(simulator) == ["tr_1", "tr_2"]


async def test_what_waits_is_not_written_after_sqlite_has_ended_the_transaction(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one, each row is safe by itself: it stayed, and its call was told 500."""
    read_written = Books.read_written

    def broken(self: Books, *given: Any) -> sqlite3.Cursor:
        monkeypatch.setattr(Books, "read_written", read_written)
        # As SQLite itself may, after an error of the disk.
        self._connection.rollback()
        raise sqlite3.OperationalError("disk I/O error")

    class Keyed(_Transfers):
        def route(self, request: Request) -> Call | Reply:
            key = "key" if request.path == "/tr_keyed" else None
            return Call("transfer", partial(self._transfer, request.path[1:]), key, " ")

        def _transfer(self, id_: str, books: Books, now: datetime) -> Reply:
            # It asks for something first, and what waits is written.
            books.total("stripe", "refund", id_, ("moved",))
            return super()._transfer(id_, books, now)

    # The switches are known then, and asking for the key is the first that meets the trouble.
    Keyed().keys(simulator.books)
    monkeypatch.setattr(Books, "read_written", broken)
    assert await statuses(simulator, Keyed(), "/tr_1", "/tr_keyed", "/tr_2") == [500] * 3
    assert transfers(simulator) == []


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "waiting"])
@pytest.mark.parametrize("is_last", [True, False], ids=["last", "followed"])
async def test_a_transaction_that_sqlite_has_ended_is_noticed_whoever_met_the_error(
    simulator: Simulator, *, is_written: bool, is_last: bool
) -> None:
    """It was who tends the webhooks, or the agenda: the calls of that turn were told 200 of what was gone."""
    paths = ["/tr_1"] if is_last else ["/tr_1", "/tr_2"]
    told = [_Told() for _ in paths]
    for path, exchange in zip(paths, told, strict=True):
        simulator._handling.handle(_Transfers(), Request("POST", path, {}, {}, b""), exchange)  # type: ignore[arg-type]
        if path == "/tr_1":
            if is_written:
                assert transfers(simulator) == ["tr_1"]
            # As SQLite itself, after an error of the disk.
            simulator.books._connection.rollback()
    await until(lambda: all(exchange.reply is not None for exchange in told))
    assert {exchange.reply.status for exchange in told if exchange.reply is not None} == {500}
    assert transfers(simulator) == []
    assert await statuses(simulator, _Transfers(), "/tr_3") == [200]


async def test_a_key_that_came_twice_in_one_turn_is_executed_once(simulator: Simulator) -> None:
    """The first one's answer is not written yet when the second asks for it."""

    class Keyed(Stripe):
        def route(self, request: Request) -> Call | Reply:
            return Call("transfer", transfer, "key", " ", request.path.encode())

    def transfer(books: Books, now: datetime) -> Reply:
        books.insert(Entry("stripe", "transfer", books.next_id("tr_"), "", "", 5, "usd", "moved", now, {}))
        return Reply(200)

    assert await statuses(simulator, Keyed(), "/a", "/a", "/b") == [200, 200, 400]
    assert len(simulator.books.find("stripe", "transfer")) == 1


async def test_no_webhook_leaves_before_its_commit(
    simulator: Simulator, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would tell of what a SIGKILL can still undo. Each commit's callbacks make the next change at once."""
    simulator.set_endpoints({"stripe": Endpoint(receiver.url, (SECRET,))})
    uncommitted: list[bool] = []
    post = Posting.post

    def watched(self: Posting, *given: Any, **more: Any) -> Any:
        uncommitted.append(simulator.books._connection.in_transaction)
        return post(self, *given, **more)

    monkeypatch.setattr(Posting, "post", watched)

    def at_once(number: int, _error: sqlite3.Error | None) -> None:
        emit(simulator, "stripe", f"evt_after_{number}")

    for number in range(20):
        emit(simulator, "stripe", f"evt_{number}")
        simulator.books.after_commit(partial(at_once, number))
        await simulator.books.committed()
    await until(lambda: len(receiver.received) == 40)
    assert uncommitted == [False] * 40


async def test_an_event_that_was_undone_alone_is_not_sent(simulator: Simulator, receiver: Receiver) -> None:
    """Its neighbours are, though what is due is begun without reading it back."""
    simulator.set_endpoints({"stripe": Endpoint(receiver.url, (SECRET,))})
    emit(simulator, "stripe", "evt_0")
    await until(lambda: deliveries(simulator)[0][1] == "delivered")
    emit(simulator, "stripe", "evt_1")
    with pytest.raises(RuntimeError), simulator.books.alone():
        emit(simulator, "stripe", "evt_undone")
        raise RuntimeError("a bug")
    emit(simulator, "stripe", "evt_2")
    await until(lambda: len(receiver.received) == 3)
    await until(lambda: all(row[1] == "delivered" for row in deliveries(simulator)))
    assert sorted(event["id"] for event in receiver.events()) == ["evt_0", "evt_1", "evt_2"]
    assert [row[0] for row in deliveries(simulator)] == ["evt_0", "evt_1", "evt_2"]


async def test_an_attempt_that_outlasts_its_gap_is_made_again(simulator: Simulator) -> None:
    """It is then due before others that were sent meanwhile."""
    answers, bodies = asyncio.Queue[int](), list[bytes]()

    async def slow(_head: bytes, body: bytes) -> int:
        bodies.append(body)
        return 200 if b"evt_2" in body else await answers.get()

    async with answering(slow) as url:
        simulator.set_endpoints({"stripe": Endpoint(url, (SECRET,))})
        emit(simulator, "stripe", "evt_1")
        await until(lambda: bodies)
        simulator.clock.advance(100_000)
        simulator.clock.step(None)
        emit(simulator, "stripe", "evt_2")
        await until(lambda: deliveries(simulator)[1][1] == "delivered")
        answers.put_nowait(500)
        answers.put_nowait(200)
        await until(lambda: deliveries(simulator)[0][1:3] == ("delivered", 2))


async def test_an_attempt_that_fails_while_the_next_time_is_asked_for_is_made_again(simulator: Simulator) -> None:
    """How it ended was not written yet: nobody knew when it is due again, and it was pending for ever."""
    answers: list[asyncio.Future[Answered]] = []

    def post(*_given: Any, **_more: Any) -> "asyncio.Future[Answered]":
        answers.append(asyncio.get_running_loop().create_future())
        return answers[-1]

    simulator.set_endpoints({"stripe": Endpoint("http://127.0.0.1:9/", (SECRET,))})
    simulator._webhooks._posting.post = post  # type: ignore[method-assign]
    for number in range(2):
        emit(simulator, "stripe", f"evt_{number}")
        await until(lambda number=number: len(answers) == number + 1)
        if not number:
            # With the first, it is known that none is held back.
            answers[0].set_result(Answered(200, None))
            await until(lambda: deliveries(simulator)[0][1] == "delivered")
    # Who tends everything waits for this commit as well, goes on right after the answer, and asks.
    simulator.books.wake()
    simulator.books.after_commit(lambda _error: answers[1].set_result(Answered(500, None)))
    await until(lambda: deliveries(simulator)[1][1:3] == ("pending", 1))
    jump = asyncio.create_task(control(simulator, "POST", "clock", b'{"advance_seconds": 100000}'))
    await until(lambda: len(answers) == 3)
    answers[2].set_result(Answered(200, None))
    assert (await jump).status == 200
    assert deliveries(simulator)[1][1:3] == ("delivered", 2)


async def test_what_comes_while_a_dialect_rests_leaves_when_the_rest_is_over(simulator: Simulator) -> None:
    """A forgery that was refused is not tried again: nobody was called for the end of the rest, and it took seconds."""
    forged = asyncio.Event()

    async def strict(head: bytes, body: bytes) -> int:
        signed = dict(
            part.split(b"=", 1) for part in head.split(b"stripe-signature: ")[1].split(b"\r\n")[0].split(b",")
        )
        is_ours = hmac.digest(SECRET.encode(), signed[b"t"] + b"." + body, "sha256").hex().encode() == signed[b"v1"]
        # The good one first: the rest begins with the end of the other.
        if not is_ours:
            await forged.wait()
        return 200 if is_ours else 400

    async with answering(strict) as url:
        simulator.set_endpoints({"stripe": Endpoint(url, (SECRET,))})
        simulator.faults.add("stripe.webhook:webhook_forged")
        emit(simulator, "stripe", "evt_1")
        await until(lambda: [row[1] for row in deliveries(simulator)] == ["pending", "delivered"])
        simulator.faults.clear()
        forged.set()
        await until(lambda: deliveries(simulator)[0][1] == "failed")
        emit(simulator, "stripe", "evt_2")
        await until(lambda: deliveries(simulator)[-1][1] == "delivered", 10 * AFTER_FAILURE)


async def test_those_under_way_do_not_keep_others_from_the_room_there_is(simulator: Simulator) -> None:
    """One that is begun once more is due before them: the same few, under way already, were found again and again."""
    answers = {f"evt_{number}": asyncio.get_running_loop().create_future() for number in range(MOST_AT_ONCE)}
    seen: list[str] = []

    async def slow(_head: bytes, body: bytes) -> int:
        seen.append(msgspec.json.decode(body)["id"])
        if seen.count("evt_0") == 1 or seen[-1] != "evt_0":
            return await answers[seen[-1]] if seen[-1] in answers else 200
        await asyncio.Event().wait()
        return 200

    async with answering(slow) as url:
        simulator.set_endpoints({"stripe": Endpoint(url, (SECRET,))})
        emit(simulator, "stripe", "evt_0")
        await until(lambda: seen)
        simulator.clock.advance(100_000)
        simulator.clock.step(None)
        for number in range(1, MOST_AT_ONCE):
            emit(simulator, "stripe", f"evt_{number}")
        await until(lambda: len(seen) == MOST_AT_ONCE)
        answers["evt_0"].set_result(500)
        await until(lambda: seen.count("evt_0") == 2)
        for number in range(MOST_AT_ONCE - 10, MOST_AT_ONCE):
            answers[f"evt_{number}"].set_result(200)
        emit(simulator, "stripe", "evt_new")
        await until(lambda: "evt_new" in seen, 2)


async def test_what_the_books_did_not_tell_once_is_sent_all_the_same(
    simulator: Simulator, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was under way for ever, its neighbours were taken for begun, and whoever waited for them waited for ever."""
    simulator.set_endpoints({"stripe": Endpoint(receiver.url, (SECRET,)), "adyen": Endpoint(receiver.url, ("AB",))})
    event_body, failed = Books.event_body, set[str]()

    def at_first_not(self: Books, dialect: str, event_id: str) -> bytes | None:
        if dialect not in failed:
            failed.add(dialect)
            raise sqlite3.OperationalError("disk I/O error")
        return event_body(self, dialect, event_id)

    monkeypatch.setattr(Books, "event_body", at_first_not)
    for number in range(3):
        emit(simulator, "stripe", f"evt_{number}")
        emit(simulator, "adyen", f"evt_{number}")
    assert (await control(simulator, "POST", "clock", b'{"advance_seconds": 0}')).status == 500
    await until(lambda: [row[1] for row in deliveries(simulator)] == ["delivered"] * 6)
    assert len(receiver.received) == 6


async def test_books_that_do_not_tell_are_not_asked_without_a_pause(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []

    def broken(_self: Webhooks) -> None:
        asked.append(None)
        raise sqlite3.DatabaseError("malformed")

    with monkeypatch.context() as patch:
        patch.setattr(Webhooks, "_start_due", broken)
        simulator.books.wake()
        await until(lambda: asked)
        await asyncio.sleep(0.2)
    assert len(asked) == 1


async def test_who_stops_closes_the_books_behind_everybody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is answered at that very moment stays pending, and nothing is done to books that are closed."""
    simulator = Simulator(tmp_path / "books", every_dialect())
    await simulator.start()
    simulator.set_endpoints({"stripe": Endpoint("http://127.0.0.1:9/", (SECRET,))})
    answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
    simulator._webhooks._posting.post = lambda *_given, **_more: answer  # type: ignore[method-assign]
    emit(simulator, "stripe", "evt_1")
    await until(lambda: simulator._webhooks._queues["stripe"].under_way)
    stopping = asyncio.create_task(simulator.stop())
    simulator._tending.add_done_callback(lambda _task: answer.set_result(Answered(200, None)))  # type: ignore[union-attr]
    simulator.books.end_turn()
    await stopping
    await asyncio.sleep(0.01)
    # asyncio writes there what nobody catches.
    assert not caplog.records
