"""Sending: nothing leaves before its intent is committed, and whatever came of it is kept."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec
import pytest

from tallystick.database.explain.flow import explain
from tallystick.errors import TallystickError
from tallystick.http.metrics import Metrics
from tallystick.movement import store as intents
from tallystick.movement.flow import Sender, Sent
from tallystick.movement.metrics import ProviderCounts
from tallystick.movement.rules import AlreadyDone, OtherInstruction, StillSending, Withheld
from tallystick.providers.http import Http
from tallystick.providers.stripe.account import StripeAccount
from tallystick.providers.stripe.adapter import Stripe
from tallystick.providers.words import Busy, Done, Exchange, Transfer, Unknown
from tallystick.secret import Secret
from tallystick.settings import LIMITS, Limits
from tests import servers
from tests.faults.wire import wire
from tests.ledgers import Ledger, broken, fetchval, ledger
from tests.providers.test_http import Handler, Server, peer
from tests.sends import send_alone

API_KEY = "sk_live_never_to_be_stored"
NOW = datetime.now(UTC)


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


def transfer(number: int = 1, *, cents: int = 500) -> Transfer:
    return Transfer(
        key=number.to_bytes(32), destination="acct_1", amount_micros=cents * 10_000, currency="USD", description="pay"
    )


def moved(number: int = 1, *, cents: int = 500) -> bytes:
    """Stripe's own answer to that transfer."""
    key = number.to_bytes(32).hex()
    body = msgspec.json.encode(
        {
            "id": f"tr_{number}",
            "object": "transfer",
            "amount": cents,
            "amount_reversed": 0,
            "created": 1_700_000_000,
            "currency": "usd",
            "destination": "acct_1",
            "metadata": {"tally_key": key},
            "reversed": False,
            "transfer_group": key,
        }
    )
    head = f"HTTP/1.1 200 OK\r\nrequest-id: req_{number}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@asynccontextmanager
async def sending(
    dsn: str, *answers: bytes | Handler, limits: Limits = LIMITS
) -> AsyncIterator[tuple[Sender, Server, Ledger]]:
    async with peer(*answers) as server, ledger(dsn, limits=limits) as books:
        account = StripeAccount(api_key=Secret(API_KEY), api_base=server.base, requests_per_second=10_000)
        stripe = Stripe(account)
        async with Sender(books.database, {"stripe": stripe}, limits=limits) as sender:
            yield sender, server, books
        await stripe.close()


async def send(sender: Sender, books: Ledger, instruction: Transfer, *, since: datetime) -> Sent | Withheld:
    return await send_alone(
        books.database,
        sender,
        sender._providers["stripe"],
        books.tenant,
        instruction,
        since=since,
        limits=sender._limits,
    )


