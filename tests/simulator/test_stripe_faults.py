"""Every fault that can strike Stripe, as its client sees it, and what the books say about it."""

import threading
import time
from typing import Any

import pytest
import stripe

from tallystick.simulator.catalogue import CATALOGUE, Stage
from tests.simulator.station import DAY, Receiver, Station, pay, transfer


@pytest.fixture
def client(simulator: Station) -> Any:
    return simulator.stripe()


def moved(simulator: Station) -> int:
    return len(simulator.movements("transfer"))


def is_replay(error: stripe.StripeError) -> bool:
    return error.headers is not None and error.headers.get("idempotent-replayed") == "true"


# What the client sees; whether the money moved; whether the same key meets a stored answer afterwards.
ANSWERED = [
    ("refused(account_closed)", stripe.InvalidRequestError, 400, False, True),
    ("error_500_no_object", stripe.APIError, 500, False, True),
    ("error_500_object_later", stripe.APIError, 500, False, True),
    ("execute_then_500", stripe.APIError, 500, True, True),
    ("rate_limited", stripe.RateLimitError, 429, False, False),
    ("lock_timeout", stripe.RateLimitError, 429, False, False),
    ("unauthorized", stripe.AuthenticationError, 401, False, False),
    ("forbidden", stripe.PermissionError, 403, False, False),
    ("in_flight", stripe.APIError, 409, False, False),
    ("error_424", stripe.APIError, 424, False, False),
    ("redirect", stripe.APIError, 302, False, False),
    ("gateway_502", stripe.APIError, 502, False, False),
    ("gateway_503", stripe.APIError, 503, False, False),
    ("gateway_504", stripe.APIError, 504, False, False),
    ("gateway_502_after", stripe.APIError, 502, True, True),
    ("gateway_503_after", stripe.APIError, 503, True, True),
    ("gateway_504_after", stripe.APIError, 504, True, True),
    ("html_200", stripe.APIError, 200, True, True),
    ("empty_200", stripe.APIError, 200, True, True),
    ("drop_before", stripe.APIConnectionError, None, False, False),
    ("execute_then_drop", stripe.APIConnectionError, None, True, True),
    ("execute_then_reset", stripe.APIConnectionError, None, True, True),
    ("cut_body", stripe.APIConnectionError, None, True, True),
    ("hang", stripe.APIConnectionError, None, True, True),
]
STORED_FAILURES = {"refused(account_closed)", "error_500_no_object", "error_500_object_later", "execute_then_500"}


@pytest.mark.parametrize(
    ("fault", "kind", "status", "is_moved", "is_stored"), ANSWERED, ids=[row[0].partition("(")[0] for row in ANSWERED]
)
def test_the_fault_is_seen_and_the_same_key_never_pays_twice(
    simulator: Station,
    *,
    fault: str,
    kind: type[stripe.StripeError],
    status: int | None,
    is_moved: bool,
    is_stored: bool,
) -> None:
    client = simulator.stripe(timeout=1 if fault == "hang" else 20)
    simulator.plan(f"stripe.transfer:{fault}")
    with pytest.raises(stripe.StripeError) as seen:
        transfer(client, "k1")
    assert type(seen.value) is kind or (fault == "redirect" and isinstance(seen.value, stripe.StripeError))
    if fault != "redirect":
        assert seen.value.http_status == status
    assert moved(simulator) == int(is_moved)
    assert simulator.struck() == {fault.partition("(")[0]: 1}

    if fault in STORED_FAILURES:
        with pytest.raises(stripe.StripeError) as again:
            transfer(client, "k1")
        assert is_replay(again.value)
        assert again.value.http_status == status
        assert moved(simulator) == int(is_moved)
        return
    answer = transfer(client, "k1")
    assert (answer.last_response.headers.get("idempotent-replayed") == "true") is is_stored
    assert moved(simulator) == 1


def test_the_limiter_says_when_to_come_back(client: Any, simulator: Station) -> None:
    simulator.plan("stripe.transfer:rate_limited, stripe.transfer:lock_timeout@2")
    with pytest.raises(stripe.RateLimitError) as limited:
        transfer(client)
    assert limited.value.headers is not None
    assert limited.value.headers["retry-after"] == "1"
    assert limited.value.error is not None
    assert limited.value.error.code == "rate_limit"
    with pytest.raises(stripe.RateLimitError) as locked:
        transfer(client)
    assert locked.value.headers is not None
    assert locked.value.headers["stripe-should-retry"] == "true"
    assert locked.value.error is not None
    assert locked.value.error.code == "lock_timeout"


def test_a_wrong_type_and_a_huge_body_come_with_200(client: Any, simulator: Station) -> None:
    simulator.plan("stripe.transfer:wrong_type_200, stripe.transfer:huge_body(2)@2")
    assert transfer(client, "k1") == ["ok"]
    huge = transfer(client, "k2")
    assert len(huge.last_response.body) > 2_000_000
    assert moved(simulator) == 2


def test_a_trickle_arrives_in_the_end(client: Any, simulator: Station) -> None:
    simulator.plan("stripe.transfer:trickle(0.3)")
    started = time.monotonic()
    assert transfer(client).object == "transfer"
    assert time.monotonic() - started > 0.2


