"""The paper on two-pass settlement, step by step: each test is one of its sentences, held against two sets of books.

Sections 2 to 4 are what it describes, 5 what it tolerates, 6 what it does not and Tallystick does.
"""

import asyncio
from datetime import timedelta

import asyncpg
import msgspec
import pytest

from tallystick.errors import TallystickError
from tallystick.keys.derived import settlement_key
from tallystick.ledger.outcome import Rejected
from tallystick.movement.steps import Patience
from tallystick.providers.words import Movement
from tallystick.reconciliation.flow import reconcile
from tallystick.settings import Limits
from tallystick.settlement.review.store import ReviewView
from tallystick.settlement.store import SettlementView, figures
from tests import servers
from tests.acceptance.function import terminated, terminated_once
from tests.faults.wire import Cut, wire
from tests.ledgers import broken
from tests.providers.worlds import Control
from tests.settlements import A_WHILE, PATIENCE, Shop, books, ledger_differences, pass_time, shop

# Longer than any provider remembers a key.
A_MONTH = timedelta(days=31)
# The first transaction of a tick is then the claim, and no other lane's.
ONE_LANE = Limits(settlement_lanes=1)
# Fewer than the failures in a row that open the breaker, which goes by real time.
THREE_TRIES = Patience(stuck_after=PATIENCE.stuck_after, budget=3)
PAID = {"clearing:EUR": -12_340_000, "paid_out:EUR:simulator": 12_340_000}
OWED = {"clearing:EUR": -12_340_000, "payable:EUR:amber": 12_340_000}
ON_ITS_WAY = {"clearing:EUR": -12_340_000, "in_transit:EUR:simulator": 12_340_000}


async def a_while(one: Shop) -> None:
    """Long enough to be stuck; much shorter than the provider's memory, and its clock need not run ahead for it."""
    await one.pass_time(A_WHILE, also_there=False)


async def paid_once(one: Shop, view: SettlementView) -> SettlementView:
    """Both halves say that it was paid, exactly once."""
    now = await one.read(view.id)
    assert now.status == "transferred", now
    (movement,) = one.moved(view)
    assert (movement.id, movement.amount_micros, movement.currency) == (now.transfer_id, now.amount_micros, "EUR")
    await nothing_is_wrong(one)
    return now


async def nothing_is_wrong(one: Shop) -> None:
    assert (await one.halves()).is_equal
    assert await ledger_differences(one.dsn) == {}
    assert await broken(one.dsn) == {}


# --- 2. The state machine


async def test_a_payout_is_pending_then_processing_then_transferred(one: Shop, control: Control) -> None:
    """And its money is owed, then on its way, then paid."""
    view = await one.create("bounty-1")
    assert (view.status, await one.balances()) == ("pending", OWED)
    control.plan("stripe.transfer:slow_after(1)")
    tick = asyncio.create_task(one.tick())
    while not one.moved(view):
        assert not tick.done(), tick.result()
        await asyncio.sleep(0.005)
    during = await one.read(view.id)
    assert (during.status, during.transfer_id, await one.balances()) == ("processing", None, ON_ITS_WAY)
    await tick
    await paid_once(one, view)
    assert await one.balances() == PAID


async def test_a_refusal_for_good_is_failed_and_the_money_is_owed_again(one: Shop) -> None:
    view = await one.create("bounty-1", destination="acct_closed")
    await one.tick()
    now = await one.read(view.id)
    assert (now.status, now.reason) == ("failed", "account_closed")
    assert (one.moved(view), await one.balances()) == ([], OWED)
    await nothing_is_wrong(one)


async def test_a_recipient_who_claims_that_nothing_came_is_heard(one: Shop) -> None:
    """A person disputes, looks at the provider's dashboard, and confirms; the money waits in transit meanwhile."""
    view = await one.create("bounty-1")
    await one.tick()
    paid = await one.read(view.id)
    words = {"reason": "the squad says nothing came", "evidence": "mail of today", "by": "ada"}
    await one.reviews.dispute(one.tenant, view.id, **words, idempotency_key="dispute-1")
    assert ((await one.read(view.id)).status, await one.balances()) == ("disputed", ON_ITS_WAY)
    assert (await one.tick()).sent == 0
    done = await one.reviews.resolve(
        one.tenant,
        view.id,
        resolution="confirm",
        reason="it came a day later",
        evidence="statement of the squad's bank",
        transfer_id=None,
        by="ada",
        idempotency_key="resolve-1",
    )
    assert not isinstance(done, Rejected), done
    assert (await paid_once(one, view)).transfer_id == paid.transfer_id
    assert await one.balances() == PAID


