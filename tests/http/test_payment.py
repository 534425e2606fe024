"""Paying over HTTP: the order is the identity, under whatever key; what nobody knows yet is 202."""

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from tallystick.http import examples
from tallystick.simulator.process import RunningSimulator
from tests import servers
from tests.http import site as sites
from tests.orders import receive
from tests.payments import age, charged, new_key
from tests.providers.worlds import Control

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture(scope="module")
def till(dsn: str, payouts_simulator: RunningSimulator) -> Iterator[sites.Site]:
    """A site whose provider is the simulator."""
    with sites.running(dsn, simulator_url=payouts_simulator.url) as running:
        yield running


@pytest.fixture
def buyer(till: sites.Site, control: Control) -> Iterator[httpx2.Client]:
    assert charged(control) == []
    with till.client() as client:
        yield client


@pytest.fixture
def order(buyer: httpx2.Client) -> dict[str, Any]:
    return reserve(buyer)


def reserve(client: httpx2.Client) -> dict[str, Any]:
    client.put("/v1/skus/lamp-brass", json={"stock": 1_000})
    made = client.post(
        "/v1/orders", json=examples.ORDERS["one lamp"], headers={"idempotency-key": f"pay-{next(_numbers)}"}
    )
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


def pay(client: httpx2.Client, order: dict[str, Any], *, key: str | None = None, **other: Any) -> httpx2.Response:
    body = {"reservation_token": order["reservation_token"], **other}
    headers = {"idempotency-key": key or new_key()}
    return client.post(f"/v1/orders/{order['id']}/pay", json=body, headers=headers)