async def test_what_is_sent_is_committed_before_its_first_byte_leaves(dsn: str) -> None:
    """Asked by the peer itself, over a connection of its own, at the moment the bytes arrive."""
    seen: list[Any] = []

    async def look(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = await asyncpg.connect(dsn)
        seen.append(
            await connection.fetchrow(
                "SELECT i.first_sent_at <= clock_timestamp() AS dated, a.number,"
                " a.not_after > clock_timestamp() AS may, a.answer"
                " FROM tally.intent i LEFT JOIN tally.attempt a USING (tenant_id, key, provider)"
            )
        )
        await connection.close()
        writer.write(moved())

    async with sending(dsn, look) as (sender, _server, books):
        sent = await send(sender, books, transfer(), since=NOW)
    assert isinstance(sent, Sent)
    assert isinstance(sent.answer, Done)
    assert [tuple(row) for row in seen if row is not None] == [(True, 1, True, None)]


async def test_the_answer_is_kept_with_its_evidence(dsn: str) -> None:
    async with sending(dsn, moved()) as (sender, _server, books):
        sent = await send(sender, books, transfer(), since=NOW)
        assert isinstance(sent, Sent)
        (view,) = await intents.read(books.database, books.tenant, transfer().key)
    (attempt,) = view.attempts
    assert (attempt.answer, attempt.provider_id, attempt.code) == ("done", "tr_1", None)
    (exchange,) = msgspec.json.decode(attempt.evidence or b"", type=list[Exchange])
    assert (exchange.asked, exchange.status, exchange.request_id) == ("POST /v1/transfers", 200, "req_1")
    assert await broken(dsn) == {}


async def test_explain_tells_every_attempt_with_the_providers_request_id(dsn: str) -> None:
    down = b"HTTP/1.1 503 X\r\nrequest-id: req_down\r\ncontent-length: 0\r\n\r\n"
    async with sending(dsn, down, moved()) as (sender, _server, books):
        for _ in range(2):
            await send(sender, books, transfer(), since=NOW)
        (found,) = (await explain(books.database, books.tenant, transfer().key.hex())).found
        assert (await explain(books.database, books.tenant, "ab" * 32)).found == ()
    assert found.summary == "transfer of 5.00 USD at stripe (live), 2 attempts, last answer done"
    told = "\n".join(step.what for step in found.timeline)
    for part in ("req_down", "req_1", "answered: unknown", "answered: done tr_1", '"destination":"acct_1"'):
        assert part in told, part


async def test_without_a_database_nothing_is_sent(dsn: str) -> None:
    limits = Limits(outage_seconds=0.1, transaction_seconds=1, connect_seconds=1)
    async with ledger(dsn):
        pass
    async with wire(dsn) as (cable, address), sending(address, moved(), limits=limits) as (sender, server, books):
        cable.is_frozen = True
        with pytest.raises(TallystickError):
            await send(sender, books, transfer(), since=NOW)
        assert server.heard == []
        cable.is_frozen = False


async def test_while_one_may_be_writing_nobody_else_writes(dsn: str) -> None:
    """A worker stopped in the middle of its send, and its successor."""
    stuck = asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await stuck.wait()

    async with sending(dsn, silent, moved()) as (sender, server, books):
        first = asyncio.create_task(send(sender, books, transfer(), since=NOW))
        while not server.heard:
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert isinstance(await send(sender, books, transfer(), since=NOW), StillSending)
        assert len(server.heard) == 1
        stuck.set()


async def test_after_the_leave_the_successor_sends_under_the_same_key(dsn: str) -> None:
    limits = Limits(send_seconds=0.3)
    stuck = asyncio.Event()

    async def silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await stuck.wait()

    async with sending(dsn, silent, moved(), limits=limits) as (sender, server, books):
        first = asyncio.create_task(send(sender, books, transfer(), since=NOW))
        while not server.heard:
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        while isinstance(second := await send(sender, books, transfer(), since=NOW), StillSending):
            await asyncio.sleep(0.01)
        assert isinstance(second, Sent)
        assert isinstance(second.answer, Done)
        keys = [line for head in server.heard for line in head.split(b"\r\n") if line.startswith(b"idempotency-key")]
        assert len(keys) == 2
        assert len(set(keys)) == 1
        stuck.set()
    assert await broken(dsn) == {}


async def test_one_key_for_two_instructions_sends_nothing(dsn: str) -> None:
    async with sending(dsn, moved()) as (sender, server, books):
        await send(sender, books, transfer(), since=NOW)
        assert isinstance(await send(sender, books, transfer(cents=600), since=NOW), OtherInstruction)
        assert len(server.heard) == 1


async def test_an_adapter_that_breaks_is_an_unknown_outcome(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(*_arguments: object) -> None:
        raise ZeroDivisionError

    async with sending(dsn) as (sender, _server, books):
        monkeypatch.setattr(sender._providers["stripe"], "send", breaks)
        sent = await send(sender, books, transfer(), since=NOW)
        assert isinstance(sent, Sent)
        assert isinstance(sent.answer, Unknown)
    assert await fetchval(dsn, "SELECT answer FROM tally.attempt") == "unknown"


async def test_a_log_of_a_broken_adapter_shows_no_credentials(
    dsn: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Broken in the innermost place, where the credentials are local values."""

    async def breaks(*_arguments: object, **_more: object) -> None:
        raise ZeroDivisionError

    async with sending(dsn) as (sender, _server, books):
        monkeypatch.setattr(Http, "send", breaks)
        sent = await send(sender, books, transfer(), since=NOW)
        assert isinstance(sent, Sent)
        assert isinstance(sent.answer, Unknown)
    said = capfd.readouterr()
    assert "ZeroDivisionError" in said.out + said.err
    assert API_KEY not in said.out + said.err


async def test_what_is_done_is_not_sent_again(dsn: str) -> None:
    async with sending(dsn, moved()) as (sender, server, books):
        await send(sender, books, transfer(), since=NOW)
        assert await send(sender, books, transfer(), since=NOW) == AlreadyDone("tr_1")
        assert len(server.heard) == 1


async def test_breakers_are_told_to_the_others_and_taken_back(dsn: str) -> None:
    down = b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n"
    async with sending(dsn, *[down] * 5) as (sender, _server, books):
        for number in range(1, 7):
            sent = await send(sender, books, transfer(number), since=NOW)
        assert isinstance(sent, Sent)
        assert isinstance(sent.answer, Busy)
        assert sender.answers == {("stripe", "unknown"): 5, ("stripe", "busy"): 1}
        shown = Metrics([ProviderCounts(sender)]).exposition().decode()
        assert 'tally_provider_breaker_open{provider="stripe"} 1.0' in shown
        assert 'tally_provider_answers_total{answer="unknown",provider="stripe"} 5.0' in shown
        (told,) = await intents.breakers(books.database)
        assert (told.provider, told.state, told.reason) == ("stripe", "open", "status 503")
    assert await fetchval(dsn, "SELECT count(*) FROM tally.breaker") == 0


async def test_the_answer_is_heard_whatever_fails_after_it(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception would tell the caller that nothing was sent."""

    async def breaks(*_arguments: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(intents, "breaker_changed", breaks)
    async with sending(dsn, *[b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n"] * 5) as (sender, _server, books):
        for number in range(1, 6):
            sent = await send(sender, books, transfer(number), since=NOW)
            assert isinstance(sent, Sent)
            assert isinstance(sent.answer, Unknown)


async def test_no_secret_reaches_the_database(dsn: str) -> None:
    """Everything that is stored, as text and as bytes, is searched."""
    body = b'{"error":{"message":"no","client_secret":"pi_1_secret_of_a_customer"}}'
    leaking = b"HTTP/1.1 402 X\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    async with sending(dsn, moved(), leaking) as (sender, _server, books):
        for number in (1, 2):
            await send(sender, books, transfer(number), since=NOW)
    connection = await asyncpg.connect(dsn)
    tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'tally'")
    stored = ""
    for (table,) in tables:
        for row in await connection.fetch(f"SELECT * FROM tally.{table}"):
            stored += repr([bytes(value) if isinstance(value, memoryview) else value for value in row])
    await connection.close()
    assert "tr_1" in stored
    assert API_KEY not in stored
    assert "pi_1_secret_of_a_customer" not in stored
