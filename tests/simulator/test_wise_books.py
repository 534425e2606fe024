"""Wise's books: whose key it is, and that whatever is sent is answered as Wise would."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.simulator.station import Station

MANY = "9" * 5000


@pytest.fixture
def wise(simulator: Station) -> Iterator[httpx2.Client]:
    headers = {"authorization": "Bearer one"}
    with httpx2.Client(base_url=f"{simulator.url}/wise", headers=headers, timeout=30) as client:
        yield client


def prepared(wise: httpx2.Client, key: str) -> dict[str, Any]:
    quote = {"sourceCurrency": "EUR", "targetCurrency": "EUR", "targetAmount": 10}
    account = {"accountHolderName": "Ada", "currency": "EUR", "type": "iban", "details": {"iban": "DE89"}}
    return {
        "quoteUuid": wise.post("/v3/profiles/102/quotes", json=quote).json()["id"],
        "targetAccount": wise.post("/v1/accounts", json=account).json()["id"],
        "customerTransactionId": key,
    }


@pytest.mark.parametrize(("scope", "transfers"), [("account", 1), ("client", 2)])
def test_whether_a_key_is_the_callers_own_is_a_switch(
    simulator: Station, wise: httpx2.Client, scope: str, transfers: int
) -> None:
    simulator.switch("wise.key_scope", scope)
    key = str(uuid4())
    made = {
        wise.post("/v1/transfers", json=prepared(wise, key), headers={"authorization": f"Bearer {who}"}).json()["id"]
        for who in ("one", "two", "one")
    }
    assert len(made) == transfers


def test_more_recipients_than_a_page_are_all_listed(wise: httpx2.Client) -> None:
    account = {"accountHolderName": "Ada", "currency": "EUR", "type": "iban", "details": {"iban": "DE89"}}
    for _ in range(1001):
        wise.post("/v1/accounts", json=account)
    assert len(wise.get("/v1/accounts").json()) == 1001


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/v1/transfers?limit={MANY}", 400),
        (f"/v1/transfers?offset={MANY}", 400),
        (f"/v1/transfers/{MANY}", 404),
        (
            f"/v1/profiles/1/balance-statements/{MANY}/statement.json?intervalStart=2026-01-01&intervalEnd=2026-02-01",
            404,
        ),
    ],
)
def test_a_bad_question_is_wises_own_refusal(wise: httpx2.Client, path: str, status: int) -> None:
    answer = wise.get(path)
    assert (answer.status_code, list(answer.json())) == (status, ["errors"])


QUOTE = '{"sourceCurrency":"EUR","targetCurrency":"EUR","targetAmount":10}'
ACCOUNT = '{"accountHolderName":"Ada","currency":"EUR","type":"iban","details":{"a":%s},"profile":%s}'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/accounts", ACCOUNT % (MANY, 1)),
        ("/v1/accounts", ACCOUNT % (1, "9" * 4200)),
        ("/v1/accounts", ACCOUNT % ("[" * 5000 + "]" * 5000, 1)),
        ("/v1/transfers", '{"targetAccount":%s,"quoteUuid":"x","customerTransactionId":"x"}' % ("9" * 4200)),
        ("/v1/transfers", '{"details":%s}' % ("[" * 5000 + "]" * 5000)),
        ("/v3/profiles/1/quotes", QUOTE.replace("10", MANY)),
        ("/v3/profiles/1/quotes", QUOTE.replace("10", "1e999999")),
    ],
)
def test_a_bad_body_is_wises_own_422(wise: httpx2.Client, path: str, body: str) -> None:
    answer = wise.post(path, content=body)
    assert (answer.status_code, list(answer.json())) == (422, ["errors"])


def test_a_profile_of_many_digits_is_none(wise: httpx2.Client) -> None:
    assert wise.post(f"/v3/profiles/{MANY}/quotes", json={}).status_code == 404
