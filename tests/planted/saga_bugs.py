"""Bugs of the saga and its refunds: see `bugs`."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, cast

import msgspec

from tallystick.checkout.payment.rules import Hold, Resend
from tallystick.checkout.refund import flow
from tallystick.checkout.refund import rules as deciders
from tallystick.checkout.refund import store as refund
from tallystick.checkout.saga import rules as core
from tallystick.checkout.saga import store as saga
from tallystick.checkout.saga.rules import GiveBack, Pay, ToldBefore
from tallystick.movement import flow as sending
from tallystick.movement.steps import Failed, Happened, LookUp
from tallystick.providers.words import Refused
from tallystick.webhooks.rules import Compensated, Recorded
from tests.planted.bug import Bug, migrated

FLOW: Final = "tests/checkout/saga/test_flow.py::"
ATTACKS: Final = "tests/checkout/saga/test_attacks.py::"
RULES: Final = "tests/checkout/saga/test_database_rules.py::"
CORE: Final = "tests/checkout/saga/test_rules.py::"


def everybody_waits_for_one_lock() -> None:
    """A batch is never settled around a lock that somebody holds."""
    original = saga.settle

    async def settle(*arguments: Any, postpone_held_seconds: float | None = None, **more: Any) -> Any:
        del postpone_held_seconds
        return await original(*arguments, **more)

    cast("Any", saga).settle = settle


def _deciding(spoilt: Any) -> None:
    """The saga's decision, made otherwise: `spoilt` is given what it is decided by, and the honest decision."""
    original = core.decide

    def decide(movement: Any, ours: Any, case: Any) -> Any:
        return spoilt(movement, ours, case, original(movement, ours, case))

    cast("Any", core).decide = decide
    cast("Any", core).honest = original


def no_intent_asked_for() -> None:
    migrated(("count(*) FILTER (WHERE i.key IS NULL) AS unasked", "0::bigint AS unasked"))


def paid_twice_refunded() -> None:
    """A payment that pays an order and is told again is taken for a second one."""

    def spoilt(_movement: Any, _ours: Any, _case: Any, decision: Any) -> Any:
        is_paid = isinstance(decision, ToldBefore) and decision.receipt.fate == "PAID"
        return GiveBack(core.SECOND) if is_paid else decision

    _deciding(spoilt)


def dedup_by_event_id_only() -> None:
    """Whatever has an event id of its own counts: no receipt is looked at."""

    def spoilt(movement: Any, ours: Any, case: Any, decision: Any) -> Any:
        if not isinstance(decision, ToldBefore):
            return decision
        return cast("Any", core).honest(movement, ours, msgspec.structs.replace(case, receipts=()))

    _deciding(spoilt)


def claims_lost_ignored() -> None:
    """A batch is committed though another worker has its events."""
    original = saga._Batch._finish

    async def finish(self: Any, events: Any) -> None:
        try:
            await original(self, events)
        except saga.ClaimsLost:
            self.outcomes.update({event.number: Recorded() for event in events})

    cast("Any", saga._Batch)._finish = finish


def new_key_on_retry() -> None:
    """Each further send of a refund has a key of its own."""
    call, sent = sending.call, dict[bytes, int]()

    async def called(adapter: Any, instruction: Any, permit: Any) -> Any:
        number = sent[instruction.key] = sent.get(instruction.key, -1) + 1
        other = sha256(instruction.key + bytes(number)).digest() if number else instruction.key
        return await call(adapter, msgspec.structs.replace(instruction, key=other), permit)

    cast("Any", sending).call = called


def sent_again_without_asking() -> None:
    original = deciders.next_step

    def next_step(owed: Any, history: Any, **more: Any) -> Any:
        step = original(owed, history, **more)
        return Resend(owed.tries) if isinstance(step, LookUp) else step

    cast("Any", flow).next_step = next_step


def already_refunded_is_believed() -> None:
    original = deciders.after_answer

    def after_answer(owed: Any, history: Any, answer: Any, **more: Any) -> Any:
        if isinstance(answer, Refused) and answer.code == "charge_already_refunded":
            return Happened("already")
        return original(owed, history, answer, **more)

    cast("Any", flow).after_answer = after_answer


def outages_are_tries() -> None:
    """A refund that is owed is given up when the provider is away."""
    original = deciders.after_answer

    def after_answer(owed: Any, history: Any, answer: Any, **more: Any) -> Any:
        entry = original(owed, history, answer, **more)
        return Failed("too many tries") if isinstance(entry, Hold) else entry

    cast("Any", flow).after_answer = after_answer


