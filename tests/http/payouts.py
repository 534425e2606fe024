"""What tests of settlements over HTTP send, and what they make of the answers."""

from typing import Any

import httpx2

# Anything acct_... is good at the simulator, unless it has a word like `closed` in it.
DESTINATION = "acct_good"


def wish(squad: str, attribution: str = "a-1", **fields: Any) -> dict[str, Any]:
    """The body of a settlement; a field that is None is left out."""
    body = {
        "attribution_id": attribution,
        "squad_id": squad,
        "gross_micros": 12_340_000,
        "currency": "EUR",
        "destination": DESTINATION,
        "provider": "simulator",
        **fields,
    }
    return {name: value for name, value in body.items() if value is not None}


def create(
    client: httpx2.Client, squad: str, attribution: str = "a-1", *, key: str | None = None, **fields: Any
) -> httpx2.Response:
    """POST a settlement, under a key of its own unless one is given."""
    headers = {"idempotency-key": key or f"{squad}-{attribution}"}
    return client.post("/v1/settlements", json=wish(squad, attribution, **fields), headers=headers)


def created(client: httpx2.Client, squad: str, attribution: str = "a-1", **fields: Any) -> str:
    """The id of a settlement that is new."""
    made = create(client, squad, attribution, **fields)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def status_of(client: httpx2.Client, name: str) -> str:
    """How a settlement stands."""
    return str(client.get(f"/v1/settlements/{name}").json()["status"])


def told(answer: httpx2.Response) -> tuple[int, str | None]:
    """The status of an answer, and the code of its problem."""
    return answer.status_code, answer.json().get("code")
