"""The official `stripe` package, unmodified but for its base address, against the simulator."""

import json
from typing import Any

import pytest
import stripe

from tests.simulator.station import DAY, SECRET, Receiver, Station, pay, transfer


@pytest.fixture
def client(simulator: Station) -> Any:
    return simulator.stripe()


def replayed(answer: Any) -> bool:
    return str(answer.last_response.headers.get("idempotent-replayed", "")) == "true"


# -- the key table, row by row (docs/providers.md 2.2)


def test_an_unknown_key_executes_and_is_echoed(client: Any, simulator: Station) -> None:
    made = transfer(client, "k1")
    assert made.id.startswith("tr_")
    assert made.last_response.headers["idempotency-key"] == "k1"
    assert made.last_response.headers["request-id"].startswith("req_")
    assert not replayed(made)
    assert [row["id"] for row in simulator.movements("transfer")] == [made.id]


def test_a_complete_key_is_replayed_to_the_byte(client: Any, simulator: Station) -> None:
    first, second = transfer(client, "k1"), transfer(client, "k1")
    assert second.last_response.body == first.last_response.body
    assert replayed(second)
    assert second.last_response.headers["original-request"] == first.last_response.headers["request-id"]
    assert second.last_response.headers["request-id"] != first.last_response.headers["request-id"]
    assert len(simulator.movements("transfer")) == 1
    assert len(client.events.list().data) == 1


def test_the_original_request_header_is_a_switch(client: Any, simulator: Station) -> None:
    simulator.switch("stripe.original_request_header", "absent")
    transfer(client, "k1")
    again = transfer(client, "k1")
    assert replayed(again)
    assert "original-request" not in again.last_response.headers


def test_a_key_with_other_parameters_is_an_idempotency_error(client: Any, simulator: Station) -> None:
    transfer(client, "k1")
    with pytest.raises(stripe.IdempotencyError) as refused:
        transfer(client, "k1", amount=101)
    assert refused.value.http_status == 400
    assert refused.value.error is not None
    assert refused.value.error.type == "idempotency_error"
    with pytest.raises(stripe.IdempotencyError):
        pay(client, "k1")
    assert len(simulator.movements("transfer")) == 1
    assert simulator.movements("charge") == []


def test_a_key_is_forgotten_after_24_hours_and_executes_again(client: Any, simulator: Station) -> None:
    first = transfer(client, "k1")
    simulator.advance(DAY - 60)
    assert transfer(client, "k1").id == first.id
    simulator.advance(61)
    assert transfer(client, "k1").id != first.id
    assert len(simulator.movements("transfer")) == 2


def test_what_is_refused_before_execution_leaves_the_key_free(client: Any, simulator: Station) -> None:
    with pytest.raises(stripe.InvalidRequestError) as refused:
        transfer(client, "k1", amount=0)
    assert refused.value.code == "parameter_invalid_integer"
    with pytest.raises(stripe.AuthenticationError):
        transfer(simulator.stripe("sk_invalid"), "k1")
    assert not replayed(transfer(client, "k1"))


def test_a_refusal_of_the_execution_is_stored(client: Any, simulator: Station) -> None:
    for attempt in (1, 2):
        with pytest.raises(stripe.InvalidRequestError) as refused:
            transfer(client, "k1", destination="acct_closed")
        assert refused.value.code == "account_closed"
        assert refused.value.headers is not None
        assert (refused.value.headers.get("idempotent-replayed") == "true") is (attempt == 2)
    assert simulator.movements("transfer") == []


def test_a_declined_card_is_stored_and_a_new_key_is_a_new_attempt(client: Any, simulator: Station) -> None:
    for _ in (1, 2):
        with pytest.raises(stripe.CardError) as refused:
            pay(client, "k1", payment_method="pm_card_chargeDeclinedInsufficientFunds")
        assert refused.value.http_status == 402
        assert refused.value.code == "card_declined"
        assert refused.value.error is not None
        assert refused.value.error.decline_code == "insufficient_funds"
    assert len(client.payment_intents.list().data) == 1
    assert pay(client, "k2").status == "succeeded"
    assert len(simulator.movements("charge")) == 1