# --- 3. The two passes


async def test_one_tick_claims_what_is_pending_and_reclaims_what_is_stuck(one: Shop) -> None:
    stuck = await one.create("bounty-1")
    await terminated(one, "before_the_send")
    await a_while(one)
    fresh = await one.create("bounty-2")
    ticked = await one.tick()
    assert (ticked.claimed, ticked.reclaimed, ticked.transferred) == (1, 1, 2)
    await paid_once(one, stuck)
    await paid_once(one, fresh)


async def test_a_claim_is_not_taken_over_before_its_time(one: Shop) -> None:
    """Five minutes by the database's clock: somebody may still be at work."""
    view = await one.create("bounty-1")
    await terminated(one, "before_the_send")
    await one.pass_time(PATIENCE.stuck_after - timedelta(seconds=30))
    assert (await one.tick()).reclaimed == 0
    assert one.moved(view) == []
    await one.pass_time(timedelta(seconds=31))
    assert (await one.tick()).reclaimed == 1


# --- 4. The idempotency key


async def test_the_key_is_the_contents_and_nothing_else(
    one: Shop, embedded18: servers.Server, control: Control
) -> None:
    """Another operator, on another machine, with an empty database, computes the key that the provider has."""
    view = await one.create("bounty-1")
    await one.tick()
    async with shop(embedded18.fresh_database(), control) as elsewhere:
        again = await elsewhere.create("bounty-1")
    by_hand = settlement_key(
        tenant="default",
        currency="EUR",
        provider="simulator",
        attribution_id="bounty-1",
        squad_id="amber",
        net_micros=12_340_000,
    )
    (movement,) = books(control)
    assert view.idempotency_key == again.idempotency_key == by_hand.hex() == movement.reference


# --- 5. What the pattern tolerates


async def test_termination_after_the_claim_and_before_the_transfer(one: Shop) -> None:
    view = await one.create("bounty-1")
    await terminated(one, "before_the_send")
    assert ((await one.read(view.id)).status, one.moved(view)) == ("processing", [])
    assert await one.balances() == ON_ITS_WAY
    await one.tick()
    assert one.moved(view) == [], "the one that claimed it may still be alive"
    await a_while(one)
    await one.tick()
    await paid_once(one, view)
    assert await one.attempts(view) == [None, "done"]


async def test_termination_while_the_request_is_on_its_way_and_nothing_is_done_yet(one: Shop, control: Control) -> None:
    """The provider carries it out although nobody waits for the answer."""
    view = await one.create("bounty-1")
    control.plan("stripe.transfer:slow_before(1)")
    await terminated_once(one, lambda: control.struck() != {})
    assert one.moved(view) == []
    while not one.moved(view):
        await asyncio.sleep(0.005)
    await a_while(one)
    await one.tick()
    await paid_once(one, view)


async def test_termination_while_the_answer_is_on_its_way(one: Shop, control: Control) -> None:
    view = await one.create("bounty-1")
    control.plan("stripe.transfer:slow_after(30)")
    await terminated_once(one, lambda: one.moved(view) != [])
    await a_while(one)
    await one.tick()
    await paid_once(one, view)
    assert await one.attempts(view) == [None], "it was found, and not sent again"


async def test_termination_after_the_transfer_and_before_it_is_recorded(one: Shop) -> None:
    view = await one.create("bounty-1")
    await terminated(one, "after_the_answer")
    assert ((await one.read(view.id)).status, len(one.moved(view))) == ("processing", 1)
    await a_while(one)
    await one.tick()
    await paid_once(one, view)
    assert [event.what for event in await one.history(view)] == ["looked_up"]


async def test_a_retryable_failure_is_retried_by_a_later_tick(one: Shop, control: Control) -> None:
    view = await one.create("bounty-1")
    control.plan("stripe.transfer:rate_limited@1-2")
    await one.tick()
    assert ((await one.read(view.id)).status, one.moved(view)) == ("processing", [])
    await one.until_quiet(also_there=False)
    await paid_once(one, view)
    assert await one.attempts(view) == ["busy", "busy", "done"]


