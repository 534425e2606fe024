"""What a hostile reviewer once got away with: each of these paid twice, lied, or stopped everybody."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from tallystick.access.store import ensure_tenant
from tallystick.ledger.decisions import Reviewed
from tallystick.ledger.outcome import Rejected
from tallystick.providers.steady import steady
from tallystick.providers.words import Busy, Done, Movement, Sending, Transfer
from tallystick.settlement.review.store import ReviewView
from tallystick.settlement.store import SettlementView
from tests import servers
from tests.ledgers import broken
from tests.providers.worlds import Control
from tests.settlements import A_DAY, A_WHILE, Shop, shop, superuser


@pytest_asyncio.fixture
async def till(embedded18: servers.Server, control: Control) -> AsyncIterator[Shop]:
    async with shop(embedded18.fresh_database(), control) as opened:
        yield opened
        assert (await opened.halves()).doubled == []
        assert await broken(opened.dsn) == {}


async def resolve(till: Shop, view: SettlementView, resolution: Any, key: str, **more: Any) -> Any:
    words = {"reason": "looked", "evidence": "dashboard", "transfer_id": None, "by": "ann", **more}
    return await till.reviews.resolve(till.tenant, view.id, resolution=resolution, idempotency_key=key, **words)


async def dispute(till: Shop, view: SettlementView, key: str) -> None:
    disputed = await till.reviews.dispute(
        till.tenant, view.id, reason="doubt", evidence="mail", by="ann", idempotency_key=key
    )
    assert isinstance(disputed, Reviewed), disputed


async def approve(till: Shop, view: SettlementView, key: str) -> Any:
    """Ann asks for another generation, Bob agrees."""
    asked = await resolve(till, view, "retry", f"{key}-ask")
    if isinstance(asked, Rejected):
        return asked
    approval = msgspec.json.decode(asked.body, type=ReviewView).approval
    assert approval is not None
    return await till.reviews.decide(
        till.tenant, approval.id, decision="approve", reason="agreed", by="bob", idempotency_key=f"{key}-ok"
    )


async def roll_forward(till: Shop, view: SettlementView) -> Movement:
    """The provider carries an earlier request out after all."""
    now = datetime.now(UTC)
    transfer = Transfer(
        key=bytes.fromhex(view.idempotency_key),
        destination=view.destination,
        amount_micros=view.amount_micros,
        currency=view.currency,
        description=view.id,
    )
    permit = Sending(first_sent_at=now, not_after=now, sendable_until=steady() + 10)
    answer = await till.providers["simulator"].send(transfer, permit)
    assert isinstance(answer, Done), answer
    return answer.movement


async def refused(till: Shop, attribution: str = "a") -> SettlementView:
    till.control.plan("stripe.transfer:refused(account_closed)")
    view = await till.create(attribution)
    await till.tick()
    return await till.read(view.id)


def code_of(outcome: Any) -> str:
    assert isinstance(outcome, Rejected), outcome
    return outcome.code


async def test_one_person_cannot_send_a_generation_when_an_earlier_one_moved(till: Shop) -> None:
    view = await refused(till)
    await till.pass_time(A_DAY * 2)
    assert isinstance(await approve(till, view, "g1"), Reviewed)
    moved = await roll_forward(till, view)
    assert await till.reviews.observe("simulator", moved) == view.id
    assert code_of(await resolve(till, view, "retry", "r")) == "not_retryable"
    assert (await till.tick()).sent == 0


async def test_what_was_refused_and_moved_after_all_is_not_tried_again(till: Shop) -> None:
    view = await refused(till)
    await till.pass_time(A_DAY * 2)
    await till.reviews.observe("simulator", await roll_forward(till, view))
    await till.pass_time(A_DAY * 2)
    assert code_of(await resolve(till, view, "retry", "r")) == "not_retryable"
    assert (await till.tick()).sent == 0
    assert (await till.read(view.id)).status == "disputed"


async def test_what_a_lookup_found_gets_no_other_key(till: Shop) -> None:
    till.control.plan("stripe.transfer:execute_then_drop@1")
    made = await till.create("a")
    await till.tick()
    await till.pass_time(A_WHILE)
    await till.tick()
    view = await till.read(made.id)
    assert (view.status, await till.attempts(view)) == ("transferred", ["unknown"])
    await dispute(till, view, "d")
    await resolve(till, view, "write_off", "w")
    assert code_of(await approve(till, view, "g1")) == "not_retryable"


async def test_what_came_back_once_does_not_open_the_next_generation_but_one(till: Shop) -> None:
    view = await till.create("a")
    await till.tick()
    view = await till.read(view.id)
    assert view.transfer_id is not None
    till.control.call("POST", "act", {"dialect": "stripe", "action": "reverse", "id": view.transfer_id})
    back = Movement(
        provider="stripe",
        purpose="transfer",
        id=view.transfer_id,
        amount_micros=view.amount_micros,
        currency=view.currency,
        state="returned",
        status="reversed",
        reference=view.idempotency_key,
    )
    assert await till.reviews.observe("simulator", back) == view.id
    await resolve(till, view, "write_off", "w0")
    assert isinstance(await approve(till, view, "g1"), Reviewed)
    await till.tick()
    second = await till.read(view.id)
    assert (second.status, second.generation) == ("transferred", 1)
    await dispute(till, second, "d1")
    await resolve(till, second, "write_off", "w1")
    assert code_of(await approve(till, second, "g2")) == "not_retryable"


async def test_an_answer_that_shows_a_return_opens_another_generation(till: Shop) -> None:
    """Else what came back could never be paid again."""
    simulator: Any = till.providers["simulator"]
    original = simulator.send

    async def returned(transfer: Transfer, leave: Sending) -> Any:
        answer = await original(transfer, leave)
        state = msgspec.structs.replace(answer.movement, state="returned", status="reversed")
        till.control.call("POST", "act", {"dialect": "stripe", "action": "reverse", "id": answer.movement.id})
        return msgspec.structs.replace(answer, movement=state)

    simulator.send = returned
    view = await till.create("a")
    await till.tick()
    simulator.send = original
    assert (await till.read(view.id)).reason == "returned"
    await resolve(till, view, "write_off", "w")
    assert isinstance(await approve(till, view, "g1"), Reviewed)
    assert (await till.tick()).transferred == 1


async def test_two_confirms_at_once_cannot_share_one_movement(till: Shop) -> None:
    first, second = await refused(till, "a"), await refused(till, "b")
    for view in (first, second):
        await dispute(till, view, f"d-{view.id}")
    outcomes = await asyncio.gather(
        *(resolve(till, view, "confirm", f"c-{view.id}", transfer_id="tr_same") for view in (first, second))
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Rejected", "Reviewed"]


async def fill(till: Shop, tenant: int, balance: int) -> None:
    """Somebody without our guards fills the account that everything of a tenant goes through."""
    connection = await asyncpg.connect(superuser(till.dsn))
    try:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(
            "UPDATE tally.account SET balance_micros = $2 WHERE tenant_id = $1 AND id LIKE 'settlement:in_transit:%'",
            tenant,
            balance,
        )
    finally:
        await connection.close()


async def test_one_tenant_s_full_account_stops_nobody_else(till: Shop) -> None:
    """In transit overflows at the claim. His payouts wait; the others are paid."""
    assert code_of(await till.propose("huge", gross_micros=9 * 10**18)) == "amount_overflow"
    other = await ensure_tenant(till.database, "other")
    await till.propose("poor", tenant=other, gross_micros=10**15, squad_id="x")
    await fill(till, other.number, 2**63 - 2)
    view = await till.create("rich")
    ticked = await till.tick()
    assert ticked.transferred == 1
    assert (await till.read(view.id)).status == "transferred"
    await fill(till, other.number, 0)


async def test_a_tick_ends_while_the_provider_is_away(till: Shop) -> None:
    """What becomes due while it runs is for the next one."""
    simulator: Any = till.providers["simulator"]

    async def away(_transfer: Transfer, _leave: Sending) -> Busy:
        return Busy(code="rate_limit", message="", after_seconds=0.0)

    simulator.send = away
    await till.create_many(600)
    async with asyncio.timeout(60):
        ticked = await till.tick()
    assert (ticked.claimed, ticked.sent) == (600, 600)


async def test_a_cancelled_tick_claims_nothing_more(till: Shop) -> None:
    simulator: Any = till.providers["simulator"]
    begun = 0
    reached = asyncio.Event()

    async def never(_transfer: Transfer, _leave: Sending) -> Busy:
        nonlocal begun
        begun += 1
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    simulator.send = never
    await till.create_many(1_200)
    tick = asyncio.create_task(till.tick())
    await reached.wait()
    # Both lanes have claimed what they claim at once.
    await asyncio.sleep(0)
    tick.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tick
    before = begun
    await asyncio.sleep(0)
    assert begun == before
    async with till.database.owning() as connection:
        assert await connection.fetchval("SELECT count(*) FROM tally.settlement_state WHERE status = 'pending'") >= 200
