"""The library as a user meets it: async, synchronous, with kinds of his own, on PostgreSQL and MariaDB."""

import asyncio
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

import tallystick
from tallystick import sync
from tallystick.errors import CallerTransaction, Misconfigured
from tallystick.ledger.outcome import Committed, Duplicate, Rejected
from tests import servers


class Royalty(tallystick.Operation, frozen=True, tag_field="kind", tag="royalty"):
    """A user's own kind: an amount split between artist and label."""

    listener: str
    artist: str
    label: str
    amount_micros: int


def _split(operation: Any, _reading: tallystick.Reading) -> list[tallystick.Leg]:
    share = operation.amount_micros * 7 // 10
    return [
        tallystick.Leg(operation.listener, -operation.amount_micros, "USD"),
        tallystick.Leg(operation.artist, share, "USD"),
        tallystick.Leg(operation.label, operation.amount_micros - share, "USD"),
    ]


ROYALTY = tallystick.Kind(
    Royalty, lambda operation, _transactions: (operation.listener, operation.artist, operation.label), _split
)


@pytest.mark.parametrize("server", ["embedded18", "postgres15", "mariadb"])
async def test_the_library_works_on_every_engine(server: str, request: pytest.FixtureRequest) -> None:
    found: servers.Server = request.getfixturevalue(server)
    async with tallystick.open(database_url=found.fresh_database(), kinds=[ROYALTY]) as tally:
        await tally.put_account("listener", currency="USD", floor_micros=None)
        for name in ("artist", "label"):
            await tally.put_account(name, currency="USD")
        play = Royalty(listener="listener", artist="artist", label="label", amount_micros=10)
        done = await tally.submit(play, idempotency_key="play-1")
        assert isinstance(done, Committed)
        again = await tally.submit(play, idempotency_key="play-1")
        assert isinstance(again, Duplicate)
        assert again.body == done.body
        artist = await tally.account("artist")
        assert not isinstance(artist, Rejected)
        assert (artist.balance_micros, artist.entries) == (7, 1)
        entries = await tally.entries("label")
        assert not isinstance(entries, Rejected)
        assert [(entry.amount_micros, entry.transaction) for entry in entries] == [(3, done.transaction.id)]
        unknown = await tally.account("nobody")
        assert isinstance(unknown, Rejected)
        assert unknown.code == "account_unknown"


async def test_the_balance_at_a_moment_is_the_one_of_the_last_entry_before_it(
    embedded18: servers.Server,
) -> None:
    async with tallystick.open(database_url=embedded18.fresh_database()) as tally:
        await tally.put_account("a", currency="USD", floor_micros=None)
        await tally.put_account("b", currency="USD")
        before = datetime.now(UTC)
        moments = []
        for number in range(40):
            move = tallystick.Transfer(debit="a", credit="b", amount_micros=1, currency="USD")
            done = await tally.submit(move, idempotency_key=f"k{number}")
            assert isinstance(done, Committed)
            moments.append(done.transaction.at)
        assert await tally.balance_at("b", before) == 0
        for number, at in enumerate(moments, start=1):
            assert await tally.balance_at("b", at) == number
        assert await tally.balance_at("b", datetime.now(UTC)) == 40


async def test_a_tenant_that_does_not_exist_is_named(embedded18: servers.Server) -> None:
    with pytest.raises(Misconfigured, match="nobody"):
        async with tallystick.open(database_url=embedded18.fresh_database(), tenant="nobody"):
            pass


async def test_a_caller_transaction_on_mariadb_is_refused(mariadb: servers.Server) -> None:
    async with tallystick.open(database_url=mariadb.fresh_database()) as tally:
        move = tallystick.Transfer(debit="a", credit="b", amount_micros=1, currency="USD")
        with pytest.raises(CallerTransaction, match="PostgreSQL"):
            await tally.submit(move, idempotency_key="k", connection=object())  # type: ignore[arg-type]


def test_the_synchronous_twin_serves_many_threads(embedded18: servers.Server) -> None:
    """Fifty threads, ten keys: each key happens once, and every thread hears of it."""
    with sync.open(database_url=embedded18.fresh_database()) as tally:
        tally.put_account("a", currency="USD", floor_micros=None)
        tally.put_account("b", currency="USD")
        answers: list[object] = []

        def work(number: int) -> None:
            move = tallystick.Transfer(debit="a", credit="b", amount_micros=1, currency="USD")
            answers.append(tally.submit(move, idempotency_key=f"k{number % 10}"))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(isinstance(answer, Committed) for answer in answers) == 10
        assert sum(isinstance(answer, Duplicate) for answer in answers) == 40
        found = tally.account("b")
        assert not isinstance(found, Rejected)
        assert found.balance_micros == 10
        assert tally.balance_at("b", datetime.now(UTC)) == 10
        many = tally.submit_many(
            [(tallystick.Transfer(debit="a", credit="b", amount_micros=1, currency="USD"), f"k{i}") for i in range(12)]
        )
        assert [type(answer) for answer in many] == [Duplicate] * 10 + [Committed] * 2


def test_the_synchronous_twin_raises_what_went_wrong_at_the_start() -> None:
    with pytest.raises(tallystick.Unreachable), sync.open(database_url="postgresql://nobody@127.0.0.1:1/x"):
        pass


async def test_leaving_the_block_answers_what_is_queued(embedded18: servers.Server) -> None:
    async with tallystick.open(database_url=embedded18.fresh_database()) as tally:
        await tally.put_account("a", currency="USD", floor_micros=None)
        await tally.put_account("b", currency="USD")
        move = tallystick.Transfer(debit="a", credit="b", amount_micros=1, currency="USD")
        calls = [asyncio.create_task(tally.submit(move, idempotency_key=f"k{i}")) for i in range(300)]
        await asyncio.sleep(0)
    answers = await asyncio.gather(*calls)
    assert all(isinstance(answer, Committed) for answer in answers)