def compensated_before_the_refund() -> None:
    """The event is finished with the intent, whatever becomes of the refund."""
    original = saga._Batch._take

    def take(self: Any, event: Any, *given: Any) -> None:
        original(self, event, *given)
        if isinstance(given[-1], GiveBack):
            self.outcomes[event.number] = Compensated()

    cast("Any", saga._Batch)._take = take


def amount_not_compared() -> None:
    """Whatever was paid pays. The database's own comparison is off as well."""

    def spoilt(movement: Any, ours: Any, case: Any, decision: Any) -> Any:
        if case is None:
            return decision
        same = msgspec.structs.replace(movement, amount_micros=case.amount_micros, currency=case.currency)
        return cast("Any", core).honest(same, ours, case)

    _deciding(spoilt)
    migrated(("count(*) FILTER (WHERE f.fate = 'PAID' AND (o", "count(*) FILTER (WHERE false AND (o"))


def no_amount_compared_by_the_database() -> None:
    migrated(("count(*) FILTER (WHERE f.fate = 'PAID' AND (o", "count(*) FILTER (WHERE false AND (o"))


def orders_locked_as_they_come() -> None:
    """Two batches can wait for each other."""
    original = saga._Batch.lock

    async def lock(self: Any, wanted: set[Any]) -> None:
        cast("Any", saga).sorted = lambda items, **more: sorted(items, reverse=True, **more)
        try:
            await original(self, wanted)
        finally:
            del cast("Any", saga).sorted

    cast("Any", saga._Batch).lock = lock


def receipt_of_another_tenant() -> None:
    migrated(
        (
            "l.idempotency_key = f.charge_key AND l.tenant_id = f.tenant_id\n",
            "l.idempotency_key = f.charge_key\n",
        ),
    )


def late_payment_pays() -> None:
    """Strict tenants deliver what the sweeper gave to somebody else. The database's own rule is off as well."""

    def spoilt(_movement: Any, _ours: Any, _case: Any, decision: Any) -> Any:
        return Pay() if decision == GiveBack(core.LATE) else decision

    _deciding(spoilt)
    late_payments_pass()


def late_payments_pass() -> None:
    migrated(("c.was NOT IN ('PAID', 'PENDING')", "false"))


def paid_without_a_receipt() -> None:
    migrated(("IF fault.unpaid <> 0 OR fault.unasked <> 0 THEN", "IF fault.unasked <> 0 THEN"))


def two_receipts_of_a_payment() -> None:
    migrated(("CREATE UNIQUE INDEX one_receipt", "CREATE INDEX one_receipt"))


def two_payers_of_an_order() -> None:
    migrated(("CREATE UNIQUE INDEX one_payer", "CREATE INDEX one_payer"))


def fate_decided_twice() -> None:
    migrated(("AND NOT (old.fate = 'REVIEW' AND new.fate IN ('REFUND', 'KEPT'))", "AND false"))


def refund_of_a_part() -> None:
    migrated(
        (
            "(r.amount_micros, r.currency, r.fate) IS DISTINCT FROM (l.amount_micros, l.currency, 'REFUND')",
            "r.fate IS DISTINCT FROM 'REFUND'",
        ),
    )


def no_failure_before_the_next_generation() -> None:
    migrated(("AND before.status IS DISTINCT FROM 'FAILED') AS early", "AND false) AS early"))


def no_fence_on_refunds() -> None:
    """Whoever lost his claim writes all the same."""
    cast("Any", refund)._is_mine = lambda _item, row: row["status"] == "PENDING"


def failed_refund_without_its_name() -> None:
    """What is told of it later is taken for the next one's."""
    original = refund._recorded

    def recorded(items: Sequence[Any]) -> Any:
        return original([msgspec.structs.replace(item, failed_as=None) for item in items])

    cast("Any", refund)._recorded = recorded


def batch_does_not_see_itself() -> None:
    """Two events of one payment in one batch are two payments."""
    cast("Any", core).after = lambda case, _movement, _decision, **_more: case


def pauses_without_an_end() -> None:
    cast("Any", deciders).LONGEST_PAUSE = deciders.FIRST_PAUSE * 2**16