async def test_a_budget_of_retries_ends_in_failed_when_nothing_can_have_moved(dsn: str, control: Control) -> None:
    control.plan("stripe.transfer:rate_limited@*")
    async with shop(dsn, control, patience=THREE_TRIES) as one:
        view = await one.create("bounty-1")
        await one.until_quiet(also_there=False)
        now = await one.read(view.id)
        assert (now.status, now.reason) == ("failed", "retry_budget_exhausted")
        assert await one.attempts(view) == ["busy"] * 3
        assert (one.moved(view), await one.balances()) == ([], OWED)
        await nothing_is_wrong(one)


@pytest.mark.parametrize("fault", ["drop_before", "in_flight", "error_424"])
async def test_a_budget_of_retries_ends_in_disputed_when_it_may_have_moved(
    dsn: str, control: Control, fault: str
) -> None:
    """To call it failed would be to owe again what the provider may have paid."""
    control.plan(f"stripe.transfer:{fault}@*")
    async with shop(dsn, control, patience=THREE_TRIES) as one:
        view = await one.create("bounty-1")
        # A little at a time: what ends first must be the budget, and not the provider's memory.
        await one.until_quiet(span=timedelta(minutes=10), also_there=False)
        now = await one.read(view.id)
        assert (now.status, now.reason) == ("disputed", "retry_budget_exhausted")
        assert await one.attempts(view) == ["unknown"] * 3
        assert (one.moved(view), await one.balances()) == ([], ON_ITS_WAY)
        await nothing_is_wrong(one)


async def test_concurrent_ticks_never_share_a_row(one: Shop, control: Control) -> None:
    small = Limits(settlement_chunk=10)
    await one.create_many(300)
    async with (
        shop(one.dsn, control, limits=small, by="left") as left,
        shop(one.dsn, control, limits=small, by="right") as right,
    ):
        ticks = await asyncio.gather(left.tick(), right.tick())
    assert all(tick.claimed > 0 for tick in ticks), ticks
    assert (sum(tick.claimed for tick in ticks), sum(tick.transferred for tick in ticks)) == (300, 300)
    async with one.database.owning() as connection:
        shared = await connection.fetchval("SELECT count(*) FROM tally.intent WHERE attempts <> 1")
        claims = await connection.fetch("SELECT claimed_by, count(*) FROM tally.settlement_state GROUP BY 1 ORDER BY 1")
    assert shared == 0
    assert [tuple(row) for row in claims] == [("left", ticks[0].claimed), ("right", ticks[1].claimed)]
    assert len(books(control)) == 300
    await nothing_is_wrong(one)


async def test_settlements_that_look_alike_have_keys_of_their_own(one: Shop) -> None:
    """Joined without their lengths, the fields of each pair would be the same text, and one of two would be unpaid."""
    pairs = [("ab", "c", 1_000_000), ("a", "bc", 1_000_000), ("ab", "c1", 1_000_000), ("x1", "y", 20_000_000)]
    pairs += [("x", "1y", 20_000_000), ("x", "1y2", 10_000_000)]
    views = [await one.create(attribution, squad_id=squad, gross_micros=gross) for attribution, squad, gross in pairs]
    assert len({view.idempotency_key for view in views}) == len(views)
    await one.tick()
    for view in views:
        await paid_once(one, view)


# --- 6. What the pattern does not tolerate


async def test_the_window_expires_and_the_money_had_moved(one: Shop, control: Control) -> None:
    """A month later the same bytes would pay again. It is looked up, and found."""
    view = await one.create("bounty-1")
    await terminated(one, "after_the_answer")
    await one.pass_time(A_MONTH)
    ticked = await one.tick()
    assert (ticked.sent, ticked.looked_up) == (0, 1)
    await paid_once(one, view)


