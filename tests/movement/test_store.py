"""Intents in the database: what it holds against raw SQL, and against two senders at once."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from tallystick.ledger.claims import Tenant
from tallystick.movement import store as intents
from tallystick.movement.rules import (
    Absence,
    AlreadyDone,
    AskFirst,
    Attempt,
    OtherAccount,
    OtherInstruction,
    PastHorizon,
    StillSending,
    Withheld,
)
from tallystick.movement.store import Answered, Asking
from tallystick.movement.terms import ProviderTerms
from tallystick.providers.stripe.facts import FACTS
from tallystick.providers.words import (
    Answer,
    Busy,
    Done,
    Exchange,
    Lookup,
    Movement,
    Refused,
    Transfer,
    Unknown,
)
from tests import servers
from tests.ledgers import Ledger, broken, fetchval, ledger

DONE = Done(
    movement=Movement(
        provider="stripe",
        purpose="transfer",
        id="tr_1",
        amount_micros=1_000_000,
        currency="USD",
        state="moved",
        status="paid",
    ),
    evidence=(Exchange(asked="POST /v1/transfers", status=200, request_id="req_1"),),
)


@pytest.fixture(params=["embedded18", "postgres15"])
async def books(request: pytest.FixtureRequest) -> AsyncIterator[Ledger]:
    server: servers.Server = request.getfixturevalue(request.param)
    async with ledger(server.fresh_database()) as opened:
        yield opened


def asking(tenant: Tenant, number: int = 1, *, micros: int = 1_000_000, **more: Any) -> Asking:
    transfer = Transfer(key=number.to_bytes(32), destination="acct_1", amount_micros=micros, currency="USD")
    facts = msgspec.structs.replace(
        FACTS,
        key_horizon=FACTS.key_margin + more.pop("remembered", timedelta(hours=23)),
        longest_in_flight=more.pop("settles_in", timedelta(minutes=2)),
        list_lag=timedelta(),
    )
    values = {
        "token": uuid4(),
        "permit_seconds": 60,
        "since": datetime.now(UTC),
        "mark": "settlement/stl_1",
        **more,
    }
    terms = ProviderTerms(
        name="stripe",
        purpose="transfer",
        account=values.pop("account", "live"),
        facts=facts,
        lookup=Lookup.EXACT,
        refusal=lambda _instruction: None,
    )
    return Asking(tenant=tenant, terms=terms, instruction=transfer, **values)


async def begin(books: Ledger, *items: Asking) -> list[Attempt | Withheld]:
    async with books.database.writing() as connection:
        return await intents.begin(connection, items)


async def answer(books: Ledger, attempt: object, given: Answer = DONE) -> bool:
    assert isinstance(attempt, Attempt)
    async with books.database.writing() as connection:
        (recorded,) = await intents.record_answers(connection, [Answered(attempt, given)])
    return recorded


BUSY = Busy(code="rate_limit", message="", after_seconds=1)


async def test_the_first_send_is_dated_once_and_for_all(books: Ledger) -> None:
    (first,) = await begin(books, asking(books.tenant))
    await answer(books, first, BUSY)
    (second,) = await begin(books, asking(books.tenant))
    assert isinstance(first, Attempt)
    assert isinstance(second, Attempt)
    assert (first.number, second.number) == (1, 2)
    assert second.first_sent_at == first.first_sent_at
    assert second.not_after > first.not_after


async def test_every_attempt_has_the_mark_of_its_intent(books: Ledger) -> None:
    """Whatever its asker says by then: a known key with other bytes is an error at Stripe."""
    (first,) = await begin(books, asking(books.tenant))
    await answer(books, first, BUSY)
    (second,) = await begin(books, asking(books.tenant, mark="settlement/another"))
    assert isinstance(first, Attempt)
    assert isinstance(second, Attempt)
    installation = await fetchval(books.dsn, "SELECT id::text FROM tally.installation")
    assert first.mark == second.mark == f"{installation}/settlement/stl_1"


async def test_while_one_may_write_another_must_not(books: Ledger) -> None:
    (first,) = await begin(books, asking(books.tenant))
    assert isinstance(first, Attempt)
    assert await begin(books, asking(books.tenant)) == [StillSending(first.not_after)]
    await answer(books, first, BUSY)
    assert isinstance((await begin(books, asking(books.tenant)))[0], Attempt)


async def test_a_leave_that_ran_out_makes_room(books: Ledger) -> None:
    await begin(books, asking(books.tenant, permit_seconds=0))
    ((second),) = await begin(books, asking(books.tenant))
    assert isinstance(second, Attempt)
    assert second.number == 2


async def test_in_one_batch_too_only_one_of_two_may_write(books: Ledger) -> None:
    first, second, third = await begin(books, asking(books.tenant), asking(books.tenant), asking(books.tenant, 2))
    assert isinstance(first, Attempt)
    assert second == StillSending(first.not_after)
    assert isinstance(third, Attempt)


async def test_of_many_at_once_one_may_write(books: Ledger) -> None:
    answers = await asyncio.gather(*(begin(books, asking(books.tenant)) for _ in range(5)))
    assert sorted(type(found).__name__ for (found,) in answers) == ["Attempt", *["StillSending"] * 4]


async def test_a_batch_run_again_after_a_lost_commit_finds_its_own_attempts(books: Ledger) -> None:
    """Otherwise it would wait for itself until the permit runs out."""
    items = [asking(books.tenant, number, token=uuid4()) for number in range(1, 4)]
    first = await begin(books, *items)
    assert await begin(books, *items) == first
    assert await fetchval(books.dsn, "SELECT count(*) FROM tally.attempt") == 3


async def test_a_key_covers_one_instruction_for_ever(books: Ledger) -> None:
    (first,) = await begin(books, asking(books.tenant))
    assert isinstance(first, Attempt)
    await answer(books, first)
    assert await begin(books, asking(books.tenant, micros=2_000_000)) == [OtherInstruction(first.first_sent_at)]
    assert await fetchval(books.dsn, "SELECT count(*) FROM tally.attempt") == 1


async def test_an_answer_is_recorded_once_and_a_later_one_changes_nothing(books: Ledger) -> None:
    (attempt,) = await begin(books, asking(books.tenant))
    assert await answer(books, attempt)
    assert await answer(books, attempt)
    assert not await answer(books, attempt, BUSY)
    assert isinstance(attempt, Attempt)
    (view,) = await intents.read(books.database, books.tenant, attempt.key)
    assert [(one.answer, one.provider_id) for one in view.attempts] == [("done", "tr_1")]
    assert b"req_1" in (view.attempts[0].evidence or b"")


async def test_an_answer_to_an_attempt_that_is_not_there_is_not_recorded(books: Ledger) -> None:
    (attempt,) = await begin(books, asking(books.tenant))
    assert isinstance(attempt, Attempt)
    assert not await answer(books, msgspec.structs.replace(attempt, number=7))


@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b", "x" * 1000])
async def test_an_odd_text_does_not_cost_us_the_answer(books: Ledger, odd: str) -> None:
    (attempt,) = await begin(books, asking(books.tenant))
    assert await answer(books, attempt, Refused(code=odd, message=""))


async def test_what_is_done_is_never_sent_again(books: Ledger) -> None:
    (attempt,) = await begin(books, asking(books.tenant))
    await answer(books, attempt)
    assert await begin(books, asking(books.tenant)) == [AlreadyDone("tr_1")]
    assert await fetchval(books.dsn, "SELECT count(*) FROM tally.attempt") == 1


@pytest.mark.parametrize("given", [Unknown(code="unanswered", message=""), None])
async def test_what_may_have_run_is_not_sent_past_the_horizon(books: Ledger, given: Unknown | None) -> None:
    (attempt,) = await begin(books, asking(books.tenant, permit_seconds=0))
    assert isinstance(attempt, Attempt)
    if given is not None:
        await answer(books, attempt, given)
    (again,) = await begin(books, asking(books.tenant, permit_seconds=0))
    assert isinstance(again, Attempt)
    await answer(books, again, BUSY)
    # Also when a later attempt is known not to have run.
    late = asking(books.tenant, remembered=timedelta())
    assert await begin(books, late) == [PastHorizon(attempt.first_sent_at)]


async def test_what_never_ran_may_be_sent_past_the_memory_once_it_is_proven_absent(books: Ledger) -> None:
    (attempt,) = await begin(books, asking(books.tenant))
    await answer(books, attempt, BUSY)
    late: dict[str, Any] = {"since": datetime.now(UTC) - timedelta(days=1), "settles_in": timedelta(days=-1)}
    (asked,) = await begin(books, asking(books.tenant, **late))
    assert isinstance(asked, AskFirst)
    absence = Absence(key=(1).to_bytes(32), read_at=datetime.now(UTC), lookup=Lookup.EXACT, since=asked.since)
    assert isinstance((await begin(books, asking(books.tenant, absence=absence, **late)))[0], Attempt)


async def test_an_intent_stays_with_the_account_it_was_first_sent_with(books: Ledger) -> None:
    """With other credentials the provider's books are others: what happened there would be done again here."""
    (attempt,) = await begin(books, asking(books.tenant, account="test"))
    await answer(books, attempt, BUSY)
    assert isinstance(attempt, Attempt)
    assert await begin(books, asking(books.tenant)) == [OtherAccount("test", attempt.first_sent_at)]


