"""Bugs of the flow that pays orders: see `bugs`."""

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, cast

import msgspec

from tallystick.checkout.order.rules import token_name
from tallystick.checkout.payment import flow, store
from tallystick.checkout.payment import plan as planning
from tallystick.checkout.payment import rules as deciders
from tallystick.checkout.payment.review.flow import PaymentReviews
from tallystick.checkout.release.rules import Release
from tallystick.ledger.outcome import Rejected
from tallystick.movement import steps
from tallystick.providers.words import Unknown
from tests.planted.bug import Bug, migrated

FLOW: Final = "tests/checkout/payment/test_flow.py::"
REVIEW: Final = "tests/checkout/payment/review/test_flow.py::"
COLLECT: Final = "tests/checkout/payment/test_collect.py::"
RULES: Final = "tests/checkout/payment/test_database_rules.py::"
CORE: Final = "tests/checkout/payment/test_rules.py::"
KEYS: Final = "tests/checkout/payment/test_key.py::"
WEB_KEYS: Final = "tests/http/test_payment_key.py::"
CRASH: Final = "tests/faults/test_payment_crash.py::"


def new_attempt_after_an_unknown_answer() -> None:
    """Silence is taken for a failure: the next click has another key. The database's own rules are off as well."""
    original = deciders.after_answer

    def after_answer(history: Any, answer: Any, **more: Any) -> Any:
        entry = original(history, answer, **more)
        return steps.Failed(answer.code) if isinstance(answer, Unknown) else entry

    cast("Any", flow).after_answer = after_answer


def new_attempt_beside_a_pending_one() -> None:
    """A click on a charge that may have run begins anew; the unique index and the chain are off."""
    original = deciders.next_step

    def next_step(order: Any, charge: Any, history: Any, **more: Any) -> Any:
        if charge is not None and charge.status == "PENDING" and history.may_have_run:
            return deciders.Begin(charge.attempt + 1)
        return original(order, charge, history, **more)

    cast("Any", deciders).next_step = next_step
    migrated(
        ("CREATE UNIQUE INDEX one_live_charge", "CREATE INDEX one_live_charge"),
        ("AND before.status IS DISTINCT FROM 'FAILED') AS early", "AND false) AS early"),
    )


def no_unique_live_charge() -> None:
    migrated(("CREATE UNIQUE INDEX one_live_charge", "CREATE INDEX one_live_charge"))


def no_failure_before_the_next_attempt() -> None:
    migrated(("AND before.status IS DISTINCT FROM 'FAILED') AS early", "AND false) AS early"))


def sends_without_asking() -> None:
    """What is unknown is sent again at once: where the provider forgot the key, or never kept it, that is a second."""
    original = steps.next_step

    def next_step(history: Any, **more: Any) -> Any:
        step = original(history, **more)
        return steps.Send(more["tries"]) if isinstance(step, steps.LookUp) else step

    cast("Any", steps).next_step = next_step


def sends_for_an_ended_order() -> None:
    """The collector sends whatever may be sent, whoever still wants it."""
    cast("Any", deciders).resend = lambda _order, _history, send, **_more: deciders.Resend(send.tries)
    cast("Any", deciders.Payable).is_open = lambda _self, _now: True
    cast("Any", planning).pay_refusal = lambda _order, _token, **_more: None


def any_token_pays() -> None:
    original = deciders.pay_refusal

    def pay_refusal(order: Any, _token: str, *, now: datetime) -> Any:
        return original(order, token_name(order.reservation_token), now=now)

    cast("Any", planning).pay_refusal = pay_refusal


def no_fence() -> None:
    """Whoever lost his claim writes all the same."""
    store._SQL["record"] = store._SQL["record"].replace(" AND l.claim_number = g.claim", "")
    cast("Any", store)._is_mine = lambda _item, row: row is not None and row["status"] == "PENDING"


def pending_for_ever_after_a_lost_commit() -> None:
    """A batch that is run again does not know its own attempt, and waits for somebody else to send it."""
    if "a.token" not in store._SQL["newest"]:
        raise ValueError("newest has no a.token any more")
    store._SQL["newest"] = store._SQL["newest"].replace("a.token", "NULL::uuid AS token")


def caller_takes_the_flight_with_him() -> None:
    """A buyer who hangs up cancels the call that others wait for."""
    wait = asyncio.wait

    async def waits(tasks: Any, **more: Any) -> Any:
        try:
            return await wait(tasks, **more)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            raise

    cast("Any", flow).asyncio = type("Asyncio", (), {**vars(asyncio), "wait": staticmethod(waits)})