SAGA_BUGS: Mapping[str, Bug] = {
    "a refund without an intent": Bug(
        no_intent_asked_for, (f"{RULES}test_a_refund_without_its_committed_intent_is_refused[embedded18]",)
    ),
    "PAID twice refunded": Bug(
        paid_twice_refunded,
        (f"{FLOW}test_a_payment_told_twice_counts_once[evt_2]", f"{CORE}test_telling_again_changes_nothing"),
    ),
    "payments known by their events alone": Bug(
        dedup_by_event_id_only,
        (
            f"{FLOW}test_a_payment_told_twice_counts_once[evt_2]",
            f"{FLOW}test_two_tellings_in_one_batch_are_one_payment",
        ),
    ),
    "a batch does not see itself": Bug(
        # The flow heals it: what the receipts' index refuses together is decided again one by one.
        batch_does_not_see_itself,
        (f"{CORE}test_a_payment_counts_once_and_one_pays",),
    ),
    "lost claims are committed": Bug(claims_lost_ignored, (f"{FLOW}test_a_lost_claim_commits_nothing",)),
    "a refund under a new key": Bug(
        new_key_on_retry, (f"{ATTACKS}test_a_refund_that_is_sent_again_has_the_first_ones_key",)
    ),
    "a refund is sent again without asking": Bug(
        sent_again_without_asking,
        (f"{ATTACKS}test_a_refund_that_may_have_run_is_asked_about_before_anything_is_sent",),
    ),
    "already refunded is believed": Bug(
        already_refunded_is_believed, (f"{ATTACKS}test_already_refunded_is_looked_up_and_not_believed",)
    ),
    "outages give a refund up": Bug(outages_are_tries, (f"{FLOW}test_an_outage_leaves_the_refund_to_the_sweeper",)),
    "compensated before the refund": Bug(
        compensated_before_the_refund, (f"{FLOW}test_an_outage_leaves_the_refund_to_the_sweeper",)
    ),
    "an amount that is not compared": Bug(
        amount_not_compared,
        tuple(
            f"{FLOW}test_another_amount_never_pays[{wanted}-{other}]"
            for wanted in ("refund", "review")
            for other in ("amount", "currency")
        ),
    ),
    "an amount that the database does not compare": Bug(
        no_amount_compared_by_the_database,
        (f"{RULES}test_a_receipt_that_is_not_its_charges_is_refused[embedded18-TS005-other0]",),
    ),
    "orders locked in any order": Bug(orders_locked_as_they_come, (f"{ATTACKS}test_orders_are_locked_in_one_order",)),
    "one lock holds up everybody": Bug(
        everybody_waits_for_one_lock,
        tuple(
            f"{ATTACKS}test_a_lock_that_nobody_lets_go_of_holds_up_its_own_order_alone[{held}]"
            for held in ("an order", "a stock")
        ),
    ),
    "a receipt of another tenant": Bug(
        receipt_of_another_tenant,
        (f"{RULES}test_a_receipt_of_another_orders_or_tenants_charge_is_refused[embedded18]",),
    ),
    "a late payment pays": Bug(
        late_payment_pays, (f"{FLOW}test_a_late_payment_is_given_back_and_its_event_says_so[stripe]",)
    ),
    "a late payment that the database lets pass": Bug(
        late_payments_pass, (f"{RULES}test_a_cancelled_order_is_paid_only_where_backorders_are_taken[embedded18]",)
    ),
    "paid without a receipt": Bug(
        paid_without_a_receipt, (f"{RULES}test_an_order_is_paid_by_a_receipt_alone[embedded18]",)
    ),
    "two receipts of a payment": Bug(
        two_receipts_of_a_payment,
        (f"{RULES}test_a_payment_counts_once_and_one_payment_pays_an_order[embedded18]",),
    ),
    "two payers of an order": Bug(
        two_payers_of_an_order, (f"{RULES}test_a_payment_counts_once_and_one_payment_pays_an_order[embedded18]",)
    ),
    "what became of a payment is decided twice": Bug(
        fate_decided_twice, (f"{RULES}test_what_became_of_a_payment_is_decided_once[embedded18-PAID]",)
    ),
    "a refund of a part": Bug(
        refund_of_a_part, (f"{RULES}test_a_refund_that_is_not_its_receipts_is_refused[embedded18-TS005-other1]",)
    ),
    "no failure before the next refund": Bug(
        no_failure_before_the_next_generation,
        (f"{RULES}test_a_refund_that_is_not_its_receipts_is_refused[embedded18-TS004-other6]",),
    ),
    "no fence on refunds": Bug(no_fence_on_refunds, (f"{ATTACKS}test_a_sweeper_that_lost_its_claim_changes_nothing",)),
    "a failed refund without its name": Bug(
        failed_refund_without_its_name,
        (f"{FLOW}test_what_is_told_of_a_failed_refund_is_not_the_next_ones",),
    ),
    "pauses without an end": Bug(
        pauses_without_an_end, ("tests/checkout/refund/test_rules.py::test_a_pause_is_between_a_second_and_an_hour",)
    ),
}
