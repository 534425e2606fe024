"""The simulator as other clients of Stripe's see it: no prefix, expand[], accounts, disputes, balances that move."""

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import stripe

from tests.simulator.station import Station, pay, transfer


@pytest.fixture
def client(simulator: Station) -> Any:
    return simulator.stripe()


def asked(url: str, path: str, *, host: str = "") -> tuple[int, Any]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=20)
    headers = {"authorization": "Bearer sk_test_1", **({"host": host} if host else {})}
    connection.request("GET", path, headers=headers)
    reply = connection.getresponse()
    body = json.loads(reply.read())
    connection.close()
    return reply.status, body


# -- without the prefix


def test_a_dialect_answers_to_its_name_without_a_prefix(simulator: Station) -> None:
    port = urlsplit(simulator.url).port
    assert asked(simulator.url, "/v1/balance", host=f"stripe.localhost:{port}")[1]["object"] == "balance"
    assert asked(simulator.url, "/v1/balance", host=f"stripe.example.com:{port}")[0] in {403, 404}
    assert asked(simulator.url, "/stripe/v1/balance", host="stripe.localhost.example.com")[0] == 403


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A simulator with a port for Stripe alone, as `tally simulator --listen stripe=0` starts it."""
    command = [sys.executable, "-m", "tallystick.simulator", "--books", str(tmp_path / "books.sqlite")]
    process = subprocess.Popen([*command, "--listen", "stripe=0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())
    process.terminate()
    assert process.wait(20) == 0
    process.stdout.close()


def test_the_official_package_needs_no_prefix_on_a_port_of_its_own(alone: dict[str, str]) -> None:
    transport = stripe.RequestsClient(timeout=20)
    addresses: Any = {"api": alone["stripe"]}
    client = stripe.StripeClient("sk_test_1", base_addresses=addresses, http_client=transport).v1
    made = client.payment_intents.create({"amount": 1_000, "currency": "eur"})
    # One and the same books.
    with_prefix: Any = {"api": f"{alone['url']}/stripe"}
    other = stripe.StripeClient("sk_test_1", base_addresses=with_prefix, http_client=transport).v1
    assert other.payment_intents.retrieve(made.id).id == made.id


# -- balances


def amounts(client: Any) -> dict[str, int]:
    return {one.currency: one.amount for one in client.balance.retrieve().available}


def test_a_balance_moves_in_each_currency_by_itself(client: Any) -> None:
    before = amounts(client)
    pay(client, "k1", amount=5_000, currency="eur")
    transfer(client, "k2", amount=700, currency="usd")
    after = amounts(client)
    assert after["eur"] - before.get("eur", before["usd"]) == 5_000
    assert after["usd"] - before["usd"] == -700


def test_a_balance_with_a_limit_stands_beside_those_without(client: Any, simulator: Station) -> None:
    simulator.call("PUT", "balances/stripe", {"GBP": 1_000})
    transfer(client, "k1", amount=400, currency="gbp")
    transfer(client, "k2", amount=300, currency="usd")
    found = amounts(client)
    assert found["gbp"] == 600
    assert found["usd"] > 1_000_000


# -- expand


def test_ids_become_objects_where_they_are_expanded(client: Any) -> None:
    made = pay(client, "k1", expand=["latest_charge.balance_transaction"])
    assert made.latest_charge.object == "charge"
    assert made.latest_charge.balance_transaction.object == "balance_transaction"
    assert made.latest_charge.balance_transaction.source == made.latest_charge.id
    again = client.payment_intents.retrieve(made.id, {"expand": ["latest_charge"]})
    assert again.latest_charge.id == made.latest_charge.id
    listed = client.payment_intents.list({"expand": ["data.latest_charge"]}).data
    assert [one.latest_charge.object for one in listed] == ["charge"]
    assert client.payment_intents.retrieve(made.id).latest_charge == made.latest_charge.id
    moved = transfer(client, "k2", expand=["balance_transaction"])
    assert moved.balance_transaction.amount == -moved.amount


@pytest.mark.parametrize("path", ["amount", "nothing", "latest_charge.nothing", "a.b.c.d.e"])
def test_what_cannot_be_expanded_is_refused(client: Any, path: str) -> None:
    made = pay(client, "k1")
    with pytest.raises(stripe.InvalidRequestError, match="expand"):
        client.payment_intents.retrieve(made.id, {"expand": [path]})


# -- updating an intent


def test_an_intent_is_updated_before_it_is_confirmed(client: Any) -> None:
    made = client.payment_intents.create({"amount": 1_000, "currency": "eur", "metadata": {"a": "1", "b": "2"}})
    changed = client.payment_intents.update(
        made.id, {"amount": 1_500, "description": "two", "metadata": {"a": "", "c": "3"}}
    )
    assert (changed.amount, changed.description, changed.metadata.to_dict()) == (1_500, "two", {"b": "2", "c": "3"})
    with_card = client.payment_intents.update(made.id, {"payment_method": "pm_card_visa"})
    assert with_card.status == "requires_confirmation"
    paid = client.payment_intents.confirm(made.id)
    assert (paid.status, paid.amount_received) == ("succeeded", 1_500)
    with pytest.raises(stripe.InvalidRequestError) as refused:
        client.payment_intents.update(made.id, {"amount": 9_000})
    assert refused.value.code == "payment_intent_unexpected_state"
    assert client.payment_intents.update(made.id, {"description": "paid"}).description == "paid"


# -- accounts


def test_accounts_are_made_shown_and_listed(client: Any) -> None:
    made = client.accounts.create({"type": "express", "country": "DE", "email": "a@example.com"})
    assert client.accounts.retrieve(made.id).country == "DE"
    assert [one.id for one in client.accounts.list().data] == [made.id]
    assert client.accounts.retrieve("acct_good").payouts_enabled
    assert transfer(client, "k1", destination=made.id).destination == made.id
    with pytest.raises(stripe.InvalidRequestError):
        client.accounts.retrieve("acct_unknown")


# -- disputes


def test_an_inquiry_moves_nothing_and_may_become_a_dispute(client: Any, simulator: Station) -> None:
    made = pay(client, "k1")
    before = amounts(client)
    simulator.act("inquire", made.id)
    (inquiry,) = client.disputes.list({"payment_intent": made.id}).data
    assert (inquiry.status, inquiry.is_charge_refundable) == ("warning_needs_response", True)
    assert amounts(client) == before
    simulator.act("escalate", inquiry.id)
    assert client.disputes.retrieve(inquiry.id).status == "needs_response"
    assert amounts(client)["usd"] - before["usd"] == -1_000
    assert client.charges.retrieve(made.latest_charge).disputed
    simulator.act("win", inquiry.id)
    assert client.disputes.retrieve(inquiry.id).status == "won"
    assert amounts(client) == before
    told = [event.type for event in client.events.list({"limit": 50}).data][::-1]
    assert [kind for kind in told if kind.startswith("charge.dispute")] == [
        "charge.dispute.created",
        "charge.dispute.updated",
        "charge.dispute.funds_withdrawn",
        "charge.dispute.closed",
        "charge.dispute.funds_reinstated",
    ]


def test_an_inquiry_that_is_closed_was_no_dispute(client: Any, simulator: Station) -> None:
    made = pay(client, "k1")
    simulator.act("inquire", made.id)
    (inquiry,) = client.disputes.list().data
    simulator.act("close_inquiry", inquiry.id)
    assert client.disputes.retrieve(inquiry.id).status == "warning_closed"
    assert not client.charges.retrieve(made.latest_charge).disputed


# -- what it does not do


def test_what_it_does_not_do_is_said(client: Any, simulator: Station) -> None:
    with pytest.raises(stripe.InvalidRequestError, match="simulator, which does not do that") as refused:
        client.subscriptions.list()
    assert refused.value.http_status == 404
    status, body = asked(simulator.url, "/stripe/v1/customers")
    assert status == 404
    assert "GET/POST /v1/payment_intents" in body["error"]["message"]


@pytest.mark.parametrize(
    ("path", "does"),
    [
        ("/adyen/checkout/v72/paymentLinks", "POST /checkout/{version}/payments"),
        ("/square/v2/catalog/list", "GET/POST /v2/payments"),
        ("/wise/v1/cards", "GET /{version}/profiles"),
    ],
    ids=["adyen", "square", "wise"],
)
def test_every_dialect_says_what_it_does_not_do(simulator: Station, path: str, does: str) -> None:
    status, body = asked(simulator.url, path)
    assert status == 404
    said = json.dumps(body)
    assert "This is a simulator, which does not do that." in said
    assert does in said


@pytest.mark.parametrize(
    "more",
    [
        {"transfer_data": {"destination": "acct_good"}},
        {"on_behalf_of": "acct_good"},
        {"application_fee_amount": 10},
        {"setup_future_usage": "off_session"},
    ],
    ids=lambda more: next(iter(more)),
)
def test_money_is_not_left_where_it_would_have_gone_elsewhere(client: Any, more: dict[str, Any]) -> None:
    """Taken and ignored, a destination charge would look as if it worked, and its seller have nothing."""
    with pytest.raises(stripe.InvalidRequestError, match="simulator, which does not do that") as refused:
        client.payment_intents.create({"amount": 1_000, "currency": "eur", **more})
    assert refused.value.param == next(iter(more))
    made = pay(client, "k1")
    with pytest.raises(stripe.InvalidRequestError, match="simulator, which does not do that"):
        client.refunds.create({"payment_intent": made.id, "reverse_transfer": True})
    assert client.refunds.create({"payment_intent": made.id, "reverse_transfer": False}).status == "succeeded"
