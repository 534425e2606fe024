"""A key of /pay is bound to its order, its body and its attempt; the provider's final answer is what it records."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tallystick.http import examples
from tallystick.simulator.process import RunningSimulator
from tests import servers
from tests.http import site as sites
from tests.payments import age, charged
from tests.providers.worlds import Control

DECLINED = "pm_card_chargeDeclined"
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
        "/v1/orders", json=examples.ORDERS["one lamp"], headers={"idempotency-key": f"keyed-{next(_numbers)}"}
    )
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


def key() -> str:
    return f"pay-{next(_numbers)}"


def pay(client: httpx2.Client, order: dict[str, Any], key: str | None, **other: Any) -> httpx2.Response:
    body = {"reservation_token": order["reservation_token"], **other}
    headers = {} if key is None else {"idempotency-key": key}
    return client.post(f"/v1/orders/{order['id']}/pay", json=body, headers=headers)


def told(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


def is_replayed(answer: httpx2.Response) -> bool:
    return answer.headers.get("idempotent-replayed") == "true"


def test_a_decline_is_recorded_under_its_key_and_told_again_to_the_byte(
    buyer: httpx2.Client, order: dict[str, Any], control: Control
) -> None:
    same = key()
    answers = [pay(buyer, order, same, payment_method=DECLINED) for _ in range(4)]
    assert {told(answer) for answer in answers} == {(402, "payment_refused")}
    assert len({answer.content for answer in answers}) == 1
    assert [is_replayed(answer) for answer in answers] == [False, True, True, True]
    assert len(charged(control)) == 1
    assert buyer.get(f"/v1/orders/{order['id']}").json()["payment"]["attempts"] == 1


def test_a_new_attempt_needs_a_new_key_and_the_old_one_still_tells_its_own_answer(
    buyer: httpx2.Client, order: dict[str, Any], control: Control
) -> None:
    first, second = key(), key()
    declined = pay(buyer, order, first, payment_method=DECLINED)
    paid = pay(buyer, order, second, payment_method="pm_card_visa")
    assert (paid.status_code, paid.json()["attempts"], is_replayed(paid)) == (201, 2, False)
    again, once_more = (
        pay(buyer, order, first, payment_method=DECLINED),
        pay(buyer, order, second, payment_method="pm_card_visa"),
    )
    assert (again.status_code, again.content, is_replayed(again)) == (402, declined.content, True)
    assert (once_more.status_code, once_more.content, is_replayed(once_more)) == (201, paid.content, True)
    assert len(charged(control)) == 2


def test_the_same_key_with_another_payload_is_refused_by_the_fields_that_differ(
    till: sites.Site, buyer: httpx2.Client, order: dict[str, Any], control: Control
) -> None:
    used, other = key(), reserve(buyer)
    assert pay(buyer, order, used, payment_method="pm_card_visa").status_code == 201
    for what, fields in (
        (pay(buyer, order, used), ["payment_method"]),
        (pay(buyer, order, used, payment_method="pm_card_mastercard"), ["payment_method"]),
        (pay(buyer, {**order, "reservation_token": "rt_x"}, used), ["payment_method", "reservation_token"]),
        (pay(buyer, other, used, payment_method="pm_card_visa"), ["order_id", "reservation_token"]),
        (pay(buyer, {**order, "id": "or_" + "0" * 32}, used, payment_method="pm_card_visa"), ["order_id"]),
    ):
        assert told(what) == (422, "key_reused")
        assert what.json()["fields"] == fields
    assert buyer.get(f"/v1/orders/{other['id']}").json().get("payment") is None
    # Keys are a tenant's own.
    with till.client("other") as stranger:
        theirs = reserve(stranger)
        assert pay(stranger, theirs, used).status_code == 201
    assert len(charged(control)) == 2


def test_a_key_is_needed(buyer: httpx2.Client, order: dict[str, Any], control: Control) -> None:
    assert told(pay(buyer, order, None)) == (400, "idempotency_key_missing")
    assert told(pay(buyer, order, "a b")) == (400, "idempotency_key_invalid")
    assert told(pay(buyer, order, "k" * 256)) == (400, "idempotency_key_too_long")
    assert charged(control) == []


def test_a_refusal_before_the_intent_leaves_the_key_unused(
    buyer: httpx2.Client, order: dict[str, Any], control: Control
) -> None:
    same = key()
    assert told(pay(buyer, {**order, "id": "or_" + "0" * 32}, same)) == (404, "order_unknown")
    assert told(pay(buyer, {**order, "reservation_token": "rt_x"}, same)) == (403, "reservation_token_wrong")
    assert told(pay(buyer, order, same, payment_method="no such method\x00")) == (409, "payment_not_possible")
    paid = pay(buyer, order, same, payment_method="pm_card_visa")
    assert (paid.status_code, is_replayed(paid)) == (201, False)
    assert len(charged(control)) == 1


def test_what_nobody_knows_yet_is_not_recorded_and_what_is_found_is(
    buyer: httpx2.Client, dsn: str, order: dict[str, Any], control: Control
) -> None:
    same = key()
    control.plan("stripe.charge:execute_then_drop")
    first = pay(buyer, order, same)
    assert (first.status_code, is_replayed(first)) == (202, False)
    assert pay(buyer, order, same).status_code == 202
    asyncio.run(age(dsn))
    found = pay(buyer, order, same)
    assert found.status_code == 201
    again = pay(buyer, order, same)
    assert (again.status_code, again.content, is_replayed(again)) == (201, found.content, True)
    assert told(pay(buyer, order, same, payment_method="pm_card_visa")) == (422, "key_reused")
    assert len(charged(control)) == 1


def test_a_new_key_for_a_payment_that_exists_returns_it_and_moves_nothing(
    buyer: httpx2.Client, order: dict[str, Any], control: Control
) -> None:
    first, other = key(), key()
    made, same = pay(buyer, order, first), pay(buyer, order, other)
    assert (same.status_code, same.content, is_replayed(same)) == (201, made.content, False)
    # And is bound to it from then on.
    again = pay(buyer, order, other)
    assert (again.status_code, again.content, is_replayed(again)) == (201, made.content, True)
    assert told(pay(buyer, order, other, payment_method="pm_card_visa")) == (422, "key_reused")
    assert len(charged(control)) == 1


def test_a_charge_that_waits_for_its_customer_says_so(buyer: httpx2.Client, order: dict[str, Any]) -> None:
    waiting = pay(buyer, order, key())
    assert (waiting.status_code, waiting.json()["status"]) == (201, "AWAITING_CUSTOMER")
    assert waiting.json()["client_secret"]
    assert buyer.get(f"/v1/orders/{order['id']}").json()["payment"]["status"] == "AWAITING_CUSTOMER"
    assert buyer.get(f"/v1/orders/{order['id']}/status").json()["payment"]["status"] == "AWAITING_CUSTOMER"
    other = reserve(buyer)
    assert pay(buyer, other, key(), payment_method="pm_card_visa").json()["status"] == "COMPLETED"
    assert buyer.get(f"/v1/orders/{other['id']}").json()["payment"]["status"] == "COMPLETED"
