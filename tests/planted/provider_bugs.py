"""Bugs in the way to a provider: see `bugs`."""

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import msgspec

from tallystick.errors import ProviderUnreachable
from tallystick.movement import asking
from tallystick.movement import flow as sending
from tallystick.movement import store as intents
from tallystick.movement.rules import Attempt
from tallystick.movement.rules import permit as leave_well
from tallystick.providers import classification, http, paging
from tallystick.providers.adyen import reading as adyen_reading
from tallystick.providers.adyen import webhook as adyen_webhook
from tallystick.providers.square import answers as square_answers
from tallystick.providers.steady import steady
from tallystick.providers.stripe import adapter as stripe_adapter
from tallystick.providers.stripe import answers as stripe_answers
from tallystick.providers.stripe import listing as stripe_listing
from tallystick.providers.stripe import lookup as stripe_lookup
from tallystick.providers.stripe import webhook as stripe_webhook
from tallystick.providers.stripe.reply import read_reply as read_reply_well
from tallystick.providers.stripe.request import request_for as request_for_well
from tallystick.providers.wise import saga as wise_saga
from tallystick.providers.words import Absent, Done, Lookup, Movement, Sending, Undecided
from tallystick.reconciliation import store as matching
from tallystick.settlement.review import store as review_store
from tallystick.settlement.tick import flow as ticks
from tests.planted.bug import Bug

CONTRACT = "tests/providers/test_contract.py::"
UNSENT = "tests/providers/stripe/test_unsent.py::"
EARLIER = "tests/restore/test_earlier_send.py::"
SAGA = "tests/checkout/saga/test_attacks.py::"
INTENT = "tests/movement/test_store.py::"


def sent_before_commit() -> None:
    """The provider is called while the transaction is open that makes intent and attempt. Every flow must turn red."""
    begin, call, made = intents.begin, sending.call, sending.Sender.__init__
    providers: dict[str, Any] = {}
    answers: dict[bytes, Any] = {}

    def init(self: Any, database: Any, known: Any, **more: Any) -> None:
        providers.update(known)
        made(self, database, known, **more)

    async def begin_and_send(connection: Any, items: Any) -> Any:
        begun = await begin(connection, items)
        for item, attempt in zip(items, begun, strict=True):
            if isinstance(attempt, Attempt):
                early = Sending(
                    first_sent_at=attempt.first_sent_at,
                    not_after=attempt.not_after,
                    sendable_until=steady() + 10,
                    mark=attempt.mark,
                )
                answers[attempt.key] = await call(providers[item.provider], item.instruction, early)
        return begun

    async def told(adapter: Any, instruction: Any, permit: Any) -> Any:
        return answers.pop(instruction.key, None) or await call(adapter, instruction, permit)

    cast("Any", sending.Sender).__init__ = init
    cast("Any", intents).begin = begin_and_send
    cast("Any", sending).call = told


def leave_not_checked() -> None:
    """Bytes are written however late it is."""
    cast("Any", http).steady = lambda: 0.0


def broken_200_is_done() -> None:
    """Whatever comes with a 200 is taken for success."""

    def read_reply(reply: Any, request: Any, exchange: Any) -> Any:
        answer = read_reply_well(reply, request, exchange)
        if reply.status != 200 or isinstance(answer, Done):
            return answer
        return Done(
            movement=Movement(
                provider="stripe", purpose="transfer", id="?", amount_micros=1, currency="EUR", state="moved", status=""
            )
        )

    cast("Any", stripe_adapter).read_reply = read_reply


def _classed(verdict: str, wrong: Callable[[Any], bool]) -> None:
    for module in (stripe_answers, square_answers, adyen_reading, wise_saga):
        original = module.classify

        def classify(table: Any, trouble: Any, evidence: Any, original: Any = original) -> Any:
            if wrong(trouble):
                table = (classification.Row(verdict=cast("Any", verdict), source="planted"),)
            return original(table, trouble, evidence)

        cast("Any", module).classify = classify


def server_error_is_refused() -> None:
    """A 500 is taken for a failure."""
    _classed("refused", lambda trouble: trouble.reply.status == 500)


def key_in_flight_is_busy() -> None:
    """A key that somebody is working on is taken for a call that did not run."""
    _classed("busy", lambda trouble: trouble.code in {"idempotency_key_in_use", "704", "CONFLICT"})


