"""What bounds the money of an account is an administrator's to say; an operator works within it."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.http.payouts import told
from tests.http.site import Site

LIMIT = {"window_seconds": 60, "max_count": 1}


@pytest.fixture
def operator(site: Site) -> Iterator[httpx2.Client]:
    with site.client(role="operator") as client:
        yield client


def _put(client: httpx2.Client, name: str, **fields: Any) -> httpx2.Response:
    return client.put(f"/v1/accounts/{name}", json={"currency": "EUR", **fields})


@pytest.mark.parametrize(
    ("had", "wanted"),
    [
        ({"floor_micros": 0}, {"floor_micros": None}),
        ({"floor_micros": 0}, {"floor_micros": -1}),
        ({"floor_micros": -5}, {"floor_micros": 0}),
        ({"floor_micros": None}, {"floor_micros": 0}),
        ({"limits": [LIMIT]}, {}),
        ({"limits": [LIMIT]}, {"limits": [{**LIMIT, "max_count": 2}]}),
        ({}, {"limits": [LIMIT]}),
    ],
    ids=str,
)
def test_an_operator_changes_no_bound(
    client: httpx2.Client, operator: httpx2.Client, key: str, had: dict[str, Any], wanted: dict[str, Any]
) -> None:
    """He could pay out what the floor or the limit would have stopped."""
    before = _put(client, key, **had)
    assert before.status_code == 201
    refused = _put(operator, key, **wanted)
    assert told(refused) == (403, "forbidden")
    assert "role admin" in refused.json()["remedy"]
    assert client.get(f"/v1/accounts/{key}").json() == before.json()
    # The same as it is may be asked for by anybody: scripts make sure of their accounts.
    assert _put(operator, key, **had).json() == before.json()
    assert _put(client, key, **wanted).status_code == 200


def test_an_operator_makes_ordinary_accounts_alone(client: httpx2.Client, operator: httpx2.Client, key: str) -> None:
    for wanted in ({"floor_micros": None}, {"floor_micros": -1}, {"limits": [LIMIT]}):
        assert told(_put(operator, key, **wanted)) == (403, "forbidden")
        assert told(client.get(f"/v1/accounts/{key}")) == (404, "account_unknown")
    assert _put(operator, key).status_code == 201


def test_limits_are_the_same_in_any_order(client: httpx2.Client, operator: httpx2.Client, key: str) -> None:
    limits = [{"window_seconds": 60, "max_count": 1}, {"window_seconds": 3600, "max_sum_micros": 5}]
    assert _put(client, key, limits=limits).status_code == 201
    assert _put(operator, key, limits=limits[::-1]).status_code == 200
