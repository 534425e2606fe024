"""Adyen's books hold however many refunds and returns there are, and whatever is sent."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.simulator.station import DAY, Station

MANY = "9" * 5000
TRANSFER: dict[str, Any] = {
    "amount": {"currency": "EUR", "value": 130},
    "balanceAccountId": "BA1",
    "category": "bank",
    "counterparty": {"transferInstrumentId": "SE_good"},
    "priority": "regular",
}


@pytest.fixture
def adyen(simulator: Station) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{simulator.url}/adyen", headers={"x-api-key": "any"}, timeout=30) as client:
        yield client


def pay(adyen: httpx2.Client, value: int = 130) -> Any:
    body = {"amount": {"currency": "EUR", "value": value}, "merchantAccount": "Shop", "reference": "order"}
    return adyen.post("/checkout/v72/payments", json=body | {"paymentMethod": {"type": "scheme"}}).json()


def refund(adyen: httpx2.Client, psp: str, value: int = 1) -> httpx2.Response:
    body = {"amount": {"currency": "EUR", "value": value}, "merchantAccount": "Shop"}
    return adyen.post(f"/checkout/v72/payments/{psp}/refunds", json=body)


def send(adyen: httpx2.Client, **fields: Any) -> httpx2.Response:
    return adyen.post("/btl/v4/transfers", json=TRANSFER | fields)


def act(simulator: Station, action: str, object_id: str) -> None:
    simulator.call("POST", "act", {"dialect": "adyen", "action": action, "id": object_id})


def moved(simulator: Station, kind: str) -> list[tuple[int, str]]:
    rows = simulator.call("GET", "movements?dialect=adyen")
    return [(row["amount"], row["state"]) for row in rows if row["kind"] == kind]


def test_a_hundred_and_more_refunds_never_exceed_the_payment(simulator: Station, adyen: httpx2.Client) -> None:
    simulator.switch("adyen.over_refund", "http_422")
    psp = pay(adyen)["pspReference"]
    assert [refund(adyen, psp).status_code for _ in range(131)] == [201] * 130 + [422]
    assert sum(amount for amount, _ in moved(simulator, "refund")) == 130


def test_a_hundred_and_more_returns_never_exceed_the_transfer(simulator: Station, adyen: httpx2.Client) -> None:
    sent = send(adyen).json()["id"]
    simulator.advance(60)
    body = {"amount": {"currency": "EUR", "value": 1}}
    answers = [adyen.post(f"/btl/v4/transfers/{sent}/returns", json=body).json()["status"] for _ in range(131)]
    assert answers == ["Authorised"] * 130 + ["Declined"]
    assert sum(amount for amount, _ in moved(simulator, "reversal")) == 130


@pytest.mark.parametrize("action", ["fail", "refuse", "return"])
def test_a_transfer_that_fails_after_it_was_booked_did_move(
    simulator: Station, adyen: httpx2.Client, action: str
) -> None:
    sent = send(adyen).json()["id"]
    simulator.advance(60)
    act(simulator, action, sent)
    assert moved(simulator, "transfer") == [(130, "returned")]


def test_a_transfer_that_fails_before_it_was_booked_did_not(simulator: Station, adyen: httpx2.Client) -> None:
    act(simulator, "fail", send(adyen).json()["id"])
    assert moved(simulator, "transfer") == []


def test_a_refund_that_fails_after_it_was_done_did_move(simulator: Station, adyen: httpx2.Client) -> None:
    psp = pay(adyen)["pspReference"]
    refunded = refund(adyen, psp, 130).json()["pspReference"]
    simulator.advance(60)
    act(simulator, "fail", refunded)
    assert moved(simulator, "refund") == [(130, "returned")]
    assert refund(adyen, psp, 130).status_code == 201
    simulator.advance(60)
    assert moved(simulator, "refund") == [(130, "returned"), (130, "moved")]


@pytest.mark.parametrize(
    "counterparty",
    [
        {"bankAccount": "x"},
        {"bankAccount": None},
        {"bankAccount": {"accountIdentification": "x"}},
        {"transferInstrumentId": None},
        {"transferInstrumentId": {"id": "x"}},
    ],
)
def test_a_counterparty_that_is_none_is_refused_at_once(adyen: httpx2.Client, counterparty: dict[str, Any]) -> None:
    answer = send(adyen, counterparty=counterparty)
    assert (answer.status_code, answer.json()["errorCode"]) == (422, "30_112")


@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "k"}])
@pytest.mark.parametrize(
    "body",
    [
        json.dumps(TRANSFER).replace("130", MANY),
        json.dumps(TRANSFER).replace('"SE_good"', MANY),
        "[" * 5000 + "]" * 5000,
        '{"amount":' + "[" * 5000 + "]" * 5000 + "}",
    ],
)
def test_a_bad_body_is_adyens_own_422(adyen: httpx2.Client, body: str, headers: dict[str, str]) -> None:
    answer = adyen.post("/btl/v4/transfers", content=body, headers=headers)
    assert (answer.status_code, answer.json()["errorCode"]) == (422, "30_112")


def test_a_limit_of_many_digits_is_adyens_own_422(adyen: httpx2.Client) -> None:
    asked = {"createdSince": "2026-01-01", "createdUntil": "2026-01-02", "balancePlatform": "X", "limit": MANY}
    assert adyen.get("/btl/v4/transfers", params=asked).status_code == 422


def test_two_payments_refused_by_plan_are_two(simulator: Station, adyen: httpx2.Client) -> None:
    simulator.plan("adyen.charge:refused@1-2")
    first, second = pay(adyen), pay(adyen)
    assert first["resultCode"] == second["resultCode"] == "Refused"
    assert first["pspReference"] != second["pspReference"]


def test_a_balance_is_one_in_capitals_or_not(simulator: Station, adyen: httpx2.Client) -> None:
    simulator.call("PUT", "balances/adyen?account=BA1", {"eur": 100})
    sent = send(adyen).json()["id"]
    simulator.advance(DAY)
    assert adyen.get(f"/btl/v4/transfers/{sent}").json()["reason"] == "notEnoughBalance"
