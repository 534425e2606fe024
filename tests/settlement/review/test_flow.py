"""What persons decide about a payout, what needs a second one, and what the provider says later."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from tallystick.checkout import break_store as payment_break
from tallystick.ledger.decisions import Reviewed
from tallystick.ledger.outcome import Rejected
from tallystick.providers.words import Event, Movement
from tallystick.settlement.review.store import ReviewView
from tallystick.settlement.rules import ALARMS
from tallystick.settlement.store import SettlementView
from tallystick.webhooks import inbox
from tallystick.webhooks.flow import Events, SettlementNews
from tests import servers
from tests.ledgers import broken
from tests.providers.worlds import Control
from tests.sagas import LEASE, Told
from tests.settlements import A_WHILE, Shop, shop


@pytest_asyncio.fixture
async def till(embedded18: servers.Server, control: Control) -> AsyncIterator[Shop]:
    async with shop(embedded18.fresh_database(), control) as opened:
        yield opened
        assert await broken(opened.dsn) == {}


async def decided(outcome: Any) -> ReviewView:
    assert isinstance(outcome, Reviewed), outcome
    return msgspec.json.decode(outcome.body, type=ReviewView)


async def resolve(till: Shop, view: SettlementView, resolution: Any, key: str, **more: Any) -> Any:
    words = {"reason": "looked", "evidence": "dashboard", "transfer_id": None, "by": "ann", **more}
    return await till.reviews.resolve(till.tenant, view.id, resolution=resolution, idempotency_key=key, **words)


async def dispute(till: Shop, view: SettlementView, key: str = "dispute") -> Any:
    return await till.reviews.dispute(
        till.tenant, view.id, reason="says it never came", evidence="mail", by="ann", idempotency_key=key
    )


def news(view: SettlementView, state: Any, *, id_: str | None = None) -> Movement:
    return Movement(
        provider="stripe",
        purpose="transfer",
        id=id_ or view.transfer_id or "tr_none",
        amount_micros=view.amount_micros,
        currency=view.currency,
        state=state,
        status=state,
        reference=view.idempotency_key,
    )


async def paid(till: Shop, attribution: str = "a") -> SettlementView:
    view = await till.create(attribution, gross_micros=10_005_000, key=f"of-the-ledger-{attribution}")
    await till.tick()
    return await till.read(view.id)


async def failed(till: Shop, attribution: str = "a") -> SettlementView:
    till.control.plan("stripe.transfer:refused(account_closed)")
    view = await till.create(attribution)
    await till.tick()
    found = await till.read(view.id)
    assert found.status == "failed", found
    return found


async def test_a_disputed_payout_keeps_its_money_in_transit_until_it_is_decided(till: Shop) -> None:
    view = await paid(till)
    assert await till.balances() == {
        "clearing:EUR": -10_005_000,
        "paid_out:EUR:simulator": 10_000_000,
        "payable:EUR:amber": 5_000,
    }
    disputed = await decided(await dispute(till, view))
    assert (disputed.settlement.status, disputed.settlement.reason) == ("disputed", "says it never came")
    assert (await till.balances())["in_transit:EUR:simulator"] == 10_000_000
    confirmed = await decided(await resolve(till, view, "confirm", "r"))
    assert (confirmed.settlement.status, confirmed.settlement.transfer_id) == ("transferred", view.transfer_id)
    assert (await till.balances())["paid_out:EUR:simulator"] == 10_000_000
    assert [event.what for event in await till.history(view)] == ["disputed", "resolved_confirm"]


async def test_what_is_written_off_is_owed_again_and_not_sent_again(till: Shop) -> None:
    view = await paid(till)
    await dispute(till, view)
    off = await decided(await resolve(till, view, "write_off", "r"))
    assert off.settlement.status == "failed"
    assert (await till.balances())["payable:EUR:amber"] == 10_005_000
    assert (await till.tick()).sent == 0


async def test_a_decision_is_made_once_under_its_key(till: Shop) -> None:
    view = await paid(till)
    first = await dispute(till, view)
    assert isinstance(first, Reviewed)
    assert not first.is_replayed
    await decided(await resolve(till, view, "confirm", "r"))
    again = await dispute(till, view)
    assert again == Reviewed(first.body, is_replayed=True), "a replay is the first answer, whatever came after"
    assert (await till.read(view.id)).status == "transferred"
    other = await resolve(till, view, "confirm", "dispute")
    assert isinstance(other, Rejected)
    assert (other.code, set(other.fields)) == ("key_reused", {"action", "evidence", "reason"})
    taken = await resolve(till, view, "confirm", "of-the-ledger-a")
    assert isinstance(taken, Rejected)
    assert taken.code == "key_reused", "a key of the ledger is no key for a decision"


@pytest.mark.parametrize(
    ("made", "resolution", "code"),
    [
        (paid, "confirm", "not_resolvable"),
        (paid, "retry", "not_resolvable"),
        (failed, "write_off", "not_resolvable"),
    ],
)
async def test_only_what_is_disputed_is_resolved(till: Shop, made: Any, resolution: str, code: str) -> None:
    view = await made(till)
    refused = await resolve(till, view, resolution, "r")
    assert isinstance(refused, Rejected)
    assert refused.code == code


async def test_nobody_decides_without_reason_evidence_or_the_settlement(till: Shop) -> None:
    view = await paid(till)
    await dispute(till, view)
    for more, code in (
        ({"reason": " "}, "reason_missing"),
        ({"evidence": ""}, "evidence_missing"),
        ({"reason": "x" * 5_000}, "reason_invalid"),
        ({"evidence": "\ud800"}, "evidence_invalid"),
    ):
        refused = await resolve(till, view, "confirm", "r", **more)
        assert isinstance(refused, Rejected)
        assert refused.code == code
    stranger = msgspec.structs.replace(view, id="st_" + "0" * 32)
    refused = await dispute(till, stranger, "other")
    assert isinstance(refused, Rejected)
    assert refused.code == "settlement_unknown"


async def test_another_generation_needs_a_final_failure_and_a_second_person(till: Shop) -> None:
    view = await failed(till)
    asked = await decided(await resolve(till, view, "retry", "ask"))
    assert asked.settlement.status == "failed"
    assert asked.approval is not None
    again = await decided(await resolve(till, view, "retry", "ask-again", by="bob"))
    assert again.approval == asked.approval, "one question, however often it is asked"

    async def decide(by: str, key: str, decision: Any = "approve") -> Any:
        assert asked.approval is not None
        return await till.reviews.decide(
            till.tenant, asked.approval.id, decision=decision, reason="agreed", by=by, idempotency_key=key
        )

    own = await decide("ann", "own")
    assert isinstance(own, Rejected)
    assert own.code == "second_person_needed"
    approved = await decided(await decide("bob", "approve"))
    assert approved.settlement.status == "pending"
    assert approved.settlement.generation == 1
    assert approved.settlement.idempotency_key != view.idempotency_key
    late = await decide("cyd", "late", "reject")
    assert isinstance(late, Rejected)
    assert late.code == "already_decided"
    assert (await till.tick()).transferred == 1
    assert (await till.halves()).is_equal
    assert await till.attempts(view) == ["refused", "done"]


async def test_a_rejected_generation_leaves_everything_as_it_was(till: Shop) -> None:
    view = await failed(till)
    asked = await decided(await resolve(till, view, "retry", "ask"))
    assert asked.approval is not None
    rejected = await till.reviews.decide(
        till.tenant, asked.approval.id, decision="reject", reason="no", by="bob", idempotency_key="no"
    )
    assert (await decided(rejected)).settlement == view
    assert (await till.tick()).sent == 0


@pytest.mark.parametrize("state", ["failed", "returned"])
async def test_a_payout_that_came_back_is_disputed_and_its_money_is_in_transit(till: Shop, state: str) -> None:
    view = await paid(till)
    assert await till.reviews.observe("simulator", news(view, "moved")) is None
    assert await till.reviews.observe("simulator", news(view, state)) == view.id
    assert await till.reviews.observe("simulator", news(view, state)) is None, "the same news, doubled"
    after = await till.read(view.id)
    assert (after.status, after.reason) == ("disputed", f"{state}_after_transferred")
    assert (await till.balances())["in_transit:EUR:simulator"] == 10_000_000
    # The same key would only find the first transfer; a new one needs the loss written off, and a second person.
    refused = await resolve(till, view, "retry", "r1")
    assert isinstance(refused, Rejected)
    assert refused.code == "not_retryable"
    await decided(await resolve(till, view, "write_off", "r2"))
    asked = await decided(await resolve(till, view, "retry", "r3"))
    assert asked.approval is not None
    approved = await till.reviews.decide(
        till.tenant, asked.approval.id, decision="approve", reason="yes", by="bob", idempotency_key="yes"
    )
    assert (await decided(approved)).settlement.generation == 1
    assert (await till.tick()).transferred == 1


async def test_done_and_never_returned_cannot_get_another_key_even_by_two_persons(till: Shop) -> None:
    """Two who conspire, or err together, would pay a second time what the provider says it paid."""
    view = await paid(till)
    await dispute(till, view)
    await decided(await resolve(till, view, "write_off", "r"))
    refused = await resolve(till, view, "retry", "ask")
    assert isinstance(refused, Rejected)
    assert refused.code == "not_retryable"
    # Nor behind our back: approved by hand, the database still refuses the key.
    connection = await asyncpg.connect(till.dsn)
    try:
        await connection.execute(
            "INSERT INTO tally.approval SELECT tenant_id, gen_random_uuid(), id, 'new_generation', 1, 'r', 'e', 'ann',"
            " now(), 'approved', 'bob', now(), 'y' FROM tally.settlement"
        )
        with pytest.raises(asyncpg.PostgresError, match="final failure"):
            await connection.execute("UPDATE tally.intent SET ended = true")
    finally:
        await connection.close()
    assert (await till.read(view.id)).generation == 0


async def test_a_second_movement_for_one_payout_is_seen(till: Shop) -> None:
    view = await paid(till)
    assert await till.reviews.observe("simulator", news(view, "moved", id_="tr_second")) == view.id
    assert (await till.read(view.id)).reason == "moved_twice"
    async with till.database.owning() as connection:
        assert await connection.fetchval("SELECT sum(value) FROM tally.settlement_count WHERE name = 'doubles'") == 1


async def test_an_earlier_generation_that_moved_after_all_is_seen(till: Shop) -> None:
    view = await failed(till)
    asked = await decided(await resolve(till, view, "retry", "ask"))
    assert asked.approval is not None
    await till.reviews.decide(
        till.tenant, asked.approval.id, decision="approve", reason="y", by="bob", idempotency_key="y"
    )
    late = news(view, "moved", id_="tr_first")
    assert await till.reviews.observe("simulator", late) == view.id
    assert (await till.read(view.id)).reason == "earlier_generation_moved"
    assert (await till.tick()).sent == 0


async def test_a_failure_that_moved_after_all_takes_its_money_back_from_payable(till: Shop) -> None:
    view = await failed(till)
    assert await till.reviews.observe("simulator", news(view, "moved", id_="tr_x")) == view.id
    assert (await till.read(view.id)).reason == "moved_after_failed"
    assert (await till.balances())["in_transit:EUR:simulator"] == 12_340_000


async def test_a_stranger_s_movement_means_nothing(till: Shop) -> None:
    view = await paid(till)
    for reference in ("", "nonsense", "0" * 64, "00000000-0000-4000-8000-000000000000"):
        stranger = msgspec.structs.replace(news(view, "returned", id_="tr_other"), reference=reference)
        assert await till.reviews.observe("simulator", stranger) is None


async def test_a_retry_keeps_the_key_and_asks_first(till: Shop) -> None:
    """A person may be wrong: the provider's books are asked again before anything is sent."""
    till.control.plan("stripe.transfer:execute_then_drop")
    view = await till.create("a")
    await till.tick()
    await till.pass_time(A_WHILE * 100)
    assert (await till.tick()).transferred == 1, "found, though the horizon is long past"
    till.control.plan("stripe.transfer:drop_before")
    lost = await till.create("b")
    await till.tick()
    await till.pass_time(A_WHILE * 100)
    assert (await till.tick()).disputed == 1, "absent, and past the horizon"
    assert (await till.read(lost.id)).reason == "past_the_horizon"
    retried = await decided(await resolve(till, lost, "retry", "r"))
    assert (retried.settlement.status, retried.settlement.generation) == ("processing", 0)
    ticked = await till.tick()
    assert (ticked.looked_up, ticked.sent, ticked.disputed) == (1, 0, 1)
    assert (await till.read(view.id)).status == "transferred"