def new_key_for_each_send() -> None:
    """Each send makes a key of its own."""

    def request_for(instruction: Any, mark: str = "") -> Any:
        return request_for_well(msgspec.structs.replace(instruction, key=uuid4().bytes + uuid4().bytes), mark)

    cast("Any", stripe_adapter).request_for = request_for


def only_the_first_item_is_verified() -> None:
    """As the official package does it."""
    original = adyen_webhook._item_fault
    seen: list[object] = []

    def item_fault(account: Any, item: Any) -> Any:
        seen.append(item)
        return original(account, item) if len(seen) == 1 else None

    cast("Any", adyen_webhook)._item_fault = item_fault


def future_webhook_is_timely() -> None:
    """Only the stale ones are refused, as the official package does it."""
    original = stripe_webhook._untimely
    cast("Any", stripe_webhook)._untimely = lambda age, tolerance: original(max(age, 0.0), tolerance)


def broken_lookup_proves_absence() -> None:
    """A question that was not answered is taken for a no."""
    original = stripe_lookup.look_up

    async def look_up(*arguments: Any, **facts: Any) -> Any:
        looked = await original(*arguments, **facts)
        return Absent(lookup=Lookup.EXACT) if isinstance(looked, Undecided) else looked

    cast("Any", stripe_lookup).look_up = look_up


def half_a_list_is_the_whole() -> None:
    """A list of movements that breaks off ends quietly."""
    original = stripe_listing.movements

    async def movements(*arguments: Any, **facts: Any) -> AsyncIterator[Any]:
        try:
            async for movement in original(*arguments, **facts):
                yield movement
        except ProviderUnreachable:
            return

    cast("Any", stripe_listing).movements = movements


def a_page_is_asked_for_once() -> None:
    """A list of a thousand pages begins anew wherever one of them fails."""
    cast("Any", paging).PAUSES = ()


def a_strangers_key_counts() -> None:
    """What bears a payout's key is that payout, in whoever's account it was moved."""
    for module in (asking, review_store, matching):
        cast("Any", module).may_have_paid = lambda _provider_id, _destination: True


def accounts_that_nobody_lists_are_paid() -> None:
    """A payout of any connected account is ordered, though none could be found again."""
    cast("Any", stripe_adapter.Stripe)._is_listed = lambda _self, _account: True


def earlier_sends_are_those_we_know() -> None:
    """What a life that was lost has sent is looked for from our own first send on."""
    cast("Any", sending).Sending = lambda **said: Sending(**{**said, "since": None})


def claimed_though_nobody_can_be_asked() -> None:
    """A backlog is claimed while the books cannot be read."""

    async def always(_self: Any, _provider: str) -> bool:
        return True

    cast("Any", ticks._Run)._can_be_asked = always


