"""Operations over HTTP: exactly once, and the answer says which time it was."""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.http.site import Site

Balances = Callable[..., list[int]]


def transfer(accounts: tuple[str, str, str], amount: object = 5_000_000, **others: object) -> dict[str, Any]:
    first, second, _ = accounts
    operation = {
        "kind": "transfer",
        "debit": first,
        "credit": second,
        "amount_micros": amount,
        "currency": "USD",
    }
    return {**operation, **others}


def test_a_transfer_moves_money_and_can_be_read_back(
    client: httpx2.Client, accounts: tuple[str, str, str], key: str, balances: Balances
) -> None:
    done = client.post("/v1/operations", json=transfer(accounts), headers={"idempotency-key": key})
    assert done.status_code == 201
    assert done.headers["content-type"] == "application/json"
    assert "idempotent-replayed" not in done.headers
    assert balances(*accounts[:2]) == [95_000_000, 5_000_000]
    again = client.get(f"/v1/operations/{done.json()['id']}")
    assert (again.status_code, again.content) == (200, done.content)


def test_a_replay_is_the_first_answer_to_the_byte(
    client: httpx2.Client, accounts: tuple[str, str, str], key: str, balances: Balances
) -> None:
    """Bare and quoted are the same key, so this is one payment."""
    first, *replays = [
        client.post("/v1/operations", json=transfer(accounts), headers={"idempotency-key": form})
        for form in (key, key, f'"{key}"')
    ]
    for replay in replays:
        assert replay.status_code == first.status_code == 201
        assert replay.content == first.content
        assert replay.headers["idempotent-replayed"] == "true"
    assert balances(*accounts[:2]) == [95_000_000, 5_000_000]


def test_a_key_used_for_another_request_names_the_fields(
    client: httpx2.Client, accounts: tuple[str, str, str], key: str
) -> None:
    client.post("/v1/operations", json=transfer(accounts), headers={"idempotency-key": key})
    other = client.post(
        "/v1/operations", json=transfer(accounts, 6_000_000, memo="more"), headers={"idempotency-key": key}
    )
    assert other.status_code == 422
    assert other.headers["content-type"] == "application/problem+json"
    problem = other.json()
    assert (problem["code"], problem["fields"]) == ("key_reused", ["amount_micros", "memo"])


def test_a_refused_operation_leaves_its_key_unused(
    client: httpx2.Client, accounts: tuple[str, str, str], key: str
) -> None:
    refused = client.post("/v1/operations", json=transfer(accounts, 100_000_001), headers={"idempotency-key": key})
    assert refused.status_code == 402
    problem = refused.json()
    assert problem["code"] == "insufficient_funds"
    assert problem["type"] == "/docs#insufficient_funds"
    assert problem["money"] == "No money moved."
    assert problem["status"] == 402
    assert problem["title"]
    assert problem["remedy"]
    smaller = client.post("/v1/operations", json=transfer(accounts), headers={"idempotency-key": key})
    assert smaller.status_code == 201


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"kind": "broken"}, 500, "handler_failed"),
        ({"kind": "picky"}, 422, "too_picky"),
    ],
)
def test_a_users_kind_answers_in_its_own_words(
    client: httpx2.Client, key: str, body: dict[str, str], status: int, code: str
) -> None:
    answer = client.post("/v1/operations", json=body, headers={"idempotency-key": key})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "secret" not in answer.text