async def test_one_transfer_cannot_be_confirmed_for_two_settlements(till: Shop) -> None:
    """A person who copies the wrong line of a dashboard would close a debt that was never paid."""
    first = await paid(till, "a")
    second = await failed(till, "b")
    await dispute(till, second)
    refused = await resolve(till, second, "confirm", "r", transfer_id=first.transfer_id)
    assert isinstance(refused, Rejected)
    assert refused.code == "transfer_id_taken"
    assert first.id not in str(refused)
    assert (await till.read(second.id)).status == "disputed"


@pytest.mark.parametrize("is_alarm", [True, False])
async def test_an_alarm_about_a_payout_that_is_nobodys_here_is_a_persons(till: Shop, *, is_alarm: bool) -> None:
    """Somebody paid it by hand, or a life that was lost: that it failed is told to us alone."""
    ((alarming, word),) = ALARMS.items()
    stranger = msgspec.structs.replace(news(await paid(till), "moved", id_="55"), reference="", provider="wise")
    for number in range(2):
        event = Event(
            provider="wise",
            type=alarming if is_alarm else "transfers#state-change",
            dedup_key=f"told-{number}",
            change_key=f"told-{number}",
            object_id="55",
            occurred_at=None,
            movement=stranger,
            body=b"{}",
        )
        async with till.database.writing() as connection:
            await inbox.append(connection, [Told("wise", (event,))])
        heard = SettlementNews(till.reviews, till.sender.witness)
        events = Events(till.database, {"transfer": heard}, lease=LEASE, by="one")
        assert (await events.run_once()).ok == 1
    found = await payment_break.list_breaks(till.database, is_all=False, most=10)
    told = [("missing_here", "wise", "transfer", "55", word)] if is_alarm else []
    assert [(one.kind, one.provider, one.purpose, one.object_id, one.word) for one in found] == told


async def test_what_somebody_moves_in_his_own_account_is_no_payout_of_ours(till: Shop) -> None:
    """With our key beside it: who has a connected account could stop everybody's payouts."""
    view = await till.create("a")
    forged = news(view, "moving", id_="acct_theirs/po_1")
    assert await till.reviews.observe("simulator", forged) is None
    assert (await till.read(view.id)).status == "pending"
    ours = news(view, "moving", id_="po_1")
    assert await till.reviews.observe("simulator", ours) is not None
    assert (await till.read(view.id)).status == "disputed"
