"""Accounts over HTTP."""

from datetime import UTC, datetime, timedelta

import httpx2
import pytest


def test_an_account_is_made_once_and_changed_after(client: httpx2.Client, key: str) -> None:
    name = f"made:{key}"
    made = client.put(f"/v1/accounts/{name}", json={"currency": "EUR"})
    limit = {"window_seconds": 60, "max_count": 3, "max_sum_micros": None}
    changed = client.put(f"/v1/accounts/{name}", json={"currency": "EUR", "floor_micros": -5, "limits": [limit]})
    assert (made.status_code, changed.status_code) == (201, 200)
    assert (made.json()["floor_micros"], made.json()["limits"]) == (0, [])
    assert (changed.json()["floor_micros"], changed.json()["limits"]) == (-5, [limit])
    assert client.get(f"/v1/accounts/{name}").json() == changed.json()


@pytest.mark.parametrize(
    ("name", "body", "status", "code"),
    [
        ("p:1", {"currency": "ABC"}, 400, "currency_unknown"),
        ("p:1", {}, 400, "field_invalid"),
        ("p:1", {"currency": "USD", "floor_micros": "0"}, 400, "floor_invalid"),
        ("p:1", {"currency": "USD", "floor_micros": 1.5}, 400, "floor_invalid"),
        ("p:1", {"currency": "USD", "floor_micros": 2**63}, 400, "floor_invalid"),
        ("p:1", {"currency": "USD", "limits": [{"window_seconds": 0}]}, 400, "limits_invalid"),
        ("p:1", {"currency": "USD", "limits": [{"window_seconds": "60"}]}, 400, "limits_invalid"),
        ("p:1", {"currency": "USD", "balance_micros": 5}, 400, "field_invalid"),
        ("p%20q", {"currency": "USD"}, 400, "account_invalid"),
        ("%00", {"currency": "USD"}, 400, "account_invalid"),
        ("%ff", {"currency": "USD"}, 400, "account_invalid"),
        ("a" * 201, {"currency": "USD"}, 400, "account_invalid"),
        ("p:2", {"currency": "USD", "floor_micros": 1}, None, None),
    ],
)
def test_a_wrong_account_is_refused(
    client: httpx2.Client, name: str, body: dict[str, object], status: int | None, code: str | None
) -> None:
    answer = client.put(f"/v1/accounts/{name}", json=body)
    if status is None:
        assert answer.status_code < 500
    else:
        assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_an_accounts_currency_never_changes(client: httpx2.Client, accounts: tuple[str, str, str]) -> None:
    answer = client.put(f"/v1/accounts/{accounts[0]}", json={"currency": "EUR"})
    assert (answer.status_code, answer.json()["code"]) == (409, "currency_mismatch")


def test_a_velocity_limit_answers_429(client: httpx2.Client, accounts: tuple[str, str, str], key: str) -> None:
    first, second, _ = accounts
    client.put(f"/v1/accounts/{first}", json={"currency": "USD", "limits": [{"window_seconds": 600, "max_count": 0}]})
    body = {"kind": "transfer", "debit": first, "credit": second, "amount_micros": 1, "currency": "USD"}
    answer = client.post("/v1/operations", json=body, headers={"idempotency-key": key})
    assert (answer.status_code, answer.json()["code"]) == (429, "velocity_exceeded")


def test_a_balance_is_read_at_a_moment(client: httpx2.Client, accounts: tuple[str, str, str]) -> None:
    first = accounts[0]
    entry = client.get(f"/v1/accounts/{first}/entries").json()["entries"][0]
    at = datetime.fromisoformat(entry["at"])
    for moment, balance in ((at, 100_000_000), (at - timedelta(microseconds=1), 0)):
        answer = client.get(f"/v1/accounts/{first}", params={"at": moment.isoformat()})
        assert answer.status_code == 200
        assert answer.json()["balance_micros"] == balance
    elsewhere = at.astimezone(UTC) + timedelta(hours=2)
    text = elsewhere.replace(tzinfo=None).isoformat() + "+02:00"
    assert client.get(f"/v1/accounts/{first}", params={"at": text}).json()["balance_micros"] == 100_000_000


@pytest.mark.parametrize(
    "query",
    [
        "at=",
        "at=yesterday",
        "at=2026-01-01",
        "at=2026-01-01T00:00:00",
        "at=2026-13-01T00:00:00Z",
        "at=0001-01-01T00:00:00%2B23:59",
        "at=1767225600",
        "at=2026-01-01T00:00:00Z&at=2026-01-02T00:00:00Z",
        "att=2026-01-01T00:00:00Z",
        "at=%ff",
        "&".join("x=1" for _ in range(100)),
    ],
)
def test_a_moment_that_cannot_be_read_is_refused(
    client: httpx2.Client, accounts: tuple[str, str, str], query: str
) -> None:
    """Silently answering with the balance of now would be a wrong balance."""
    answer = client.get(f"/v1/accounts/{accounts[0]}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "query_invalid")


@pytest.mark.parametrize("path", ["", "/entries"])
def test_an_unknown_account_is_not_found(client: httpx2.Client, path: str) -> None:
    answer = client.get(f"/v1/accounts/nobody{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "account_unknown")


def test_entries_are_paged_newest_first(client: httpx2.Client, accounts: tuple[str, str, str], key: str) -> None:
    first, second, _ = accounts
    body = {"kind": "transfer", "debit": first, "credit": second, "amount_micros": 1, "currency": "USD"}
    for number in range(4):
        client.post("/v1/operations", json=body, headers={"idempotency-key": f"{key}-{number}"})
    numbers: list[int] = []
    balances: list[int] = []
    cursor = None
    while True:
        page = client.get(
            f"/v1/accounts/{first}/entries", params={"limit": 2} | ({"cursor": cursor} if cursor else {})
        ).json()
        numbers.extend(entry["number"] for entry in page["entries"])
        balances.extend(entry["balance_micros"] for entry in page["entries"])
        cursor = page["next"]
        if cursor is None:
            break
    assert numbers == [5, 4, 3, 2, 1]
    assert balances == [99_999_996, 99_999_997, 99_999_998, 99_999_999, 100_000_000]


def test_accounts_are_paged_by_id(client: httpx2.Client, accounts: tuple[str, str, str]) -> None:
    found: list[str] = []
    cursor = None
    while True:
        page = client.get("/v1/accounts", params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        found.extend(account["id"] for account in page["accounts"])
        cursor = page["next"]
        if cursor is None:
            break
    assert found == sorted(set(found))
    assert set(accounts) <= set(found)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=x", "limit=-1", "cursor=%00", "cursor=", "cursor=-", "page=2"]
)
@pytest.mark.parametrize("path", ["/v1/accounts", "/v1/accounts/nobody/entries"])
def test_a_page_that_cannot_be_is_refused(client: httpx2.Client, path: str, query: str) -> None:
    answer = client.get(f"{path}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "query_invalid")