@pytest.mark.parametrize(("value", "moved"), [("platform", 1), ("account", 2)])
def test_the_namespace_of_connected_accounts_is_a_switch(
    client: Any, simulator: Station, value: str, moved: int
) -> None:
    simulator.switch("stripe.key_namespace", value)
    client.payouts.create({"amount": 100, "currency": "usd"}, {"idempotency_key": "k1"})
    options = {"idempotency_key": "k1", "stripe_account": "acct_other"}
    if value == "account":
        assert client.payouts.create({"amount": 100, "currency": "usd"}, options).object == "payout"
    else:
        with pytest.raises(stripe.IdempotencyError):
            client.payouts.create({"amount": 100, "currency": "usd"}, options)
    assert len(simulator.movements("payout")) == moved


# -- errors


def test_a_missing_object_is_404(client: Any) -> None:
    with pytest.raises(stripe.InvalidRequestError) as refused:
        client.transfers.retrieve("tr_nothing")
    assert refused.value.http_status == 404
    assert refused.value.code == "resource_missing"


def test_a_restricted_key_may_read_only(simulator: Station) -> None:
    restricted = simulator.stripe("rk_test_1")
    assert restricted.transfers.list().data == []
    with pytest.raises(stripe.PermissionError):
        transfer(restricted)


def test_an_unknown_parameter_is_named(client: Any) -> None:
    with pytest.raises(stripe.InvalidRequestError) as refused:
        transfer(client, typo=1)
    assert (refused.value.code, refused.value.param) == ("parameter_unknown", "typo")


@pytest.mark.parametrize(
    ("destination", "code"),
    [
        ("acct_unknown", "resource_missing"),
        ("ba_1", "resource_missing"),
        ("acct_closed", "account_closed"),
        ("acct_invalid", "account_invalid"),
        ("acct_standard", "not_allowed_on_standard_account"),
        ("acct_restricted", "transfers_not_allowed"),
    ],
)
def test_magic_destinations_refuse(client: Any, destination: str, code: str) -> None:
    with pytest.raises(stripe.InvalidRequestError) as refused:
        transfer(client, destination=destination)
    assert refused.value.code == code
    assert refused.value.param == "destination"


@pytest.mark.parametrize(
    ("currency", "amount", "good"),
    [
        ("isk", 150, False),
        ("isk", 100, True),
        ("ugx", 150, False),
        ("kwd", 1001, False),
        ("kwd", 1010, True),
        ("jpy", 7, True),
        ("huf", 150, True),
        ("xyz", 100, False),
        ("usd", -1, False),
        ("usd", 10**13, False),
    ],
)
def test_amounts_that_stripe_cannot_write_are_refused(
    client: Any, simulator: Station, *, currency: str, amount: int, good: bool
) -> None:
    if good:
        assert transfer(client, currency=currency, amount=amount).amount == amount
    else:
        with pytest.raises(stripe.InvalidRequestError):
            transfer(client, currency=currency, amount=amount)
    assert len(simulator.movements("transfer")) == int(good)


def test_a_payout_in_forints_is_in_whole_units(client: Any) -> None:
    with pytest.raises(stripe.InvalidRequestError):
        client.payouts.create({"amount": 150, "currency": "huf"})
    assert client.payouts.create({"amount": 200, "currency": "huf"}).amount == 200


@pytest.mark.parametrize(("value", "kind"), [("400", stripe.InvalidRequestError), ("402", stripe.CardError)])
def test_the_status_of_an_insufficient_balance_is_a_switch(
    client: Any, simulator: Station, value: str, kind: type[stripe.StripeError]
) -> None:
    simulator.switch("stripe.balance_insufficient_status", value)
    simulator.call("PUT", "balances/stripe", {"usd": 150})
    if value == "402":
        # The package takes every 402 for a card's.
        with pytest.raises(kind):
            transfer(client, amount=151)
    else:
        with pytest.raises(kind) as refused:
            transfer(client, amount=151)
        assert refused.value.code == "balance_insufficient"
    assert transfer(client, amount=150).amount == 150
    assert client.balance.retrieve().available[0].amount == 0


# -- objects


def test_transfers_are_found_by_group_and_destination(client: Any) -> None:
    made = [transfer(client, transfer_group=f"g{n % 2}", destination=f"acct_{n}").id for n in range(4)]
    assert [found.id for found in client.transfers.list({"transfer_group": "g0"}).data] == [made[2], made[0]]
    assert [found.id for found in client.transfers.list({"destination": "acct_3"}).data] == [made[3]]
    both = client.transfers.list({"transfer_group": "g1", "destination": "acct_0"})
    assert both.data == []
    assert client.transfers.retrieve(made[1]).id == made[1]


