"""Orders over HTTP."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from tallystick.checkout.order import rules as order
from tallystick.http import examples, openapi
from tests.http.site import Site


@pytest.fixture
def sku(client: httpx2.Client, key: str) -> str:
    """Ten pieces of something that no other test sells."""
    name = f"sku-{key}"
    assert client.put(f"/v1/skus/{name}", json={"stock": 10}).status_code == 200
    return name


def wish(sku: str, **other: Any) -> dict[str, Any]:
    return {"sku": sku, "quantity": 1, "amount_micros": 25_000_000, "currency": "EUR", **other}


def post(client: httpx2.Client, body: dict[str, Any], key: str | None) -> httpx2.Response:
    return client.post("/v1/orders", json=body, headers={} if key is None else {"idempotency-key": key})


def test_an_order_is_made_once_and_replayed_to_the_byte(client: httpx2.Client, sku: str, key: str) -> None:
    first, second = post(client, wish(sku, quantity=2), key), post(client, wish(sku, quantity=2), f'"{key}"')
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.content == second.content
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    made = first.json()
    assert (made["status"], made["sku"], made["quantity"]) == ("PENDING", sku, 2)
    assert client.get(f"/v1/orders/{made['id']}").content == first.content
    stock = client.get(f"/v1/skus/{sku}").json()
    assert stock == {"sku": sku, "stock": 10, "reserved": 2, "sold": 0, "available": 8, "backordered": 0}


def test_another_payload_under_the_key_is_422_with_the_fields(client: httpx2.Client, sku: str, key: str) -> None:
    post(client, wish(sku), key)
    answer = post(client, wish(sku, quantity=2, currency="USD"), key)
    assert (answer.status_code, answer.json()["code"]) == (422, "key_reused")
    assert answer.json()["fields"] == ["currency", "quantity"]
    assert "No money moved" in answer.json()["money"]


def test_an_order_is_cancelled_once_and_the_answer_stays_the_same(client: httpx2.Client, sku: str, key: str) -> None:
    made = post(client, wish(sku, quantity=4), key).json()
    first, second = (client.post(f"/v1/orders/{made['id']}/cancel") for _ in range(2))
    assert (first.status_code, first.content) == (200, second.content)
    assert first.json() == {**made, "status": "CANCELLED", "changed_at": first.json()["changed_at"]}
    assert client.get(f"/v1/skus/{sku}").json()["available"] == 10
    # The replay is still what the first answer was.
    assert post(client, wish(sku, quantity=4), key).json() == made


def test_sold_out_is_409_and_leaves_the_key(client: httpx2.Client, sku: str, key: str) -> None:
    held = post(client, wish(sku, quantity=10), f"{key}-all").json()
    answer = post(client, wish(sku), key)
    assert (answer.status_code, answer.json()["code"]) == (409, "sold_out")
    assert "0 of 10 are left" in answer.json()["detail"]
    client.post(f"/v1/orders/{held['id']}/cancel")
    assert post(client, wish(sku), key).status_code == 201


def test_a_crowd_gets_what_there_is(site: Site, sku: str, key: str) -> None:
    def buy(number: int) -> int:
        with site.client() as client:
            return post(client, wish(sku), f"{key}-{number}").status_code

    with ThreadPoolExecutor(16) as crowd:
        statuses = list(crowd.map(buy, range(60)))
    assert sorted(statuses) == [201] * 10 + [409] * 50


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"quantity": 0}, (400, "quantity_not_positive")),
        ({"quantity": -1}, (400, "quantity_not_positive")),
        ({"quantity": 11}, (409, "quantity_above_stock")),
        ({"quantity": 1.5}, (400, "quantity_not_integer")),
        ({"quantity": "1"}, (400, "quantity_not_integer")),
        ({"quantity": True}, (400, "quantity_not_integer")),
        ({"quantity": None}, (400, "quantity_not_integer")),
        ({"quantity": 1_000_001}, (400, "quantity_too_large")),
        ({"quantity": 10**30}, (400, "quantity_too_large")),
        ({"sku": "nobody-sells-this"}, (404, "sku_unknown")),
        ({"sku": "a b"}, (400, "sku_invalid")),
        ({"sku": ""}, (400, "sku_invalid")),
        ({"sku": 7}, (400, "field_invalid")),
        ({"amount_micros": 0}, (400, "amount_not_positive")),
        ({"amount_micros": 1.0}, (400, "amount_not_integer")),
        ({"amount_micros": 10**15 + 1}, (400, "amount_overflow")),
        ({"currency": "EURO"}, (400, "currency_unknown")),
        ({"fee": 1}, (400, "field_invalid")),
    ],
)
def test_a_wrong_wish_is_refused_by_its_code(
    client: httpx2.Client, sku: str, key: str, change: dict[str, Any], told: tuple[int, str]
) -> None:
    answer = post(client, {**wish(sku), **change}, key)
    assert (answer.status_code, answer.json()["code"]) == told, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    # Nothing was used up.
    assert post(client, wish(sku), key).status_code == 201


def test_a_missing_key_is_refused(client: httpx2.Client, sku: str) -> None:
    answer = post(client, wish(sku), None)
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_missing")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"stock": -1}, (400, "stock_invalid")),
        ({"stock": "ten"}, (400, "stock_invalid")),
        ({"stock": 1.5}, (400, "stock_invalid")),
        ({"stock": 10**30}, (400, "stock_invalid")),
        ({}, (400, "field_invalid")),
        ({"stock": 2}, (409, "stock_too_low")),
    ],
)
def test_a_wrong_stock_is_refused(
    client: httpx2.Client, sku: str, key: str, body: dict[str, Any], told: tuple[int, str]
) -> None:
    post(client, wish(sku, quantity=3), key)
    answer = client.put(f"/v1/skus/{sku}", json=body)
    assert (answer.status_code, answer.json()["code"]) == told, answer.text
    assert client.get(f"/v1/skus/{sku}").json()["stock"] == 10


@pytest.mark.parametrize("path", ["/v1/skus/a%20b", "/v1/skus/%C3%A4", "/v1/skus/" + "a" * 121, "/v1/skus/a%00b"])
def test_what_cannot_be_a_sku_is_told_so(client: httpx2.Client, path: str) -> None:
    assert client.put(path, json={"stock": 1}).json()["code"] == "sku_invalid"
    assert client.get(path).json()["code"] == "sku_unknown"


@pytest.mark.parametrize("name", ["or_" + "0" * 32, "documented", "or_%00", "tx_" + "0" * 32])
def test_an_order_that_is_not_there_is_404(client: httpx2.Client, name: str) -> None:
    for answer in (client.get(f"/v1/orders/{name}"), client.post(f"/v1/orders/{name}/cancel")):
        assert (answer.status_code, answer.json()["code"]) == (404, "order_unknown")


def test_another_tenant_sees_and_moves_nothing(site: Site, client: httpx2.Client, sku: str, key: str) -> None:
    made = post(client, wish(sku), key).json()
    with site.client("other") as other:
        assert other.get(f"/v1/orders/{made['id']}").status_code == 404
        assert other.post(f"/v1/orders/{made['id']}/cancel").status_code == 404
        assert other.get(f"/v1/skus/{sku}").status_code == 404
        assert post(other, wish(sku), key).json()["code"] == "sku_unknown"
    assert client.get(f"/v1/orders/{made['id']}").json()["status"] == "PENDING"


@pytest.mark.parametrize("role", ["viewer", "auditor", "approver"])
def test_who_may_only_read_reads(site: Site, client: httpx2.Client, sku: str, key: str, role: str) -> None:
    made = post(client, wish(sku), key).json()
    with site.client(role=role) as reader:
        assert reader.get(f"/v1/orders/{made['id']}").status_code == 200
        assert reader.get(f"/v1/skus/{sku}").status_code == 200
        for answer in (
            post(reader, wish(sku), f"{key}-{role}"),
            reader.post(f"/v1/orders/{made['id']}/cancel"),
            reader.put(f"/v1/skus/{sku}", json={"stock": 100}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


@pytest.fixture
def operator(site: Site) -> Iterator[httpx2.Client]:
    with site.client(role="operator") as client:
        yield client


def test_an_operator_sells(operator: httpx2.Client, sku: str, key: str) -> None:
    assert operator.put(f"/v1/skus/{sku}", json={"stock": 11}).status_code == 200
    made = post(operator, wish(sku), key)
    assert made.status_code == 201
    assert operator.post(f"/v1/orders/{made.json()['id']}/cancel").status_code == 200


def test_the_document_tells_it_as_it_is(site: Site) -> None:
    with site.client("example") as client:
        document = client.get("/openapi.json").json()
        stocked = client.put("/v1/skus/lamp-brass", json=examples.STOCKS["a thousand"])
        made = client.post("/v1/orders", json=examples.ORDERS["one lamp"], headers={"idempotency-key": "example-order"})
        answers = {
            ("put", "/v1/skus/{sku}"): (stocked, examples.STOCKED),
            ("get", "/v1/skus/{sku}"): (client.get("/v1/skus/lamp-brass"), examples.STOCKED),
            ("post", "/v1/orders"): (made, examples.ORDER),
            ("get", "/v1/orders/{id}"): (client.get(f"/v1/orders/{made.json()['id']}"), examples.ORDER),
            ("post", "/v1/orders/{id}/cancel"): (
                client.post(f"/v1/orders/{made.json()['id']}/cancel"),
                examples.CANCELLED_ORDER,
            ),
        }
    for (method, path), (answer, example) in answers.items():
        described = document["paths"][path][method]["responses"][str(answer.status_code)]
        schema = described["content"]["application/json"]["schema"]
        jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())
        assert answer.json().keys() == example.keys(), path
    assert order._SKU.pattern == openapi._VALUES["Sku"]["pattern"].strip("^$")


def test_the_counts_are_shown(client: httpx2.Client, sku: str, key: str) -> None:
    assert post(client, wish(sku, quantity=10), key).status_code == 201
    assert post(client, wish(sku), f"{key}-late").status_code == 409
    shown = client.get("/metrics").text
    figures = {
        line.split()[0]: float(line.split()[1]) for line in shown.splitlines() if line.startswith("tally_orders")
    }
    # This process's own is current; the database's may be some seconds old.
    assert figures["tally_orders_sold_out_total"] >= 1
    assert figures["tally_orders_figures_current"] == 1
    assert figures["tally_orders_grace_seconds"] == 30
    assert {"tally_orders_reserved_total", "tally_orders_swept_total", "tally_orders_oldest_overdue_seconds"} <= set(
        figures
    )
