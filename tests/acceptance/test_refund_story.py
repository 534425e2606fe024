"""A paid order is given back over HTTP, in parts, while provider, webhooks and workers run as they do in production."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from tests.acceptance.storefront import PRICE, Storefront, storefront
from tests.providers.worlds import Control

FIFTH = PRICE // 5


@pytest.fixture
async def shop(dsn: str, control: Control) -> AsyncIterator[Storefront]:
    async with storefront(dsn, control) as opened:
        yield opened


async def give_back(client: httpx2.AsyncClient, order: dict[str, Any], key: str | None, **body: Any) -> httpx2.Response:
    headers = {} if key is None else {"idempotency-key": key}
    return await client.post(
        f"/v1/orders/{order['id']}/refund", json={"reason": "one came broken", **body}, headers=headers
    )


def told(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    assert answer.json()["money"]
    return answer.status_code, answer.json()["code"]


async def bought(shop: Storefront, key: str = "ann") -> dict[str, Any]:
    order = await shop.reserve(key)
    await shop.pay(order)
    await shop.becomes(order, "PAID")
    return order


async def test_an_order_is_given_back_in_parts_and_both_halves_match(shop: Storefront) -> None:
    await shop.stock(1)
    order = await bought(shop)
    first = await give_back(shop.client, order, "a", amount_micros=FIFTH)
    assert (first.status_code, first.json()["status"], first.json()["amount_micros"]) == (201, "COMPLETED", FIFTH)
    again = await give_back(shop.client, order, "a", amount_micros=FIFTH)
    assert (again.status_code, again.content) == (201, first.content)
    assert (again.headers["idempotent-replayed"], "idempotent-replayed" in first.headers) == ("true", False)
    assert told(await give_back(shop.client, order, "a")) == (422, "key_reused")
    rest = await give_back(shop.client, order, "b", restock=True)
    assert (rest.status_code, rest.json()["amount_micros"], rest.json()["restock"]) == (201, PRICE - FIFTH, True)
    assert (await shop.client.get("/v1/skus/phone")).json()["available"] == 1
    assert told(await give_back(shop.client, order, "c", amount_micros=10_000)) == (409, "refund_too_large")
    await shop.quiet()
    found = await shop.order(order)
    assert [(one["status"], one["amount_micros"]) for one in found["refunds"]] == [
        ("COMPLETED", FIFTH),
        ("COMPLETED", PRICE - FIFTH),
    ]
    assert (await shop.books_match()).refunded == PRICE
    # What was given back for sale is sold again.
    await bought(shop, "bob")


async def test_what_cannot_be_given_back_says_where_the_money_is(shop: Storefront) -> None:
    await shop.stock(2)
    order, other = await bought(shop), await shop.reserve("bob")
    assert told(await give_back(shop.client, order, None)) == (400, "idempotency_key_missing")
    assert told(await give_back(shop.client, other, "r")) == (409, "order_not_paid")
    assert told(await give_back(shop.client, order, "r", amount_micros=PRICE + 10_000)) == (409, "refund_too_large")
    assert told(await give_back(shop.client, order, "r", amount_micros=1)) == (409, "refund_not_possible")
    assert told(await give_back(shop.client, order, "r", amount_micros=0)) == (400, "amount_not_positive")
    assert told(await give_back(shop.client, order, "r", reason="")) == (400, "reason_missing")
    assert told(await give_back(shop.client, order, "r", amount_micros=1.5)) == (400, "amount_not_integer")
    assert told(await give_back(shop.stranger, order, "r")) == (404, "order_unknown")
    cancelled = await shop.client.post(f"/v1/orders/{order['id']}/cancel")
    assert told(cancelled) == (409, "order_paid")
    assert "/refund" in cancelled.json()["remedy"]
    assert shop.control.made("stripe", "refund") == []


async def test_a_silent_provider_is_202_and_the_sweeper_gives_it_back(shop: Storefront) -> None:
    await shop.stock(1)
    order = await bought(shop)
    await shop.plan("stripe.refund:rate_limited")
    first = await give_back(shop.client, order, "a", amount_micros=FIFTH)
    assert (first.status_code, first.json()["status"]) == (202, "PENDING")
    assert int(first.headers["retry-after"]) >= 1
    await shop.until(order, lambda found: found["refund"]["status"] == "COMPLETED")
    done = await give_back(shop.client, order, "a", amount_micros=FIFTH)
    assert (done.status_code, done.headers["idempotent-replayed"]) == (201, "true")
    await shop.quiet()
    assert (await shop.books_match()).refunded == FIFTH


async def test_the_document_tells_it_as_it_is(shop: Storefront) -> None:
    await shop.stock(1)
    order = await bought(shop)
    document = (await shop.client.get("/openapi.json")).json()
    responses = document["paths"]["/v1/orders/{id}/refund"]["post"]["responses"]
    answer = await give_back(shop.client, order, "a", amount_micros=FIFTH)
    schema = responses["201"]["content"]["application/json"]["schema"]
    jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())
    assert answer.json().keys() == responses["201"]["content"]["application/json"]["example"].keys()