def test_lists_are_paged_both_ways(client: Any) -> None:
    made = [transfer(client).id for _ in range(5)][::-1]
    page = client.transfers.list({"limit": 2})
    assert [found.id for found in page.data] == made[:2]
    assert page.has_more is True
    assert [found.id for found in page.auto_paging_iter()] == made
    back = client.transfers.list({"limit": 2, "ending_before": made[4]})
    assert [found.id for found in back.data] == made[2:4]
    assert client.transfers.list({"limit": 2, "starting_after": made[2]}).has_more is False
    with pytest.raises(stripe.InvalidRequestError):
        client.transfers.list({"limit": 101})
    with pytest.raises(stripe.InvalidRequestError):
        client.transfers.list({"starting_after": "tr_nothing"})


def test_lists_are_bounded_by_time(client: Any, simulator: Station) -> None:
    old = transfer(client)
    simulator.advance(100)
    new = transfer(client)
    assert [found.id for found in client.transfers.list({"created": {"gte": new.created}}).data] == [new.id]
    assert [found.id for found in client.transfers.list({"created": {"lt": new.created}}).data] == [old.id]
    assert [found.id for found in client.transfers.list({"created": {"lte": old.created}}).data] == [old.id]
    assert client.transfers.list({"created": {"gt": new.created}}).data == []


def test_a_transfer_is_reversed_in_parts_and_never_beyond(client: Any, simulator: Station) -> None:
    made = transfer(client)
    part = client.transfers.reversals.create(made.id, {"amount": 30})
    assert (part.object, part.amount, part.transfer) == ("transfer_reversal", 30, made.id)
    with pytest.raises(stripe.InvalidRequestError):
        client.transfers.reversals.create(made.id, {"amount": 71})
    assert client.transfers.retrieve(made.id).reversed is False
    client.transfers.reversals.create(made.id)
    whole = client.transfers.retrieve(made.id)
    assert (whole.amount_reversed, whole.reversed) == (100, True)
    assert len(client.transfers.reversals.list(made.id).data) == 2
    assert simulator.movements("transfer")[0]["state"] == "returned"


@pytest.mark.parametrize(("value", "ours"), [("forced", False), ("free", True)])
def test_whose_group_a_source_transaction_has_is_a_switch(
    client: Any, simulator: Station, *, value: str, ours: bool
) -> None:
    simulator.switch("stripe.source_transaction_group", value)
    charge = pay(client, transfer_group="order-9").latest_charge
    made = transfer(client, source_transaction=charge)
    assert made.transfer_group == ("payout-1" if ours else "order-9")
    assert (len(client.transfers.list({"transfer_group": "payout-1"}).data) == 1) is ours


def test_a_payment_is_confirmed_captured_and_canceled(client: Any) -> None:
    waiting = client.payment_intents.create({"amount": 1000, "currency": "usd"})
    assert waiting.status == "requires_payment_method"
    assert client.payment_intents.confirm(waiting.id, {"payment_method": "pm_card_visa"}).status == "succeeded"
    held = pay(client, capture_method="manual")
    assert (held.status, held.amount_capturable) == ("requires_capture", 1000)
    assert client.payment_intents.capture(held.id, {"amount_to_capture": 400}).amount_received == 400
    other = client.payment_intents.create({"amount": 1000, "currency": "usd", "payment_method": "pm_card_visa"})
    assert other.status == "requires_confirmation"
    assert client.payment_intents.cancel(other.id).status == "canceled"
    with pytest.raises(stripe.InvalidRequestError) as refused:
        client.payment_intents.cancel(held.id)
    assert refused.value.code == "payment_intent_unexpected_state"


def test_a_declined_payment_waits_for_another_method(client: Any) -> None:
    with pytest.raises(stripe.CardError) as refused:
        pay(client, payment_method="pm_card_visa_chargeDeclined")
    assert refused.value.error is not None
    intent = refused.value.error.payment_intent
    assert intent is not None
    found = client.payment_intents.retrieve(intent.id)
    assert found.status == "requires_payment_method"
    assert found.last_payment_error.decline_code == "generic_decline"
    assert client.payment_intents.confirm(intent.id, {"payment_method": "pm_card_visa"}).status == "succeeded"


