"""The fee over HTTP: an admin's to change, the tenant's own, and no caller's to choose."""

from typing import Any

import asyncpg
import httpx2
import pytest

from tests.http.conftest import Payouts
from tests.http.payouts import create, created, told


def _put(client: httpx2.Client, currency: str, body: object) -> httpx2.Response:
    return client.put(f"/v1/settlement-policies/{currency}", json=body)


def test_a_fee_holds_for_what_is_created_after_it(payouts: Payouts, payer: httpx2.Client, squad: str) -> None:
    before = create(payer, squad, "before", currency="CHF").json()
    done = _put(payer, "CHF", {"percent_ppm": 25_000, "fixed_micros": 300_000, "minimum_micros": 500_000})
    assert done.status_code == 200
    assert done.json()["changed_by"] == payouts.site.author()
    listed = payer.get("/v1/settlement-policies").json()["policies"]
    assert done.json() in listed
    # 2.5 % of 12.34 and 0.30 is 0.6085; of 1.00 it is less than the least.
    after = create(payer, squad, "after", currency="CHF").json()
    least = create(payer, squad, "least", currency="CHF", gross_micros=1_000_000).json()
    assert [view["fee_micros"] for view in (before, after, least)] == [0, 608_500, 500_000]
    assert (after["net_micros"], after["amount_micros"], after["residue_micros"]) == (11_731_500, 11_730_000, 1_500)
    assert payer.get("/v1/accounts/settlement:fees:CHF").json()["balance_micros"] == 1_108_500
    assert payer.get(f"/v1/settlements/{before['id']}").json()["fee_micros"] == 0


def test_a_fee_that_leaves_nothing_refuses_the_settlement(payer: httpx2.Client, squad: str) -> None:
    assert _put(payer, "NOK", {"fixed_micros": 2_000_000}).status_code == 200
    for attribution, gross in (("all", 2_000_000), ("more", 1_000_000)):
        refused = create(payer, squad, attribution, currency="NOK", gross_micros=gross)
        assert told(refused) == (409, "net_not_positive")
        assert "2.00 NOK" in refused.json()["detail"]
    assert told(create(payer, squad, "crumb", currency="NOK", gross_micros=2_000_001)) == (409, "net_not_payable")
    assert create(payer, squad, "cent", currency="NOK", gross_micros=2_010_000).json()["amount_micros"] == 10_000


def test_the_default_is_that_of_every_currency_without_its_own(payouts: Payouts, squad: str) -> None:
    with payouts.site.client("other") as client:
        assert _put(client, "DKK", {}).status_code == 200
        default = _put(client, "default", {"percent_ppm": 100_000})
        assert (default.status_code, default.json()["currency"]) == (200, "default")
        try:
            fees = [create(client, squad, code, currency=code).json()["fee_micros"] for code in ("PLN", "DKK")]
            assert fees == [1_234_000, 0]
        finally:
            _put(client, "default", {})


def test_a_put_replaces_the_whole_fee(payer: httpx2.Client) -> None:
    _put(payer, "CZK", {"percent_ppm": 10_000, "fixed_micros": 5, "minimum_micros": 6})
    changed = _put(payer, "CZK", {"fixed_micros": 7}).json()
    assert (changed["percent_ppm"], changed["fixed_micros"], changed["minimum_micros"]) == (0, 7, 0)


def test_the_fee_of_one_tenant_is_nobody_elses(payouts: Payouts, payer: httpx2.Client, squad: str) -> None:
    assert _put(payer, "HUF", {"percent_ppm": 500_000}).status_code == 200
    with payouts.site.client("example") as stranger:
        assert "HUF" not in [one["currency"] for one in stranger.get("/v1/settlement-policies").json()["policies"]]
        assert create(stranger, squad, currency="HUF", gross_micros=10_000_000).json()["fee_micros"] == 0


def test_a_replay_keeps_the_fee_it_was_created_with(payer: httpx2.Client, squad: str) -> None:
    """Otherwise a change of the fee between a call and its repeat would change what was promised."""
    first = create(payer, squad, currency="RON")
    _put(payer, "RON", {"percent_ppm": 10_000})
    again = create(payer, squad, currency="RON")
    assert (again.status_code, again.content) == (201, first.content)
    other_key = create(payer, squad, key=f"{squad}-other", currency="RON")
    assert (other_key.status_code, other_key.json()["fee_micros"]) == (200, 0)


async def test_a_fee_that_is_in_use_is_changed_later(payouts: Payouts, payer: httpx2.Client) -> None:
    """Settlements that are being created hold the fee they were promised: who changes it is told to come back."""
    _put(payer, "MXN", {"percent_ppm": 1})
    creator = await asyncpg.connect(payouts.dsn)
    try:
        async with creator.transaction():
            await creator.execute("SELECT 1 FROM tally.settlement_policy WHERE currency = 'MXN' FOR SHARE")
            waiting = _put(payer, "MXN", {"percent_ppm": 2})
    finally:
        await creator.close()
    assert told(waiting) == (409, "in_flight")
    assert int(waiting.headers["retry-after"]) >= 1
    shown = {one["currency"]: one["percent_ppm"] for one in payer.get("/v1/settlement-policies").json()["policies"]}
    assert shown["MXN"] == 1
    assert _put(payer, "MXN", {"percent_ppm": 2}).json()["percent_ppm"] == 2


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown currency": ("ABC", {}, "currency_unknown"),
    "small letters": ("eur", {}, "currency_unknown"),
    "negative share": ("EUR", {"percent_ppm": -1}, "fee_invalid"),
    "more than everything": ("EUR", {"percent_ppm": 1_000_001}, "fee_invalid"),
    "share as a float": ("EUR", {"percent_ppm": 2.5}, "field_invalid"),
    "share as text": ("EUR", {"percent_ppm": "2.5"}, "field_invalid"),
    "share as a bool": ("EUR", {"percent_ppm": True}, "field_invalid"),
    "negative amount": ("EUR", {"fixed_micros": -1}, "fee_invalid"),
    "amount beyond BIGINT": ("EUR", {"minimum_micros": 2**63}, "fee_invalid"),
    "absurd amount": ("EUR", {"minimum_micros": 2**70}, "fee_invalid"),
    "amount as a float": ("EUR", {"fixed_micros": 0.5}, "amount_not_integer"),
    "amount of no currency": ("default", {"percent_ppm": 1, "fixed_micros": 1}, "fee_invalid"),
    "least of no currency": ("default", {"minimum_micros": 1}, "fee_invalid"),
    "another field": ("EUR", {"percent": 5}, "field_invalid"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_fee_is_refused(payer: httpx2.Client, squad: str, name: str) -> None:
    currency, body, code = BAD[name]
    before = payer.get("/v1/settlement-policies").json()
    assert told(_put(payer, currency, body)) == (400, code)
    assert payer.get("/v1/settlement-policies").json() == before
    assert payer.get(f"/v1/settlements/{created(payer, squad)}").json()["fee_micros"] == 0
