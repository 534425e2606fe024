import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx2
import pytest

from tests import servers
from tests.http import site as sites

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def site(embedded18: servers.Server) -> Iterator[sites.Site]:
    with sites.running(embedded18.fresh_database()) as running:
        yield running


@dataclass(frozen=True)
class Payouts:
    """A site whose settlements a test's own worker pays (`tests.settlements.shop` on the same database)."""

    site: sites.Site
    dsn: str


@pytest.fixture(scope="session")
def payouts(embedded18: servers.Server) -> Iterator[Payouts]:
    dsn = embedded18.fresh_database()
    with sites.running(dsn) as running:
        yield Payouts(running, dsn)


@pytest.fixture
def payer(payouts: Payouts) -> Iterator[httpx2.Client]:
    with payouts.site.client() as client:
        yield client


@pytest.fixture
def squad() -> str:
    """A squad that no other test pays."""
    return f"squad-{next(_numbers)}"


@pytest.fixture
def client(site: sites.Site) -> Iterator[httpx2.Client]:
    with site.client() as client:
        yield client


@pytest.fixture
def key() -> str:
    """An idempotency key that no other test has."""
    return f"key-{next(_numbers)}"


@pytest.fixture
def accounts(client: httpx2.Client) -> tuple[str, str, str]:
    """Two accounts of this test's own, the first with 100 USD, and the outside they came from."""
    number = next(_numbers)
    first, second, outside = f"first:{number}", f"second:{number}", f"outside:{number}"
    for name, floor in ((first, 0), (second, 0), (outside, None)):
        made = client.put(f"/v1/accounts/{name}", json={"currency": "USD", "floor_micros": floor})
        assert made.status_code == 201
    topup = {
        "kind": "topup",
        "account": first,
        "source": outside,
        "amount_micros": 100_000_000,
        "currency": "USD",
    }
    funded = client.post("/v1/operations", json=topup, headers={"idempotency-key": f"fund-{number}"})
    assert funded.status_code == 201
    return first, second, outside


@pytest.fixture
def balances(client: httpx2.Client) -> Callable[..., list[int]]:
    def read(*names: str) -> list[int]:
        return [client.get(f"/v1/accounts/{name}").json()["balance_micros"] for name in names]

    return read
