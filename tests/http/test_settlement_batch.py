"""Many settlements in one call: each stands alone."""

from typing import Any

import httpx2
import pytest

from tests.http.conftest import Payouts
from tests.http.payouts import create, told, wish


def _send(client: httpx2.Client, settlements: list[Any]) -> list[dict[str, Any]]:
    answer = client.post("/v1/settlements/batch", json={"settlements": settlements})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["outcomes"]
    return found


def test_each_settlement_of_a_batch_stands_alone(payer: httpx2.Client, squad: str) -> None:
    """Good and bad in one call, in the order they were sent."""
    before = create(payer, squad, "old").json()

    def item(attribution: str, key: str, **fields: Any) -> dict[str, Any]:
        return {**wish(squad, attribution, **fields), "idempotency_key": f"{squad}-{key}"}

    outcomes = _send(
        payer,
        [
            item("a", "a"),
            item("b", "b", gross_micros="5"),
            item("c", "c", fee_micros=0),
            item("a", "a"),
            item("a", "other-key"),
            item("a", "third-key", gross_micros=7_000_000),
            item("d", "a"),
            item("old", "old"),
            item("old", "new-key"),
            item("e", "e", provider="adyen"),
            item("f", "f", gross_micros=1),
            wish(squad, "g"),
            item("h", "schlüssel"),
            item("i", "i", provider=None),
            5,
        ],
    )
    found = [(outcome["status"], outcome.get("problem", {}).get("code")) for outcome in outcomes]
    assert found == [
        ("created", None),
        ("rejected", "amount_not_integer"),
        ("rejected", "field_invalid"),
        ("replayed", None),
        ("existing", None),
        ("rejected", "settlement_conflict"),
        ("rejected", "key_reused"),
        ("replayed", None),
        ("existing", None),
        ("rejected", "provider_not_configured"),
        ("rejected", "net_not_payable"),
        ("rejected", "field_invalid"),
        ("rejected", "idempotency_key_invalid"),
        ("created", None),
        ("rejected", "field_invalid"),
    ]
    assert outcomes[3]["settlement"] == outcomes[0]["settlement"]
    assert outcomes[4]["settlement"]["id"] == outcomes[0]["settlement"]["id"]
    assert outcomes[7]["settlement"] == before
    payable = payer.get(f"/v1/accounts/settlement:payable:EUR:{squad}").json()
    assert (payable["balance_micros"], payable["entries"]) == (3 * 12_340_000, 3)


def test_the_key_of_a_batch_is_the_key_of_the_header(payer: httpx2.Client, squad: str) -> None:
    single = create(payer, squad)
    again = {**wish(squad), "idempotency_key": f"{squad}-a-1"}
    batch = payer.post("/v1/settlements/batch", json={"settlements": [again]})
    assert batch.content == b'{"outcomes":[{"status":"replayed","settlement":' + single.content + b"}]}"


def test_a_refusal_is_the_problem_of_the_single_call(payer: httpx2.Client, squad: str) -> None:
    single = create(payer, squad, gross_micros=1)
    (outcome,) = _send(payer, [{**wish(squad, gross_micros=1), "idempotency_key": f"{squad}-a-1"}])
    assert outcome == {"status": "rejected", "problem": single.json()}


def test_a_thousand_at_once_and_not_one_more(payer: httpx2.Client, squad: str) -> None:
    many = [
        {**wish(squad, f"a-{number}", gross_micros=1_000_000), "idempotency_key": f"{squad}-{number}"}
        for number in range(1_001)
    ]
    refused = payer.post("/v1/settlements/batch", json={"settlements": many})
    assert told(refused) == (413, "batch_too_large")
    assert payer.get("/v1/settlements", params={"squad_id": squad}).json()["settlements"] == []
    assert {outcome["status"] for outcome in _send(payer, many[:1_000])} == {"created"}
    payable = payer.get(f"/v1/accounts/settlement:payable:EUR:{squad}").json()
    assert (payable["balance_micros"], payable["entries"]) == (1_000 * 1_000_000, 1_000)
    assert {outcome["status"] for outcome in _send(payer, many[:1_000])} == {"replayed"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "json_invalid"),
        (b"[]", 400, "field_invalid"),
        (b"{}", 400, "field_invalid"),
        (b'{"settlements":5}', 400, "field_invalid"),
        (b'{"settlements":[],"more":1}', 400, "field_invalid"),
        (b'{"settlements":[],"settlements":[]}', 400, "json_field_repeated"),
        (b'{"settlements":[{"squad_id":"\xff"}]}', 400, "json_invalid"),
    ],
)
def test_a_malformed_batch_is_refused_whole(payer: httpx2.Client, body: bytes, status: int, code: str) -> None:
    answer = payer.post("/v1/settlements/batch", content=body, headers={"content-type": "application/json"})
    assert told(answer) == (status, code)


def test_a_batch_is_the_callers_tenants(payouts: Payouts, payer: httpx2.Client, squad: str) -> None:
    """The same batch of two tenants is two payouts: the second is created, not found."""
    item = {**wish(squad), "idempotency_key": f"{squad}-wall"}
    with payouts.site.client("other") as stranger:
        (mine,), (theirs,) = _send(payer, [item]), _send(stranger, [item])
    assert mine["status"] == theirs["status"] == "created"
    assert mine["settlement"]["id"] != theirs["settlement"]["id"]