async def test_the_window_expires_and_nothing_can_be_found(one: Shop, control: Control) -> None:
    """It is never sent again: a person gets all there is to know."""
    view = await one.create("bounty-1")
    await terminated(one, "before_the_send")
    await one.pass_time(A_MONTH)
    assert (await one.tick()).sent == 0
    now = await one.read(view.id)
    assert (now.status, now.reason) == ("disputed", "past_the_horizon")
    assert (one.moved(view), await one.balances()) == ([], ON_ITS_WAY)
    events = {event.what: msgspec.json.decode(event.body) for event in await one.history(view)}
    assert events["looked_up"]["found"] == "absent"
    (asked,) = events["looked_up"]["exchanges"]
    assert view.idempotency_key in asked["asked"]
    assert asked["status"] == 200
    for _ in range(3):
        await one.pass_time(A_MONTH)
        assert (await one.tick()).sent == 0
    await nothing_is_wrong(one)


async def test_the_database_goes_away_after_the_claim(dsn: str, control: Control) -> None:
    """The process never hears whether its claim was committed: it sends nothing, and the row is found again."""
    async with shop(dsn, control) as one:
        view = await one.create("bounty-1")
        async with wire(dsn) as (cable, address), shop(address, control, limits=ONE_LANE) as cut_off:
            cable.cut_next, cable.down_after_cut = Cut.AFTER_COMMIT, True
            with pytest.raises(TallystickError):
                await cut_off.tick()
            assert cable.cuts == 1
            cable.is_down = False
        assert ((await one.read(view.id)).status, one.moved(view)) == ("processing", [])
        await a_while(one)
        await one.tick()
        await paid_once(one, view)


async def test_the_database_goes_away_before_the_claim(dsn: str, control: Control) -> None:
    async with shop(dsn, control) as one:
        view = await one.create("bounty-1")
        async with wire(dsn) as (cable, address), shop(address, control, limits=ONE_LANE) as cut_off:
            cable.cut_next, cable.down_after_cut = Cut.BEFORE_COMMIT, True
            with pytest.raises(TallystickError):
                await cut_off.tick()
            cable.is_down = False
        assert ((await one.read(view.id)).status, one.moved(view)) == ("pending", [])
        await one.tick()
        await paid_once(one, view)


async def test_the_database_goes_away_before_the_answer_is_recorded(dsn: str, control: Control) -> None:
    """The money has moved and nobody here can write it down; the next tick finds it."""
    hasty = Limits(transaction_seconds=4.0, outage_seconds=0.3)
    async with shop(dsn, control) as one:
        view = await one.create("bounty-1")
        async with wire(dsn) as (cable, address), shop(address, control, limits=hasty) as cut_off:
            control.plan("stripe.transfer:slow_after(1)")
            tick = asyncio.create_task(cut_off.tick())
            while not one.moved(view):
                assert not tick.done(), tick.result()
                await asyncio.sleep(0.005)
            cable.is_frozen = cable.is_down = True
            # Longer than a transaction is waited for, the recording one among them.
            await asyncio.wait([tick], timeout=2 * hasty.transaction_seconds)
            cable.is_frozen = cable.is_down = False
            with pytest.raises(TallystickError):
                await tick
        assert (await one.read(view.id)).status == "processing"
        await a_while(one)
        await one.tick()
        await paid_once(one, view)


async def test_the_provider_takes_a_transfer_back(one: Shop, control: Control) -> None:
    """Told by a webhook, the row is disputed and the money no longer counts as paid; a person decides."""
    view = await one.create("bounty-1")
    await one.tick()
    paid = await paid_once(one, view)
    control.call("POST", "act", {"dialect": "stripe", "action": "reverse", "id": paid.transfer_id})
    assert (await one.halves()).lost, "the halves differ until somebody tells"
    news = Movement(
        provider="stripe",
        purpose="transfer",
        id=str(paid.transfer_id),
        amount_micros=paid.amount_micros,
        currency="EUR",
        state="returned",
        status="reversed",
        reference=paid.idempotency_key,
    )
    assert await one.reviews.observe("simulator", news) == view.id
    assert await one.reviews.observe("simulator", news) is None, "told twice, it happened once"
    now = await one.read(view.id)
    assert (now.status, await one.balances()) == ("disputed", ON_ITS_WAY)
    await nothing_is_wrong(one)