def test_an_object_appears_long_after_its_500_and_only_a_webhook_tells(
    client: Any, simulator: Station, receiver: Receiver
) -> None:
    simulator.plan("stripe.transfer:error_500_object_later(600)")
    with pytest.raises(stripe.APIError):
        transfer(client, "k1")
    simulator.advance(0)
    assert (moved(simulator), receiver.received) == (0, [])
    simulator.advance(601)
    assert moved(simulator) == 1
    event = receiver.events()[0]
    assert event["type"] == "transfer.created"
    assert event["data"]["object"]["transfer_group"] == "payout-1"
    with pytest.raises(stripe.APIError) as again:
        transfer(client, "k1")
    assert is_replay(again.value)
    assert moved(simulator) == 1


def test_a_forgotten_key_pays_twice(client: Any, simulator: Station) -> None:
    simulator.plan("stripe.transfer:forget_key@2")
    first, second = transfer(client, "k1"), transfer(client, "k1")
    assert first.id != second.id
    assert moved(simulator) == 2


@pytest.mark.parametrize(("fault", "is_moved_early"), [("slow_before(0.6)", False), ("slow_after(0.6)", True)])
def test_a_twin_is_told_that_the_first_is_in_flight(
    client: Any, simulator: Station, *, fault: str, is_moved_early: bool
) -> None:
    simulator.plan(f"stripe.transfer:{fault}")
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(transfer(simulator.stripe(), "k1")))
    first.start()
    while not simulator.struck():
        time.sleep(0.01)
    with pytest.raises(stripe.APIError) as twin:
        transfer(client, "k1")
    assert twin.value.http_status == 409
    assert twin.value.error is not None
    assert twin.value.error.code == "idempotency_key_in_use"
    assert moved(simulator) == int(is_moved_early)
    first.join()
    assert answers[0].object == "transfer"
    assert transfer(client, "k1").id == answers[0].id
    assert moved(simulator) == 1


def test_a_slow_effect_happens_though_the_client_left(simulator: Station) -> None:
    simulator.plan("stripe.transfer:slow_before(0.6)")
    with pytest.raises(stripe.APIConnectionError):
        transfer(simulator.stripe(timeout=0.2), "k1")
    assert moved(simulator) == 0
    while not moved(simulator):
        time.sleep(0.02)
    assert transfer(simulator.stripe(), "k1").last_response.headers["idempotent-replayed"] == "true"
    assert moved(simulator) == 1


def test_a_paid_payout_fails_days_later(client: Any, simulator: Station, receiver: Receiver) -> None:
    simulator.call("PUT", "balances/stripe", {"usd": 500})
    simulator.plan("stripe.payout:paid_then_failed")
    made = client.payouts.create({"amount": 200, "currency": "usd"})
    simulator.advance(DAY + 1)
    assert client.payouts.retrieve(made.id).status == "paid"
    simulator.advance(2 * DAY)
    failed = client.payouts.retrieve(made.id)
    assert (failed.status, failed.failure_code) == ("failed", "account_closed")
    # Deliveries may overtake each other, as real ones do.
    assert sorted(receiver.types()) == ["payout.created", "payout.failed", "payout.paid"]
    assert client.balance.retrieve().available[0].amount == 500
    assert simulator.movements("payout")[0]["state"] == "returned"


def test_a_transfer_is_taken_back_later(client: Any, simulator: Station, receiver: Receiver) -> None:
    simulator.plan("stripe.transfer:reversed")
    made = transfer(client)
    simulator.advance(DAY + 1)
    assert client.transfers.retrieve(made.id).reversed is True
    assert sorted(receiver.types()) == ["transfer.created", "transfer.reversed"]


def test_a_refund_fails_after_it_succeeded(client: Any, simulator: Station, receiver: Receiver) -> None:
    simulator.plan("stripe.refund:refund_failed_later")
    paid = pay(client)
    made = client.refunds.create({"payment_intent": paid.id})
    assert made.status == "succeeded"
    simulator.advance(DAY + 1)
    assert client.refunds.retrieve(made.id).status == "failed"
    assert "refund.failed" in receiver.types()
    assert client.refunds.create({"payment_intent": paid.id}).amount == 1000


@pytest.mark.parametrize(
    ("operation", "code", "kind"),
    [
        ("charge", "insufficient_funds", stripe.CardError),
        ("charge", "expired_card", stripe.CardError),
        ("charge", "", stripe.CardError),
        ("refund", "charge_disputed", stripe.InvalidRequestError),
        ("payout", "payouts_not_allowed", stripe.InvalidRequestError),
    ],
)
def test_a_refusal_has_the_code_of_choice(
    client: Any, simulator: Station, operation: str, code: str, kind: type[stripe.StripeError]
) -> None:
    paid = pay(client)
    simulator.plan(f"stripe.{operation}:refused" + (f"({code})" if code else ""))
    with pytest.raises(kind) as refused:
        match operation:
            case "charge":
                pay(client)
            case "refund":
                client.refunds.create({"payment_intent": paid.id})
            case _:
                client.payouts.create({"amount": 1, "currency": "usd"})
    assert refused.value.error is not None
    error = refused.value.error
    named = getattr(error, "decline_code", None) if error.code == "card_declined" else error.code
    assert named == (code or "generic_decline")
    assert simulator.movements("refund") == simulator.movements("payout") == []


def test_every_fault_of_stripe_has_a_test_here() -> None:
    tested = {row[0].partition("(")[0] for row in ANSWERED}
    tested |= {"wrong_type_200", "huge_body", "trickle", "forget_key", "slow_before", "slow_after"}
    tested |= {"paid_then_failed", "reversed", "refund_failed_later"}
    faults = (fault for fault in CATALOGUE.values() if fault.stage is not Stage.WEBHOOK)
    assert tested == {fault.name for fault in faults if "stripe" in fault.dialects}
