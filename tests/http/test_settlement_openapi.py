"""What the document tells of settlements is so: its examples work, and the answers have the documented shape."""

from typing import Any

import httpx2
import jsonschema_rs
import pytest

from tallystick.http import examples, openapi
from tallystick.settlement import terms as settlement_terms
from tallystick.settlement.review import flow as settlement_review
from tallystick.settlement.views import SQUAD_PATTERN
from tests.http.conftest import Payouts
from tests.providers.worlds import Control
from tests.settlements import Shop, shop

Answers = list[tuple[str, str, httpx2.Response, Any]]


def test_the_bounds_of_the_document_are_the_cores() -> None:
    assert settlement_terms._SQUAD.pattern == SQUAD_PATTERN
    assert settlement_review._MOST_WORDS == openapi.MOST_WORDS
    assert settlement_terms._ATTRIBUTION.pattern == openapi._VALUES["AttributionId"]["pattern"].strip("^$")


@pytest.fixture
def document(payer: httpx2.Client) -> dict[str, Any]:
    found: dict[str, Any] = payer.get("/openapi.json").json()
    return found


async def test_the_example_requests_work_and_their_answers_are_as_told(
    payouts: Payouts, document: dict[str, Any], control: Control
) -> None:
    """The whole life of a payout, in the documentation's own words."""
    with payouts.site.client("example") as client, payouts.site.client("example", "approver") as approver:
        async with shop(payouts.dsn, control, tenant="example") as worker:
            answers = [*_created(client), *await _reviewed(client, approver, worker)]
    for call, path, answer, example in answers:
        assert answer.status_code in (200, 201), (path, answer.text)
        described = document["paths"][path][call]["responses"][str(answer.status_code)]
        schema = described["content"]["application/json"]["schema"]
        jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())
        assert answer.json().keys() == example.keys(), path


def _created(client: httpx2.Client) -> Answers:
    fees = [
        client.put(f"/v1/settlement-policies/{currency}", json=fee)
        for currency, fee in zip(("EUR", "USD"), examples.FEES.values(), strict=True)
    ]
    batch = client.post("/v1/settlements/batch", json=examples.SETTLEMENT_BATCH["two payouts"])
    assert [outcome["status"] for outcome in batch.json()["outcomes"]] == ["created", "created"]
    singles = [
        client.post("/v1/settlements", json=body, headers={"idempotency-key": f"single-{number}"})
        for number, body in enumerate(examples.SETTLEMENTS.values())
    ]
    assert [single.status_code for single in singles] == [200, 200]
    # The example's figures follow from its own fee.
    shown = ("gross_micros", "fee_micros", "net_micros", "amount_micros", "residue_micros")
    assert [singles[0].json()[name] for name in shown] == [examples.SETTLEMENT[name] for name in shown]
    return [
        *(("put", "/v1/settlement-policies/{currency}", answer, examples.FEE_POLICY) for answer in fees),
        ("get", "/v1/settlement-policies", client.get("/v1/settlement-policies"), examples.FEE_POLICIES),
        ("post", "/v1/settlements/batch", batch, examples.SETTLEMENT_OUTCOMES),
        *(("post", "/v1/settlements", answer, examples.SETTLEMENT) for answer in singles),
        ("get", "/v1/settlements", client.get("/v1/settlements"), examples.SETTLEMENT_PAGE),
    ]


async def _reviewed(client: httpx2.Client, approver: httpx2.Client, worker: Shop) -> Answers:
    closed = {**examples.SETTLEMENTS["payout"], "attribution_id": "bounty-44", "destination": "acct_closed"}
    client.post("/v1/settlements", json=closed, headers={"idempotency-key": "closed"})
    await worker.tick()
    page = client.get("/v1/settlements").json()["settlements"]
    names = {view["attribution_id"]: f"/v1/settlements/{view['id']}" for view in page}
    paid, other, failed = (names[f"bounty-{number}"] for number in (42, 43, 44))

    def post(as_: httpx2.Client, path: str, body: object) -> httpx2.Response:
        return as_.post(path, json=body, headers={"idempotency-key": f"post-{path}-{len(answers)}"})

    dispute, resolve = "/v1/settlements/{id}/dispute", "/v1/settlements/{id}/resolve"
    answers: Answers = []
    for path, how in ((paid, "confirm"), (other, "write off")):
        answers.append(("post", dispute, post(client, f"{path}/dispute", examples.DISPUTES["not received"]), _REVIEW))
        answers.append(("post", resolve, post(client, f"{path}/resolve", examples.RESOLUTIONS[how]), _REVIEW))
    for decision in ("reject", "approve"):
        asked = post(client, f"{failed}/resolve", examples.RESOLUTIONS["retry"])
        approval = f"/v1/approvals/{asked.json()['approval']['id']}"
        answers.append(("post", resolve, asked, _REVIEW))
        answers.append(("get", "/v1/approvals", client.get("/v1/approvals"), examples.OPEN_APPROVALS))
        answers.append(("post", "/v1/approvals/{id}", post(approver, approval, examples.DECISIONS[decision]), _REVIEW))
        answers.append(("get", "/v1/approvals/{id}", client.get(approval), examples.APPROVAL))
    await worker.tick()
    answers += [
        ("get", "/v1/settlements/{id}", client.get(path), examples.SETTLEMENT_DETAIL) for path in (paid, other, failed)
    ]
    return answers


_REVIEW = examples.REVIEW