def key_is_not_looked_at() -> None:
    """As if no key had ever been used: a repeat is one more click, and begins the next attempt."""
    cast("Any", store)._bound = lambda _row: None
    store._SQL["bind"] = store._SQL["bind"].replace(";", " ON CONFLICT DO NOTHING;")
    store._SQL["log_charges"] = store._SQL["log_charges"].replace(";", " ON CONFLICT DO NOTHING;")


def key_takes_any_body() -> None:
    cast("Any", planning).key_fault = lambda _bound, _asked: None


def refusal_is_not_recorded() -> None:
    """A no is forgotten, and made up again from its code: other words under the same key."""
    cast("Any", store)._refusal = lambda _item: None


def joining_binds_nothing() -> None:
    """A key that came while an attempt was live is free again when that has failed."""
    original = planning._Planner._bind

    def bind(self: Any, seen: Any, attempt: int) -> None:
        if seen.charge is None or seen.charge.attempt != attempt:
            original(self, seen, attempt)

    cast("Any", planning._Planner)._bind = bind


def holder_is_who_takes_the_next_attempt() -> None:
    """Whoever takes the next attempt is asked whether it can be ended, not who has it."""
    original = deciders.next_step

    def next_step(order: Any, charge: Any, history: Any, **more: Any) -> Any:
        step = original(order, charge, history, **{**more, "holder": more["facts"]})
        if isinstance(step, Rejected) and step.code == "provider_not_configured":
            return deciders.Begin(charge.attempt + 1)
        return step

    cast("Any", deciders).next_step = next_step


def next_attempt_beside_what_was_left() -> None:
    """What a decline leaves open at the provider stays open beside the next attempt."""
    original = deciders.next_step

    def next_step(order: Any, charge: Any, history: Any, **more: Any) -> Any:
        step = original(order, charge, history, **more)
        return deciders.Begin(charge.attempt + 1) if isinstance(step, deciders.Close) else step

    cast("Any", deciders).next_step = next_step


def unknown_is_cancelled() -> None:
    """Whatever the provider says to the wish to cancel, the next attempt begins."""
    cast("Any", flow).after_cancel = lambda _answer: Release("cancelled")


def keys_of_all_tenants() -> None:
    """One tenant's key is found used by another's."""
    store._SQL["newest"] = store._SQL["newest"].replace("k.tenant_id = wanted.t AND k.key", "k.key")


def closed_after_one_listing() -> None:
    """One look at the provider's books is taken for two."""
    cast("Any", deciders)._never_seen = lambda _charge, _hold, **_more: steps.Failed(deciders.NEVER_SEEN)


def closed_though_a_server_failed() -> None:
    """A provider that answered with an error of its own may roll the charge forward on any day."""
    original = deciders._can_no_longer_come

    def can_no_longer_come(order: Any, history: Any, **more: Any) -> bool:
        return original(order, msgspec.structs.replace(history, server_error=False), **more)

    cast("Any", deciders)._can_no_longer_come = can_no_longer_come


def closed_while_it_is_on_its_way() -> None:
    """What was written last may be under way when the books are read, and is called never seen."""
    original = deciders._can_no_longer_come

    def can_no_longer_come(order: Any, history: Any, **more: Any) -> bool:
        written = history.not_after and history.first_sent_at
        return original(order, msgspec.structs.replace(history, not_after=written), **more)

    cast("Any", deciders)._can_no_longer_come = can_no_longer_come


def a_persons_word_is_not_checked() -> None:
    """Whatever id a person names is believed."""

    async def asked(_self: Any, _charge: Any, _wanted: Any) -> None:
        return None

    cast("Any", PaymentReviews)._asked = asked