async def test_sending_and_being_answered_are_journaled_in_their_own_commit(books: Ledger) -> None:
    (attempt,) = await begin(books, asking(books.tenant))
    await answer(books, attempt)
    subjects = await fetchval(books.dsn, "SELECT array_agg(subject ORDER BY number) FROM tally.journal")
    assert subjects == ["attempt.sent", "attempt.answered"]
    assert await broken(books.dsn) == {}


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM tally.intent",
        "DELETE FROM tally.attempt",
        "TRUNCATE tally.intent CASCADE",
        "UPDATE tally.intent SET first_sent_at = first_sent_at + interval '1 hour'",
        "UPDATE tally.intent SET instruction = 'other'",
        "UPDATE tally.intent SET purpose = 'payout'",
        "UPDATE tally.intent SET account = 'other'",
        "UPDATE tally.intent SET attempts = 0",
        "UPDATE tally.attempt SET not_after = not_after + interval '1 hour'",
        "UPDATE tally.attempt SET sent_at = sent_at - interval '1 hour'",
        "UPDATE tally.attempt SET answer = 'refused'",
        "UPDATE tally.attempt SET answer = NULL, answered_at = NULL",
        (
            "INSERT INTO tally.attempt (tenant_id, provider, key, number, token, sent_at, not_after)"
            " SELECT tenant_id, 'wise', key, 1, token, sent_at, not_after FROM tally.attempt"
        ),
        "INSERT INTO tally.attempt SELECT * FROM tally.attempt",
        (
            "INSERT INTO tally.attempt"
            " (tenant_id, provider, key, number, token, sent_at, not_after, answered_at, answer)"
            " SELECT tenant_id, provider, key, 2, token, sent_at, not_after, now(), 'done' FROM tally.attempt"
        ),
    ],
)
async def test_the_database_holds_the_rules_itself(books: Ledger, statement: str) -> None:
    (attempt,) = await begin(books, asking(books.tenant))
    await answer(books, attempt)
    with pytest.raises(asyncpg.PostgresError):
        await fetchval(books.dsn, statement)