def test_each_operation_of_a_batch_stands_alone(
    client: httpx2.Client, accounts: tuple[str, str, str], key: str, balances: Balances
) -> None:
    """In order: committed, malformed, refused, a twin of the first, another use of its key, a bad key."""
    operations = [
        transfer(accounts, idempotency_key=f"{key}-a"),
        transfer(accounts, "5", idempotency_key=f"{key}-b"),
        transfer(accounts, 10**12, idempotency_key=f"{key}-c"),
        transfer(accounts, idempotency_key=f"{key}-a"),
        transfer(accounts, 7, idempotency_key=f"{key}-a"),
        transfer(accounts, idempotency_key="schlüssel"),
        transfer(accounts),
    ]
    answer = client.post("/v1/operations/batch", json={"operations": operations})
    assert answer.status_code == 200
    outcomes = answer.json()["outcomes"]
    told = [(outcome["status"], outcome.get("problem", {}).get("code")) for outcome in outcomes]
    assert told == [
        ("committed", None),
        ("rejected", "amount_not_integer"),
        ("rejected", "insufficient_funds"),
        ("duplicate", None),
        ("rejected", "key_reused"),
        ("rejected", "idempotency_key_invalid"),
        ("rejected", "field_invalid"),
    ]
    assert outcomes[0]["transaction"] == outcomes[3]["transaction"]
    assert balances(*accounts[:2]) == [95_000_000, 5_000_000]


def test_the_key_of_a_batch_is_the_key_of_the_header(
    client: httpx2.Client, accounts: tuple[str, str, str], key: str
) -> None:
    single = client.post("/v1/operations", json=transfer(accounts), headers={"idempotency-key": key})
    batch = client.post("/v1/operations/batch", json={"operations": [transfer(accounts, idempotency_key=key)]})
    assert batch.content == b'{"outcomes":[{"status":"duplicate","transaction":' + single.content + b"}]}"


def test_a_batch_too_large_runs_nothing(
    client: httpx2.Client, accounts: tuple[str, str, str], key: str, balances: Balances
) -> None:
    operations = [transfer(accounts, 1, idempotency_key=f"{key}-{n}") for n in range(1_001)]
    answer = client.post("/v1/operations/batch", json={"operations": operations})
    assert (answer.status_code, answer.json()["code"]) == (413, "batch_too_large")
    assert balances(accounts[0]) == [100_000_000]
    largest = client.post("/v1/operations/batch", json={"operations": operations[:1_000]})
    assert {outcome["status"] for outcome in largest.json()["outcomes"]} == {"committed"}
    assert balances(*accounts[:2]) == [100_000_000 - 1_000, 1_000]


@pytest.mark.parametrize("name", ["tx_", "tx_" + "0" * 32, "tx_" + "z" * 32, "nonsense"])
def test_an_unknown_transaction_is_not_found(client: httpx2.Client, name: str) -> None:
    answer = client.get(f"/v1/operations/{name}")
    assert (answer.status_code, answer.json()["code"]) == (404, "transaction_unknown")


def test_tenants_with_the_same_names_see_only_their_own(site: Site, key: str) -> None:
    """Same account ids, same idempotency key, two tenants: two payments in two worlds."""
    transactions = []
    for name, amount in (("default", 3), ("other", 4)):
        with site.client(name) as client:
            for account, floor in (("wall:in", 0), ("wall:out", None)):
                client.put(f"/v1/accounts/{account}", json={"currency": "USD", "floor_micros": floor})
            body = {"kind": "topup", "account": "wall:in", "source": "wall:out"}
            done = client.post(
                "/v1/operations",
                json={**body, "amount_micros": amount, "currency": "USD"},
                headers={"idempotency-key": f"wall-{key}"},
            )
            assert done.status_code == 201
            transactions.append(done.json()["id"])
    for name, amount, own, foreign in (("default", 3, 0, 1), ("other", 4, 1, 0)):
        with site.client(name) as client:
            assert client.get("/v1/accounts/wall:in").json()["balance_micros"] == amount
            entries = client.get("/v1/accounts/wall:in/entries").json()["entries"]
            assert [entry["transaction"] for entry in entries] == [transactions[own]]
            assert client.get(f"/v1/operations/{transactions[own]}").status_code == 200
            assert client.get(f"/v1/operations/{transactions[foreign]}").status_code == 404
    with site.client("other") as client:
        listed = [account["id"] for account in client.get("/v1/accounts").json()["accounts"]]
        # Beside the tenant's own clearing accounts.
        assert [name for name in listed if not name.startswith("settlement:clearing:")] == ["wall:in", "wall:out"]