@pytest.mark.parametrize(
    ("method", "status"),
    [("pm_card_authenticationRequired", "requires_action"), ("pm_card_bankTransfer", "processing")],
)
@pytest.mark.parametrize(("action", "end"), [("succeed", "succeeded"), ("fail", "requires_payment_method")])
def test_what_waits_for_a_bank_is_decided_later(
    client: Any, simulator: Station, *, method: str, status: str, action: str, end: str
) -> None:
    made = pay(client, payment_method=method)
    assert made.status == status
    simulator.act(action, made.id)
    assert client.payment_intents.retrieve(made.id).status == end


def test_the_search_is_late(client: Any, simulator: Station) -> None:
    made = pay(client, metadata={"ref": "order-7"})
    query = {"query": "metadata['ref']:'order-7' AND status:'succeeded'"}
    assert client.payment_intents.search(query).data == []
    simulator.advance(61)
    assert [found.id for found in client.payment_intents.search(query).data] == [made.id]
    assert client.payment_intents.search({"query": "metadata['ref']:'order-8'"}).data == []
    simulator.switch("stripe.search_delay_seconds", "0")
    new = pay(client, metadata={"other": "x"})
    assert [found.id for found in client.payment_intents.search({"query": 'metadata["other"]:"x"'}).data] == [new.id]


def test_refunds_never_exceed_the_charge(client: Any, simulator: Station) -> None:
    paid = pay(client)
    first = client.refunds.create({"payment_intent": paid.id, "amount": 400, "metadata": {"ref": "r1"}})
    assert first.status == "succeeded"
    with pytest.raises(stripe.InvalidRequestError):
        client.refunds.create({"payment_intent": paid.id, "amount": 601})
    rest = client.refunds.create({"charge": paid.latest_charge})
    assert rest.amount == 600
    with pytest.raises(stripe.InvalidRequestError) as refused:
        client.refunds.create({"payment_intent": paid.id})
    assert refused.value.code == "charge_already_refunded"
    assert [found.id for found in client.refunds.list({"payment_intent": paid.id}).data] == [rest.id, first.id]
    assert [found.id for found in client.refunds.list({"charge": paid.latest_charge}).data] == [rest.id, first.id]
    assert client.refunds.retrieve(first.id).metadata["ref"] == "r1"
    assert sum(row["amount"] for row in simulator.movements("refund")) == 1000


@pytest.mark.parametrize(("value", "status"), [("yes", "failed"), ("no", "succeeded")])
def test_a_succeeded_refund_can_fail_is_a_switch(client: Any, simulator: Station, value: str, status: str) -> None:
    simulator.switch("stripe.succeeded_refund_can_fail", value)
    refund = client.refunds.create({"payment_intent": pay(client).id})
    simulator.act("fail", refund.id)
    assert client.refunds.retrieve(refund.id).status == status


def test_a_pending_refund_succeeds_later_and_a_failing_one_fails(client: Any, simulator: Station) -> None:
    pending = client.refunds.create({"payment_intent": pay(client, payment_method="pm_card_pendingRefund").id})
    failing = client.refunds.create({"payment_intent": pay(client, payment_method="pm_card_refundFail").id})
    assert (pending.status, failing.status) == ("pending", "succeeded")
    simulator.advance(120)
    assert client.refunds.retrieve(pending.id).status == "succeeded"
    failed = client.refunds.retrieve(failing.id)
    assert failed.status == "failed"
    assert failed.failure_balance_transaction.startswith("txn_")


def test_payouts_are_paid_canceled_or_fail(client: Any, simulator: Station) -> None:
    sent = {"amount": 200, "currency": "usd"}
    paid, canceled = client.payouts.create(sent), client.payouts.create(sent)
    closed = client.payouts.create(sent | {"destination": "ba_account_closed"})
    assert client.payouts.cancel(canceled.id).status == "canceled"
    simulator.advance(DAY + 1)
    assert client.payouts.retrieve(paid.id).status == "paid"
    assert client.payouts.retrieve(canceled.id).status == "canceled"
    assert client.payouts.retrieve(closed.id).failure_code == "account_closed"
    with pytest.raises(stripe.InvalidRequestError):
        client.payouts.cancel(paid.id)
    assert [found.id for found in client.payouts.list({"status": "paid"}).data] == [paid.id]