@pytest.mark.parametrize(
    "change",
    [
        "tenant_id = tenant_id + 1",
        "provider = 'wise'",
        "key = sha256(key)",
        "number = 2",
        "token = gen_random_uuid()",
        "sent_at = sent_at - interval '1 hour'",
        "not_after = not_after + interval '1 hour'",
    ],
)
async def test_what_was_sent_stays_so_before_there_is_an_answer(books: Ledger, change: str) -> None:
    await begin(books, asking(books.tenant))
    with pytest.raises(asyncpg.PostgresError) as raised:
        await fetchval(books.dsn, f"UPDATE tally.attempt SET {change}")
    assert raised.value.sqlstate == "TS004"


async def test_another_tenant_sees_nothing_of_it(books: Ledger) -> None:
    (attempt,) = await begin(books, asking(books.tenant))
    assert isinstance(attempt, Attempt)
    async with ledger(books.dsn, tenant_name="other") as other:
        assert await intents.read(other.database, other.tenant, attempt.key) == []
        async with other.database.reading(other.tenant.number) as connection:
            assert await connection.fetchval("SELECT count(*) FROM tally.intent") == 0
            assert await connection.fetchval("SELECT count(*) FROM tally.attempt") == 0
        assert isinstance((await begin(other, asking(other.tenant)))[0], Attempt)


DAMAGE = [
    "UPDATE tally.intent SET attempts = 5",
    "DELETE FROM tally.attempt WHERE number = 1",
    "UPDATE tally.intent SET first_sent_at = first_sent_at + interval '1 hour'",
    "UPDATE tally.attempt SET sent_at = sent_at - interval '1 minute' WHERE number = 2",
    "UPDATE tally.attempt SET answered_at = NULL, answer = NULL WHERE number = 1",
    "UPDATE tally.attempt SET provider_id = 'tr_2' WHERE provider_id IS NOT NULL",
    "DELETE FROM tally.journal WHERE subject = 'attempt.sent'",
    "DELETE FROM tally.journal WHERE subject = 'attempt.answered'",
    "UPDATE tally.attempt SET answer = 'done', provider_id = 'tr_0' WHERE number = 1",
]


@pytest.mark.parametrize("statement", DAMAGE)
async def test_verify_sees_what_was_done_to_an_intent(books: Ledger, statement: str) -> None:
    for given in (BUSY, DONE):
        (attempt,) = await begin(books, asking(books.tenant))
        await answer(books, attempt, given)
    assert await broken(books.dsn) == {}
    connection = await asyncpg.connect(books.dsn)
    for switch in ("DISABLE", "ENABLE"):
        for table in ("intent", "attempt", "journal"):
            await connection.execute(f"ALTER TABLE tally.{table} {switch} TRIGGER USER")
        if switch == "DISABLE":
            await connection.execute(statement)
    await connection.close()
    assert (await broken(books.dsn)).get("intents", 0) > 0