def _leave(spoilt: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    def leave(known: Any, wanted: Any, **times: Any) -> Any:
        return leave_well(*spoilt(known, wanted), **times)

    cast("Any", intents).permit = leave


def resent_past_the_horizon() -> None:
    """A key is trusted for ever."""
    _leave(lambda known, wanted: (known, msgspec.structs.replace(wanted, remembered=timedelta(days=36_500))))


def other_account_asked() -> None:
    """An intent is sent with whatever account is configured now."""
    _leave(lambda known, wanted: (known, msgspec.structs.replace(wanted, account=known.account)))


def done_is_sent_again() -> None:
    """Only the newest attempt's silence counts."""

    def forgetting(known: Any, wanted: Any) -> tuple[Any, Any]:
        last = known.last and msgspec.structs.replace(known.last, done_as=None)
        return msgspec.structs.replace(known, last=last), wanted

    _leave(forgetting)


PROVIDER_BUGS: Mapping[str, Bug] = {
    "sent_before_commit": Bug(
        sent_before_commit,
        (
            "tests/movement/test_flow.py::test_what_is_sent_is_committed_before_its_first_byte_leaves",
            "tests/settlement/tick/test_flow.py::test_what_is_sent_is_claimed_and_posted_before_its_first_byte_leaves",
            "tests/checkout/payment/test_flow.py::test_nothing_is_sent_before_log_and_intent_are_committed",
            f"{SAGA}test_nothing_is_given_back_before_receipt_log_and_intent_are_committed",
        ),
    ),
    "resent_past_the_horizon": Bug(
        resent_past_the_horizon,
        tuple(
            f"{INTENT}test_what_may_have_run_is_not_sent_past_the_horizon[embedded18-{given}]"
            for given in ("given0", "None")
        ),
    ),
    "other_account_asked": Bug(
        other_account_asked,
        (INTENT + "test_an_intent_stays_with_the_account_it_was_first_sent_with[embedded18]",),
    ),
    "done_is_sent_again": Bug(done_is_sent_again, (INTENT + "test_what_is_done_is_never_sent_again[embedded18]",)),
    "leave_not_checked": Bug(
        leave_not_checked,
        (
            "tests/providers/test_http.py::test_without_leave_not_one_byte_leaves",
            CONTRACT + "test_nothing_is_sent_without_leave[stripe]",
        ),
    ),
    "broken_200_is_done": Bug(
        broken_200_is_done,
        tuple(
            f"{CONTRACT}test_what_nobody_can_know_is_unknown[stripe-{fault}]"
            for fault in ("html_200", "empty_200", "wrong_type_200")
        ),
    ),
    "server_error_is_refused": Bug(
        server_error_is_refused,
        tuple(
            f"{CONTRACT}test_what_nobody_can_know_is_unknown[{name}-execute_then_500]"
            for name in ("stripe", "adyen", "square", "wise")
        ),
    ),
    "key_in_flight_is_busy": Bug(
        key_in_flight_is_busy,
        tuple(
            f"{CONTRACT}test_what_nobody_can_know_is_unknown[{name}-in_flight]"
            for name in ("stripe", "adyen", "square")
        ),
    ),
    "new_key_for_each_send": Bug(
        new_key_for_each_send,
        (CONTRACT + "test_an_instruction_is_carried_out_once_however_often_it_is_sent[stripe]",),
    ),
    "only_the_first_item_is_verified": Bug(
        only_the_first_item_is_verified,
        ("tests/providers/adyen/test_webhook.py::test_every_item_is_verified_not_only_the_first",),
    ),
    "future_webhook_is_timely": Bug(
        future_webhook_is_timely,
        ("tests/providers/stripe/test_webhook.py::test_the_tolerance_holds_in_both_directions[-301-timestamp_future]",),
    ),
    "broken_lookup_proves_absence": Bug(
        broken_lookup_proves_absence,
        tuple(
            f"{CONTRACT}test_a_lookup_that_was_not_answered_proves_nothing[stripe-{fault}]"
            for fault in ("gateway_503", "cut_body", "empty_200")
        ),
    ),
    "a_page_is_asked_for_once": Bug(
        a_page_is_asked_for_once,
        (CONTRACT + "test_a_page_that_does_not_come_is_asked_for_again[stripe]",),
    ),
    "a_strangers_key_counts": Bug(
        a_strangers_key_counts,
        (
            "tests/movement/test_asking.py::test_a_payout_in_somebody_elses_account_is_no_other_payout_of_ours",
            "tests/settlement/review/test_flow.py::test_what_somebody_moves_in_his_own_account_is_no_payout_of_ours",
            "tests/reconciliation/test_flow.py::test_what_somebody_moves_in_his_own_account_is_not_taken_for_ours",
        ),
    ),
    "accounts_that_nobody_lists_are_paid": Bug(
        accounts_that_nobody_lists_are_paid,
        (f"{UNSENT}test_what_cannot_be_right_is_refused_before_anything_is_sent[instruction6-account_not_listed]",),
    ),
    "earlier_sends_are_those_we_know": Bug(
        earlier_sends_are_those_we_know,
        ("tests/restore/test_earlier_send.py::test_a_refusal_does_not_make_a_failure_of_what_a_lost_life_had_paid",),
    ),
    "claimed_though_nobody_can_be_asked": Bug(
        claimed_though_nobody_can_be_asked,
        ("tests/settlement/tick/test_unread.py::test_a_backlog_waits_as_pending_where_the_books_cannot_be_read",),
    ),
    "half_a_list_is_the_whole": Bug(
        half_a_list_is_the_whole, (CONTRACT + "test_a_list_that_breaks_off_is_not_taken_for_the_whole[stripe]",)
    ),
}
