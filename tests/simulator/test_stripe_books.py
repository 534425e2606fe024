"""Stripe's books: whose objects they are, what a transfer may draw on, and that whatever is sent is answered."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tallystick.simulator.dialect import Request
from tallystick.simulator.stripe.wire import parameters
from tests.simulator.station import Station

MANY = "9" * 5000
OTHER = {"stripe-account": "acct_other"}


@pytest.fixture
def stripe(simulator: Station) -> Iterator[httpx2.Client]:
    headers = {"authorization": "Bearer sk_test_1"}
    with httpx2.Client(base_url=f"{simulator.url}/stripe/v1", headers=headers, timeout=30) as client:
        yield client


def post(stripe: httpx2.Client, path: str, body: str, headers: dict[str, str] | None = None) -> httpx2.Response:
    return stripe.post(path, content=body, headers=headers)


def error(answer: httpx2.Response) -> tuple[int, Any, Any]:
    told = answer.json()["error"]
    assert told["type"] == "invalid_request_error", told
    return answer.status_code, told.get("code"), told.get("param")


PAYMENT = "amount=1000&currency=usd&payment_method=pm_card_visa&confirm=true"


def paid(stripe: httpx2.Client, headers: dict[str, str] | None = None) -> Any:
    return post(stripe, "/payment_intents", PAYMENT, headers).json()


# -- whose it is


def test_a_payout_of_another_account_is_not_cancelled(simulator: Station, stripe: httpx2.Client) -> None:
    payout = post(stripe, "/payouts", "amount=100&currency=usd", OTHER).json()["id"]
    assert error(post(stripe, f"/payouts/{payout}/cancel", ""))[:2] == (404, "resource_missing")
    assert [row["state"] for row in simulator.movements("payout")] == ["moving"]
    assert post(stripe, f"/payouts/{payout}/cancel", "", OTHER).status_code == 200


def test_a_transfer_of_another_account_is_not_reversed(simulator: Station, stripe: httpx2.Client) -> None:
    sent = post(stripe, "/transfers", "amount=100&currency=usd&destination=acct_1", OTHER).json()["id"]
    assert error(post(stripe, f"/transfers/{sent}/reversals", ""))[:2] == (404, "resource_missing")
    assert error(stripe.get(f"/transfers/{sent}/reversals"))[:2] == (404, "resource_missing")
    assert simulator.movements("reversal") == []
    made = post(stripe, f"/transfers/{sent}/reversals", "", OTHER).json()
    (listed,) = stripe.get(f"/transfers/{sent}/reversals", headers=OTHER).json()["data"]
    (shown,) = stripe.get(f"/transfers/{sent}", headers=OTHER).json()["reversals"]["data"]
    assert listed == shown == made
    assert "_account" not in made


def test_a_payment_of_another_account_is_not_refunded(simulator: Station, stripe: httpx2.Client) -> None:
    intent = paid(stripe, OTHER)
    for named in (f"payment_intent={intent['id']}", f"charge={intent['latest_charge']}"):
        assert error(post(stripe, "/refunds", named))[:2] == (404, "resource_missing")
    assert simulator.movements("refund") == []


def test_an_event_of_another_account_is_not_shown(stripe: httpx2.Client) -> None:
    paid(stripe, OTHER)
    event = stripe.get("/events", headers=OTHER).json()["data"][0]["id"]
    assert stripe.get(f"/events/{event}").status_code == 404
    assert stripe.get(f"/events/{event}", headers=OTHER).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ("amount=1001&currency=usd", "amount"),
        ("amount=100&currency=eur", "currency"),
    ],
)
def test_a_transfer_takes_from_a_charge_what_is_there(
    simulator: Station, stripe: httpx2.Client, fields: str, param: str
) -> None:
    source = f"&destination=acct_1&source_transaction={paid(stripe)['latest_charge']}"
    assert error(post(stripe, "/transfers", fields + source)) == (400, None, param)
    assert simulator.movements("transfer") == []
    assert post(stripe, "/transfers", "amount=1000&currency=usd" + source).status_code == 200


def test_a_charge_of_another_account_is_no_source(stripe: httpx2.Client) -> None:
    source = f"&destination=acct_1&source_transaction={paid(stripe, OTHER)['latest_charge']}"
    assert error(post(stripe, "/transfers", "amount=1&currency=usd" + source))[:2] == (404, "resource_missing")


# -- keys


def test_a_malformed_refund_amount_is_not_stored(simulator: Station, stripe: httpx2.Client) -> None:
    intent, key = paid(stripe)["id"], {"idempotency-key": "k"}
    answer = post(stripe, "/refunds", f"payment_intent={intent}&amount=ten", key)
    assert error(answer) == (400, "parameter_invalid_integer", "amount")
    assert post(stripe, "/refunds", f"payment_intent={intent}&amount=10", key).status_code == 200
    assert len(simulator.movements("refund")) == 1


@pytest.mark.parametrize(("version", "transfers"), [("ignored", 1), ("separate", 2)])
def test_whether_the_api_version_counts_for_keys_is_a_switch(
    simulator: Station, stripe: httpx2.Client, version: str, transfers: int
) -> None:
    simulator.switch("stripe.key_api_version", version)
    for named in ("2025-01-01", "2026-01-01", "2025-01-01"):
        headers = {"idempotency-key": "k", "stripe-version": named}
        post(stripe, "/transfers", "amount=100&currency=usd&destination=acct_1", headers)
    assert len(simulator.movements("transfer")) == transfers


# -- faults


@pytest.mark.parametrize(("written", "seconds"), [("rate_limited", "1"), ("rate_limited(30)", "30")])
@pytest.mark.parametrize("dialect", ["stripe", "adyen", "square", "wise"])
def test_a_rate_limit_says_how_long_to_wait(simulator: Station, dialect: str, written: str, seconds: str) -> None:
    paths = {
        "stripe": "/stripe/v1/transfers",
        "adyen": "/adyen/btl/v4/transfers/x",
        "square": "/square/v2/payments",
        "wise": "/wise/v1/transfers",
    }
    simulator.plan(f"{dialect}.*:{written}")
    headers = {"authorization": "Bearer sk_1", "x-api-key": "x"}
    answer = httpx2.get(simulator.url + paths[dialect], headers=headers)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, seconds)


def test_a_payment_refused_by_plan_names_its_intent(simulator: Station, stripe: httpx2.Client) -> None:
    simulator.plan("stripe.charge:refused(insufficient_funds)@1-2")
    first, second = (post(stripe, "/payment_intents", PAYMENT).json()["error"] for _ in range(2))
    assert (first["code"], first["decline_code"]) == ("card_declined", "insufficient_funds")
    assert first["payment_intent"]["status"] == "requires_payment_method"
    assert first["payment_intent"]["last_payment_error"]["decline_code"] == "insufficient_funds"
    assert first["payment_intent"]["id"] != second["payment_intent"]["id"]


# -- whatever is sent


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/transfers?created[gte]=99999999999999", "created"),
        (f"/transfers?created={MANY}", "created"),
        ("/transfers?created[gte][a]=1", "created"),
        ("/transfers?transfer_group[a]=b", "transfer_group"),
        ("/transfers?starting_after[a]=b", "starting_after"),
        (f"/transfers?limit={MANY}", "limit"),
        ("/transfers?[=1", "["),
        ("/events?types=x", "types"),
        ("/events?types[0][a]=x", "types"),
        ("/events?type[a]=x", "type"),
        ("/events?" + "&".join(f"types[]=t{number}" for number in range(21)), "types"),
        ("/events?delivery_success=true", "delivery_success"),
        ("/payment_intents/search?query[a]=b", "query"),
    ],
)
def test_a_bad_question_is_stripes_own_400(stripe: httpx2.Client, path: str, param: str) -> None:
    status, _, named = error(stripe.get(path))
    assert (status, named) == (400, param)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/refunds", "[=1", "["),
        ("/refunds", "charge[a]=b", "charge"),
        ("/refunds", "payment_intent[a]=b", "payment_intent"),
        ("/refunds", f"charge=ch_1&amount={MANY}", "amount"),
        ("/refunds", "charge=ch_1&reason[a]=b", "reason"),
        ("/payment_intents", f"{PAYMENT}&confirm=yes", "confirm"),
        ("/payment_intents", f"{PAYMENT}&capture_method=zzz", "capture_method"),
        ("/payment_intents", f"{PAYMENT}&confirmation_method=zzz", "confirmation_method"),
        ("/payment_intents", f"{PAYMENT}&transfer_group[a]=b", "transfer_group"),
        ("/payment_intents", "amount=1000&currency=usd&payment_method[a]=b", "payment_method"),
        ("/transfers", "amount=1&currency=usd&destination=acct_1&transfer_group[a]=b", "transfer_group"),
        ("/transfers", "amount=1&currency=usd&destination=acct_1&source_transaction[a]=b", "source_transaction"),
        ("/payouts", "amount=1&currency=usd&destination[a]=b", "destination"),
        ("/payouts", "amount=1&currency=usd&method=slow", "method"),
    ],
)
def test_a_bad_parameter_is_stripes_own_400(stripe: httpx2.Client, path: str, body: str, param: str) -> None:
    status, _, named = error(post(stripe, path, body))
    assert (status, named) == (400, param)


def test_a_balance_is_one_in_capitals_or_not(simulator: Station, stripe: httpx2.Client) -> None:
    simulator.call("PUT", "balances/stripe", {"USD": 50})
    assert stripe.get("/balance").json()["available"][0]["currency"] == "usd"
    refused = post(stripe, "/transfers", "amount=51&currency=usd&destination=acct_1")
    assert refused.json()["error"]["code"] == "balance_insufficient"


def test_the_name_of_a_parameter_is_not_kept_however_long_it_is() -> None:
    """A name may be as long as a body, and hundreds are remembered."""
    name = "x" * 1_000_000
    tracemalloc.start()
    try:
        for number in range(10):
            assert parameters(Request("POST", "/", {}, {}, f"{number}[{name}]=1".encode())) == {
                str(number): {name: "1"}
            }
        assert tracemalloc.get_traced_memory()[0] < len(name)
    finally:
        tracemalloc.stop()
