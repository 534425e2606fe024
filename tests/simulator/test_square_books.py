"""Square's books hold however many refunds there are, and whatever is sent."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.simulator.station import Station

MANY = "9" * 5000


@pytest.fixture
def square(simulator: Station) -> Iterator[httpx2.Client]:
    headers = {"authorization": "Bearer any"}
    with httpx2.Client(base_url=f"{simulator.url}/square", headers=headers, timeout=30) as client:
        yield client


def pay(square: httpx2.Client, amount: int = 150) -> str:
    money = {"amount": amount, "currency": "USD"}
    body = {"source_id": "cnon:card-nonce-ok", "idempotency_key": "pay", "amount_money": money}
    return str(square.post("/v2/payments", json=body).json()["payment"]["id"])


def refund(square: httpx2.Client, payment: str, amount: int, key: str) -> httpx2.Response:
    money = {"amount": amount, "currency": "USD"}
    return square.post("/v2/refunds", json={"idempotency_key": key, "amount_money": money, "payment_id": payment})


def act(simulator: Station, action: str, object_id: str) -> None:
    simulator.call("POST", "act", {"dialect": "square", "action": action, "id": object_id})


def moved(simulator: Station, kind: str) -> list[tuple[int, str]]:
    rows = simulator.call("GET", "movements?dialect=square")
    return [(row["amount"], row["state"]) for row in rows if row["kind"] == kind]


def test_a_hundred_and_more_refunds_never_exceed_the_payment(simulator: Station, square: httpx2.Client) -> None:
    payment = pay(square, 130)
    answers = [refund(square, payment, 1, f"r{number}").status_code for number in range(131)]
    assert answers == [200] * 130 + [400]
    assert sum(amount for amount, _ in moved(simulator, "refund")) == 130
    shown = square.get(f"/v2/payments/{payment}").json()["payment"]
    assert shown["refunded_money"]["amount"] == len(shown["refund_ids"]) == 130


def test_a_payout_takes_off_every_refund(simulator: Station, square: httpx2.Client) -> None:
    payment = pay(square, 150)
    for number in range(120):
        refund(square, payment, 1, f"r{number}")
    act(simulator, "pay", payment)
    (payout,) = simulator.call("GET", "objects?dialect=square&kind=payout")
    assert payout["amount"] == 30
    entries = square.get(f"/v2/payouts/{payout['id']}/payout-entries").json()["payout_entries"]
    assert sum(entry["gross_amount_money"]["amount"] for entry in entries) == 30


def test_a_refund_that_fails_after_the_payout_stays_a_part_of_it(simulator: Station, square: httpx2.Client) -> None:
    payment = pay(square)
    refunded = refund(square, payment, 50, "r").json()["refund"]["id"]
    simulator.advance(60)
    act(simulator, "pay", payment)
    simulator.advance(60)
    act(simulator, "fail", refunded)
    (payout,) = simulator.call("GET", "objects?dialect=square&kind=payout")
    entries = square.get(f"/v2/payouts/{payout['id']}/payout-entries").json()["payout_entries"]
    assert [entry["gross_amount_money"]["amount"] for entry in entries] == [150, -50]


def test_a_refunded_payment_is_not_cancelled_by_its_key(simulator: Station, square: httpx2.Client) -> None:
    payment = pay(square)
    refund(square, payment, 50, "r")
    assert square.post("/v2/payments/cancel", json={"idempotency_key": "pay"}).status_code == 400
    assert moved(simulator, "charge") == [(150, "moved")]


def test_a_cancelled_payment_stays_so_when_its_refund_fails(simulator: Station, square: httpx2.Client) -> None:
    payment = pay(square)
    first = refund(square, payment, 50, "r").json()["refund"]["id"]
    second = refund(square, payment, 50, "s").json()["refund"]["id"]
    simulator.advance(60)
    act(simulator, "fail", first)
    act(simulator, "fail", second)
    assert square.post("/v2/payments/cancel", json={"idempotency_key": "pay"}).status_code == 200
    for refunded in (first, second):
        act(simulator, "fail", refunded)
    assert square.get(f"/v2/payments/{payment}").json()["payment"]["status"] == "CANCELED"


def test_a_refund_that_fails_after_it_was_completed_did_move(simulator: Station, square: httpx2.Client) -> None:
    payment = pay(square)
    refunded = refund(square, payment, 50, "r").json()["refund"]["id"]
    simulator.advance(60)
    act(simulator, "fail", refunded)
    assert moved(simulator, "refund") == [(50, "returned")]
    assert refund(square, payment, 150, "again").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        f"/v2/payments?limit={MANY}",
        "/v2/payments?updated_at_begin_time=soon",
        "/v2/payments?begin_time=soon",
        "/v2/payments?cursor=%C3%A9",
    ],
)
def test_a_bad_question_is_squares_own_400(square: httpx2.Client, path: str) -> None:
    answer = square.get(path)
    assert (answer.status_code, answer.json()["errors"][0]["category"]) == (400, "INVALID_REQUEST_ERROR")


GOOD = '"source_id":"x","idempotency_key":"k","amount_money":{"amount":1,"currency":"USD"}'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/payments", GOOD.replace(":1,", f":{MANY},")),
        ("/v2/payments", f'"unheard":{MANY},{GOOD}'),
        ("/v2/payments", f'"unheard":{"[" * 5000}{"]" * 5000},{GOOD}'),
        ("/v2/events", f'"limit":{MANY}'),
        ("/v2/events", '"query":{"filter":{"created_at":{"start_at":"soon"}}}'),
    ],
)
def test_a_bad_body_is_squares_own_400(square: httpx2.Client, path: str, body: str) -> None:
    answer = square.post(path, content="{" + body + "}")
    assert (answer.status_code, answer.json()["errors"][0]["category"]) == (400, "INVALID_REQUEST_ERROR")


def test_a_temporary_error_is_sent_again_with_the_same_key(simulator: Station, square: httpx2.Client) -> None:
    payment = pay(square)
    simulator.plan("square.refund:temporary_error")
    answer: Any = refund(square, payment, 50, "r")
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (503, "TEMPORARY_ERROR")
    assert refund(square, payment, 50, "r").status_code == 200
    assert moved(simulator, "refund") == [(50, "moving")]