async def test_the_provider_loses_its_record(one: Shop, control: Control) -> None:
    """No webhook tells of that. A comparison of the books finds it, and what is not there does not count as paid."""
    view = await one.create("bounty-1")
    await one.tick()
    await paid_once(one, view)
    control.call("POST", "reset")
    assert len((await one.halves()).lost) == 1
    await one.pass_time(timedelta(days=1), also_there=False)
    found = await reconcile(one.database, one.providers, one.reviews, by="tests", repair=True)
    assert ([dict(each.breaks) for each in found.compared], found.is_complete) == ([{"missing_there": 1}], True)
    assert ((await one.read(view.id)).status, await one.balances()) == ("disputed", ON_ITS_WAY)
    await nothing_is_wrong(one)


async def test_an_operator_cannot_make_a_second_key(one: Shop) -> None:
    """Neither for a payout that was made nor for one whose fate is unknown: the database refuses, by hand or not."""
    for attribution, fault in (("bounty-1", ""), ("bounty-2", "stripe.transfer:execute_then_drop")):
        one.control.plan(fault)
        view = await one.create(attribution)
        await one.tick()
        again = await one.reviews.resolve(
            one.tenant,
            view.id,
            resolution="retry",
            reason="pay it again",
            evidence="none",
            transfer_id=None,
            by="mallory",
            idempotency_key=f"again-{attribution}",
        )
        assert isinstance(again, Rejected)
        connection = await asyncpg.connect(one.dsn)
        try:
            with pytest.raises(asyncpg.PostgresError, match="tally"):
                await connection.execute("UPDATE tally.settlement SET generation = 1, key = sha256('other')")
            with pytest.raises(asyncpg.UniqueViolationError, match="one_live_key"):
                await connection.execute(
                    "INSERT INTO tally.intent (tenant_id, provider, key, purpose, instruction, account, subject)"
                    " SELECT tenant_id, provider, sha256(key), purpose, instruction, account, subject"
                    "   FROM tally.intent ORDER BY first_sent_at DESC LIMIT 1"
                )
        finally:
            await connection.close()
        await one.until_quiet(also_there=False)
        await paid_once(one, view)


async def test_a_new_generation_needs_a_recorded_failure_and_a_second_person(one: Shop) -> None:
    view = await one.create("bounty-1", destination="acct_closed")
    await one.tick()
    first = await one.read(view.id)
    asked = await one.reviews.resolve(
        one.tenant,
        view.id,
        resolution="retry",
        reason="the account is open again",
        evidence="mail of the squad",
        transfer_id=None,
        by="ada",
        idempotency_key="retry-1",
    )
    review = msgspec.json.decode(asked.body, type=ReviewView)
    assert review.approval is not None
    words = {"decision": "approve", "reason": "I have seen the mail"}
    alone = await one.reviews.decide(one.tenant, review.approval.id, **words, by="ada", idempotency_key="yes-1")
    assert isinstance(alone, Rejected)
    assert (alone.code, (await one.read(view.id)).status) == ("second_person_needed", "failed")
    both = await one.reviews.decide(one.tenant, review.approval.id, **words, by="grace", idempotency_key="yes-2")
    assert not isinstance(both, Rejected), both
    now = await one.read(view.id)
    assert (now.status, now.generation) == ("pending", 1)
    assert now.idempotency_key != first.idempotency_key
    await one.tick()
    # The account is still closed: refused again, under its own key, and nothing moved.
    assert (await one.read(view.id)).status == "failed"
    assert await one.attempts(view) == ["refused", "refused"]
    await nothing_is_wrong(one)


# --- 7. What is counted


async def test_the_figures_are_those_of_the_paper(one: Shop, control: Control) -> None:
    """Processed, reclaimed, doubles, reviews, and the age of the oldest that is processing."""
    await one.create_many(20)
    await one.create("closed", destination="acct_closed")
    control.plan("stripe.transfer:execute_then_drop@5")
    await one.tick()
    await pass_time(one.dsn, timedelta(hours=1))
    _, ages, _ = await figures(one.database)
    assert 3_600 <= ages["simulator"] < 3_700
    await one.tick()
    counts, ages, waiting = await figures(one.database)
    told = {name: counts.get(name, 0) for name in ("claimed", "reclaimed", "transferred", "failed", "doubles")}
    assert told == {"claimed": 21, "reclaimed": 1, "transferred": 20, "failed": 1, "doubles": 0}
    assert (ages, waiting) == ({}, {"pending": 0, "disputed": 0})