def told(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def test_an_order_is_charged_once_and_told_the_same_for_ever(
    buyer: httpx2.Client, order: dict[str, Any], control: Control
) -> None:
    first, second = pay(buyer, order, key="once"), pay(buyer, order, key="once")
    third, fourth = pay(buyer, order, key="a"), pay(buyer, order, key='"another"')
    assert {answer.status_code for answer in (first, second, third, fourth)} == {201}
    assert first.content == second.content == third.content == fourth.content
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    (made,) = charged(control)
    assert first.json()["payment_intent_id"] == made["id"]
    assert first.json()["client_secret"].startswith(made["id"])
    shown = buyer.get(f"/v1/orders/{order['id']}")
    assert shown.json()["payment"] == {
        "status": "AWAITING_CUSTOMER",
        "payment_intent_id": made["id"],
        "attempts": 1,
        "reason": None,
    }
    assert "secret" not in shown.text
    assert shown.json()["status"] == "PENDING"


def test_fifty_clicks_over_fifty_connections(till: sites.Site, order: dict[str, Any], control: Control) -> None:
    def click(_number: int) -> bytes:
        with till.client() as client:
            answer = pay(client, order)
            while answer.status_code == 202:
                # Nobody could tell him in time; asked again, it is the same payment.
                answer = pay(client, order)
            assert answer.status_code == 201, answer.text
            return answer.content

    with ThreadPoolExecutor(50) as crowd:
        answers = set(crowd.map(click, range(50)))
    assert len(answers) == 1
    assert len(charged(control)) == 1


def test_a_silent_provider_is_202_and_later_the_payment(
    buyer: httpx2.Client, dsn: str, order: dict[str, Any], control: Control
) -> None:
    control.plan("stripe.charge:execute_then_drop")
    first = pay(buyer, order, key="k")
    assert (first.status_code, first.json()["status"]) == (202, "PENDING")
    assert int(first.headers["retry-after"]) >= 1
    assert buyer.get(f"/v1/orders/{order['id']}").json()["payment"]["status"] == "PENDING"
    asyncio.run(age(dsn))
    # Under the same key: the pending answer was not recorded for replay.
    second = pay(buyer, order, key="k")
    assert second.status_code == 201
    assert second.json()["payment_intent_id"] == charged(control)[0]["id"]
    assert len(charged(control)) == 1


def test_a_decline_is_402_and_the_next_attempt_may_succeed(buyer: httpx2.Client, order: dict[str, Any]) -> None:
    answer = pay(buyer, order, payment_method="pm_card_chargeDeclined")
    assert told(answer) == (402, "payment_refused")
    assert "No money moved" in answer.json()["money"]
    assert buyer.get(f"/v1/orders/{order['id']}").json()["payment"]["status"] == "FAILED"
    again = pay(buyer, order, payment_method="pm_card_visa")
    assert (again.status_code, again.json()["attempts"]) == (201, 2)


def test_what_cannot_be_paid_is_refused_by_its_code(
    till: sites.Site, buyer: httpx2.Client, dsn: str, control: Control
) -> None:
    one, two, three = reserve(buyer), reserve(buyer), reserve(buyer)
    assert told(pay(buyer, {**one, "reservation_token": two["reservation_token"]})) == (403, "reservation_token_wrong")
    assert told(pay(buyer, {**one, "id": "or_" + "0" * 32})) == (404, "order_unknown")
    buyer.post(f"/v1/orders/{two['id']}/cancel")
    cancelled = pay(buyer, two)
    assert told(cancelled) == (409, "order_cancelled")
    assert "given back" in cancelled.json()["money"]
    with till.client("other") as other:
        assert told(pay(other, one)) == (404, "order_unknown")
    with till.client(role="viewer") as viewer:
        assert told(pay(viewer, one)) == (403, "forbidden")
    for body, code in (
        ({}, "field_invalid"),
        ({"reservation_token": 5}, "field_invalid"),
        ({"reservation_token": "x", "amount_micros": 1}, "field_invalid"),
        ([], "field_invalid"),
    ):
        keyed = {"idempotency-key": new_key()}
        assert told(buyer.post(f"/v1/orders/{one['id']}/pay", json=body, headers=keyed)) == (400, code)
    assert told(pay(buyer, one, key="a b")) == (400, "idempotency_key_invalid")
    assert told(pay(buyer, one, payment_method="no such method\x00")) == (409, "payment_not_possible")
    asyncio.run(receive(dsn, "id = $1", three["id"].removeprefix("or_"), pays=True))
    assert told(pay(buyer, three)) == (409, "order_paid")
    assert charged(control) == []


def test_the_document_tells_it_as_it_is(buyer: httpx2.Client, order: dict[str, Any], control: Control) -> None:
    document = buyer.get("/openapi.json").json()
    control.plan("stripe.charge:execute_then_drop@2")
    done, pending = pay(buyer, order), pay(buyer, reserve(buyer))
    responses = document["paths"]["/v1/orders/{id}/pay"]["post"]["responses"]
    for answer, example in ((done, examples.PAYMENT), (pending, examples.PENDING_PAYMENT)):
        schema = responses[str(answer.status_code)]["content"]["application/json"]["schema"]
        jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())
        assert answer.json().keys() == example.keys()
    shown = buyer.get(f"/v1/orders/{order['id']}").json()
    assert shown.keys() == examples.ORDER_IN_PAYMENT.keys()
    assert shown["payment"].keys() == examples.ORDER_IN_PAYMENT["payment"].keys()


def test_a_person_closes_a_charge_that_nobody_answered_for(
    buyer: httpx2.Client, till: sites.Site, dsn: str, control: Control, order: dict[str, Any]
) -> None:
    """Over HTTP, once under its key; with the provider's word where it can be asked."""
    control.plan("stripe.charge:execute_then_drop=100%")
    control.plan("stripe.list:drop_before=100%")
    assert pay(buyer, order, payment_method="pm_card_visa").status_code == 202
    control.call("DELETE", "faults")
    asyncio.run(age(dsn))
    (made,) = charged(control)
    path, headers = f"/v1/orders/{order['id']}/payment/resolve", {"idempotency-key": new_key()}
    body = {"outcome": "never_charged", "evidence": "none seen"}
    assert buyer.post(path, json=body).json()["code"] == "idempotency_key_missing"
    assert buyer.post(path, json=body, headers=headers).json()["code"] == "payment_not_confirmed"
    body = {"outcome": "charged", "payment_intent_id": made["id"], "evidence": "the dashboard shows it"}
    first, again = (buyer.post(path, json=body, headers=headers) for _ in range(2))
    assert (first.status_code, first.json()["payment"]["payment_intent_id"]) == (200, made["id"]), first.text
    assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")