def test_balance_transactions_tell_what_moved(client: Any) -> None:
    paid = pay(client)
    client.refunds.create({"payment_intent": paid.id, "amount": 100})
    made = transfer(client)
    client.payouts.create({"amount": 50, "currency": "usd"})
    found = client.balance_transactions.list().data
    assert [(row.type, row.net) for row in found] == [
        ("payout", -50),
        ("transfer", -100),
        ("refund", -100),
        ("charge", 1000),
    ]
    assert client.balance_transactions.retrieve(made.balance_transaction).source == made.id
    assert [row.type for row in client.balance_transactions.list({"type": "transfer"}).data] == ["transfer"]
    assert [row.id for row in client.balance_transactions.list({"source": made.id}).data] == [made.balance_transaction]
    after = client.balance_transactions.list({"starting_after": made.balance_transaction}).data
    assert [row.type for row in after] == ["refund", "charge"]
    assert [row.id for row in client.balance_transactions.list({"limit": 1}).auto_paging_iter()] == [
        row.id for row in found
    ]


def test_a_connected_account_has_books_of_its_own(client: Any, simulator: Station) -> None:
    simulator.call("PUT", "balances/stripe?account=acct_other", {"usd": 100})
    options = {"stripe_account": "acct_other"}
    made = client.payouts.create({"amount": 100, "currency": "usd"}, options)
    with pytest.raises(stripe.InvalidRequestError):
        client.payouts.create({"amount": 1, "currency": "usd"}, options)
    assert client.payouts.list().data == []
    assert [found.id for found in client.payouts.list({}, options).data] == [made.id]
    with pytest.raises(stripe.InvalidRequestError):
        client.payouts.retrieve(made.id)
    assert client.events.list().data == []
    assert client.events.list({}, options).data[0].account == "acct_other"


# -- events


def test_events_carry_the_key_that_caused_them(client: Any) -> None:
    made = transfer(client, "k1")
    event = client.events.list({"type": "transfer.created"}).data[0]
    assert event.request.idempotency_key == "k1"
    assert event.request.id == made.last_response.headers["request-id"]
    assert event.data.object.id == made.id
    assert client.events.retrieve(event.id).type == "transfer.created"


def test_events_are_filtered_paged_and_forgotten_after_30_days(client: Any, simulator: Station) -> None:
    paid = pay(client)
    client.refunds.create({"payment_intent": paid.id})
    types = [event.type for event in client.events.list().data]
    assert types == [
        "charge.refunded",
        "refund.created",
        "payment_intent.succeeded",
        "charge.succeeded",
        "payment_intent.created",
    ]
    found = client.events.list({"type": "payment_intent.*"}).data
    assert [event.type for event in found] == ["payment_intent.succeeded", "payment_intent.created"]
    several = client.events.list({"types": ["refund.created", "charge.refunded"]}).data
    assert len(several) == 2
    first = client.events.list().data[-1]
    newer = client.events.list({"ending_before": first.id, "limit": 2}).data
    assert [event.type for event in newer] == ["payment_intent.succeeded", "charge.succeeded"]
    simulator.advance(30 * DAY + 60)
    assert client.events.list().data == []


def test_the_package_verifies_every_webhook(client: Any, simulator: Station, receiver: Receiver) -> None:
    transfer(client, "k1")
    paid = pay(client)
    client.refunds.create({"payment_intent": paid.id})
    simulator.advance(0)
    for headers, body in receiver.received:
        event = stripe.Webhook.construct_event(body, headers["stripe-signature"], SECRET)
        assert event.id == json.loads(body)["id"]
    assert sorted(receiver.types()) == sorted(
        [
            "transfer.created",
            "payment_intent.created",
            "charge.succeeded",
            "payment_intent.succeeded",
            "refund.created",
            "charge.refunded",
        ]
    )


def test_the_package_retries_by_itself_and_pays_once(simulator: Station) -> None:
    """With its own retries on, the same generated key meets the stored result."""
    simulator.plan("stripe.transfer:execute_then_drop, stripe.transfer:gateway_503@2")
    made = transfer(simulator.stripe(max_network_retries=2))
    assert [row["id"] for row in simulator.movements("transfer")] == [made.id]
    assert replayed(made)