PAYMENT_BUGS: Final = {
    "the key of /pay is not looked at": Bug(
        key_is_not_looked_at,
        (
            f"{WEB_KEYS}test_a_decline_is_recorded_under_its_key_and_told_again_to_the_byte",
            f"{KEYS}test_two_processes_with_one_key_at_once_have_one_attempt_and_one_answer",
        ),
    ),
    "the key of /pay takes any body": Bug(
        key_takes_any_body,
        (f"{WEB_KEYS}test_the_same_key_with_another_payload_is_refused_by_the_fields_that_differ",),
    ),
    "a refusal is not recorded under its key": Bug(
        refusal_is_not_recorded,
        (f"{WEB_KEYS}test_a_decline_is_recorded_under_its_key_and_told_again_to_the_byte",),
    ),
    "a key that joins a live attempt is not bound": Bug(
        joining_binds_nothing,
        (f"{KEYS}test_a_new_key_joins_the_attempt_that_is_live_and_has_its_answer",),
    ),
    "the next attempt begins beside what a decline left": Bug(
        next_attempt_beside_what_was_left,
        (f"{KEYS}test_what_a_decline_left_at_the_provider_is_cancelled_before_the_next_attempt",),
    ),
    "who takes the next attempt is taken for who has the one before": Bug(
        holder_is_who_takes_the_next_attempt,
        (
            f"{KEYS}test_what_a_decline_left_is_ended_though_another_provider_takes_the_next_attempt",
            f"{KEYS}test_nothing_begins_beside_what_a_decline_left_at_a_provider_that_is_gone",
        ),
    ),
    "what is not known to be cancelled is taken for it": Bug(
        unknown_is_cancelled,
        (f"{KEYS}test_nothing_begins_beside_what_is_not_known_to_be_cancelled[drop_before]",),
    ),
    "keys of /pay are everybody's": Bug(
        keys_of_all_tenants,
        (f"{WEB_KEYS}test_the_same_key_with_another_payload_is_refused_by_the_fields_that_differ",),
    ),
    "new attempt after an unknown answer": Bug(
        new_attempt_after_an_unknown_answer,
        (
            f"{FLOW}test_what_was_done_and_not_heard_is_found_and_not_done_again[stripe-execute_then_drop]",
            f"{FLOW}test_a_500_is_never_a_failure_and_never_another_attempt[square]",
            f"{FLOW}test_fifty_clicks_over_two_processes_are_one_charge_with_or_without_a_partition[execute_then_drop]",
        ),
    ),
    "new attempt beside a pending one": Bug(
        new_attempt_beside_a_pending_one,
        (
            f"{FLOW}test_what_was_done_and_not_heard_is_found_and_not_done_again[stripe-execute_then_drop]",
            f"{CORE}test_a_pending_charge_is_never_followed_by_another_attempt",
        ),
    ),
    "no unique live charge": Bug(
        no_unique_live_charge, (f"{RULES}test_a_second_live_charge_of_an_order_is_refused[embedded18]",)
    ),
    "no failure before the next attempt": Bug(
        no_failure_before_the_next_attempt, (f"{RULES}test_an_attempt_follows_a_known_failure_alone[embedded18]",)
    ),
    "a charge is sent again without asking": Bug(
        sends_without_asking,
        (f"{FLOW}test_what_was_done_and_not_heard_is_found_and_not_done_again[stripe-hang]",),
    ),
    "a charge is sent for an ended order": Bug(
        sends_for_an_ended_order,
        (
            f"{COLLECT}test_nothing_is_sent_for_an_order_that_has_ended[CANCELLED_BY_SWEEPER-stripe]",
            f"{COLLECT}test_an_order_that_ends_between_the_question_and_the_send_is_not_charged",
        ),
    ),
    "any token pays": Bug(any_token_pays, (f"{FLOW}test_another_orders_token_is_refused_and_nothing_is_sent",)),
    "no fence on the log": Bug(no_fence, (f"{COLLECT}test_the_one_who_lost_his_claim_changes_nothing",)),
    "a lost commit is not recognised": Bug(
        pending_for_ever_after_a_lost_commit,
        (f"{FLOW}test_a_commit_whose_answer_is_lost_is_found_again_and_sent_once",),
    ),
    "a caller takes the flight with him": Bug(
        caller_takes_the_flight_with_him, (f"{FLOW}test_a_caller_who_hangs_up_takes_nothing_with_him",)
    ),
    "a charge closed after one listing": Bug(
        closed_after_one_listing, (f"{REVIEW}test_a_charge_that_two_complete_listings_do_not_show_was_never_there",)
    ),
    "a charge closed though a server failed": Bug(
        closed_though_a_server_failed,
        (f"{REVIEW}test_it_stays_open_while_anything_of_it_could_come[server error]",),
    ),
    "a charge closed while it is on its way": Bug(
        closed_while_it_is_on_its_way,
        (f"{CORE}test_what_was_never_there_is_closed_when_nothing_can_bring_it_any_more",),
    ),
    "a person's word is not checked": Bug(
        a_persons_word_is_not_checked, (f"{REVIEW}test_another_payment_is_not_believed",)
    ),
}
