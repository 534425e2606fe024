"""Money that did not fit, over HTTP: a person's decision about it, and what a tenant wants done with it."""

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
from tests.providers.worlds import Control
from tests.sagas import desk

PRICE = 25_000_000
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture(scope="module")
def till(dsn: str, payouts_simulator: RunningSimulator) -> Iterator[sites.Site]:
    """A site whose provider is the simulator."""
    with sites.running(dsn, simulator_url=payouts_simulator.url) as running:
        yield running


def told(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


def test_a_policy_is_read_by_anybody_and_chosen_by_an_admin(till: sites.Site) -> None:
    with till.client() as admin, till.client(role="operator") as operator, till.client(role="viewer") as viewer:
        assert viewer.get("/v1/checkout-policy").json() == {
            "late": "refund",
            "other_amount": "refund",
            "changed_by": None,
            "changed_at": None,
        }
        assert told(operator.put("/v1/checkout-policy", json={"late": "backorder"})) == (403, "forbidden")
        refused: tuple[Any, ...] = ({"late": "keep"}, {"other_amount": None}, {"grace": 1}, [])
        for wrong in refused:
            assert told(admin.put("/v1/checkout-policy", json=wrong)) == (400, "field_invalid")
        chosen = admin.put("/v1/checkout-policy", json={"late": "backorder", "other_amount": "review"})
        assert (chosen.status_code, chosen.json()["late"], chosen.json()["other_amount"]) == (
            200,
            "backorder",
            "review",
        )
        assert viewer.get("/v1/checkout-policy").json() == chosen.json()
        # What is left out is the default again.
        again = admin.put("/v1/checkout-policy", json={}).json()
        assert (again["late"], again["other_amount"]) == ("refund", "refund")
    with till.client("other") as other:
        assert other.get("/v1/checkout-policy").json()["changed_by"] is None


def test_what_waits_for_nobody_needs_no_decision(till: sites.Site, control: Control) -> None:
    assert control.made("stripe", "refund") == []
    with till.client() as client, till.client(role="viewer") as viewer, till.client("other") as other:
        client.put("/v1/skus/lamp-brass", json={"stock": 10})
        made = client.post(
            "/v1/orders", json=examples.ORDERS["one lamp"], headers={"idempotency-key": f"r-{next(_numbers)}"}
        ).json()
        path = f"/v1/orders/{made['id']}/refund/decide"
        asked = {"payment_intent_id": "pi_1", "decision": "refund"}
        assert told(client.post(path, json=asked)) == (404, "payment_unknown")
        assert told(client.post(path, json={**asked, "decision": "confirm", "refund_id": "re_1"})) == (
            404,
            "payment_unknown",
        )
        assert told(other.post(path, json=asked)) == (404, "payment_unknown")
        assert told(client.post("/v1/orders/or_1/refund/decide", json=asked)) == (404, "order_unknown")
        assert told(viewer.post(path, json=asked)) == (403, "forbidden")
        for wrong in ({**asked, "decision": "burn"}, {"decision": "refund"}, {**asked, "amount_micros": 1}):
            assert told(client.post(path, json=wrong)) == (400, "field_invalid")


def test_a_payment_in_review_is_given_back_by_a_person(dsn: str, till: sites.Site, control: Control) -> None:
    """The wrong amount waits for him; his word gives it back, once, and the order tells so."""

    async def waits() -> tuple[str, str]:
        async with desk(dsn, control) as worker:
            order, payment = await worker.bought("in-review")
            await worker.tell(payment, "evt_review", micros=PRICE - 10_000)
            await worker.run()
            return order.id, payment

    async def fates() -> list[str]:
        async with desk(dsn, control) as worker, worker.shop.database.owning() as connection:
            rows = await connection.fetch(
                "SELECT fate FROM tally.payment_receipt WHERE payment_intent_id = $1", payment
            )
        return [row["fate"] for row in rows]

    with till.client() as admin:
        admin.put("/v1/checkout-policy", json={"other_amount": "review"})
        order, payment = asyncio.run(waits())
        kept: dict[str, Any] = {"payment_intent_id": payment, "decision": "keep"}
        # This site charges at the simulator under its own name; the payment is Stripe's.
        assert told(admin.post(f"/v1/orders/{order}/refund/decide", json={**kept, "decision": "refund"})) == (
            409,
            "provider_not_configured",
        )
        asked = admin.post(f"/v1/orders/{order}/refund/decide", json=kept)
        approval = asked.json()
        assert (asked.status_code, approval["action"], approval["order"]) == (202, "refund_keep", order)
        assert approval["asked_by"] == till.author()
        # Asked again it is the same, and nothing is decided by it.
        assert admin.post(f"/v1/orders/{order}/refund/decide", json=kept).json() == approval
        assert asyncio.run(fates()) == ["REVIEW"]
        with till.client(role="approver") as approver:
            assert approval in approver.get("/v1/approvals").json()["approvals"]
            yes = {"decision": "approve", "reason": "Looked."}
            path = f"/v1/approvals/{approval['id']}"
            assert told(admin.post(path, json=yes, headers={"idempotency-key": "keep-own"})) == (
                403,
                "second_person_needed",
            )
            assert asyncio.run(fates()) == ["REVIEW"]
            done = approver.post(path, json=yes, headers={"idempotency-key": "keep-1"})
            assert (done.status_code, done.json()["approval"]["decision"]) == (200, "approved")
            again = approver.post(path, json=yes, headers={"idempotency-key": "keep-1"})
            assert (again.content, again.headers["idempotent-replayed"]) == (done.content, "true")
        assert asyncio.run(fates()) == ["KEPT"]
        assert told(admin.post(f"/v1/orders/{order}/refund/decide", json=kept)) == (409, "payment_decided")
        admin.put("/v1/checkout-policy", json={})


def test_a_part_that_nobody_asked_for_is_decided_by_nobody(dsn: str, till: sites.Site, control: Control) -> None:
    """Over HTTP a part is named by its key; what is said of it needs evidence, and is no field of another decision."""

    async def sold() -> tuple[str, str]:
        async with desk(dsn, control) as worker:
            order, payment = await worker.bought("sold")
            await worker.tell(payment, "evt_sold")
            await worker.run()
            return order.id, payment

    order, payment = asyncio.run(sold())
    with till.client() as admin:
        path = f"/v1/orders/{order}/refund/decide"
        failed: dict[str, Any] = {"payment_intent_id": payment, "part": "unheard-of", "decision": "failed"}
        assert told(admin.post(path, json=failed)) == (400, "evidence_missing")
        seen = {**failed, "evidence": "Nothing there."}
        assert told(admin.post(path, json={**seen, "decision": "refund"})) == (404, "refund_part_unknown")
        assert told(admin.post(path, json={**seen, "part": 7})) == (400, "field_invalid")
        # Its provider is not this site's: nobody can be asked, so nothing is believed.
        assert told(admin.post(path, json=seen)) == (409, "provider_not_configured")
