"""Who may call what."""

import httpx2
import pytest

from tests.web.site import Site

BODY = {"kind": "transfer", "debit": "a", "credit": "b", "amount_micros": 1, "currency": "USD"}


@pytest.mark.parametrize(
    "value", [None, "", "Bearer", "Bearer tsk_nobody", "Basic abc", "Bearer " + "k" * 10_000]
)
@pytest.mark.parametrize("path", ["/v1/accounts", "/v1/accounts/a", "/v1/operations/tx_1"])
def test_without_a_known_key_nothing_is_told(site: Site, path: str, value: str | None) -> None:
    headers = {} if value is None else {"authorization": value}
    answer = httpx2.get(f"http://127.0.0.1:{site.port}{path}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_two_keys_are_none(site: Site) -> None:
    key = site.keys["default", "admin"]
    head = f"GET /v1/accounts HTTP/1.1\nHost: x\nAuthorization: Bearer {key}\nAuthorization: Bearer {key}"
    assert site.raw(head)[0] == 401


@pytest.mark.parametrize(
    "role,may_write",
    [("admin", True), ("operator", True), ("approver", False), ("viewer", False), ("auditor", False)],
)
def test_only_admins_and_operators_write(site: Site, key: str, role: str, *, may_write: bool) -> None:
    with site.client(role=role) as client:
        answers = [
            client.put(f"/v1/accounts/role:{role}", json={"currency": "USD"}),
            client.post("/v1/operations", json=BODY, headers={"idempotency-key": key}),
            client.post("/v1/operations/batch", json={"operations": []}),
        ]
        assert [answer.status_code for answer in answers] == ([201, 404, 200] if may_write else [403] * 3)
        assert client.get("/v1/accounts").status_code == 200


@pytest.mark.parametrize(
    "path", ["/livez", "/readyz", "/readyz?verbose", "/metrics", "/openapi.json", "/docs"]
)
def test_no_key_is_needed_to_look_at_the_service(site: Site, path: str) -> None:
    answer = httpx2.get(f"http://127.0.0.1:{site.port}{path}")
    assert answer.status_code == 200
    assert not any(key in answer.text for key in site.keys.values())


def test_the_scheme_may_be_in_any_case(site: Site) -> None:
    headers = {"authorization": f"bearer {site.keys['default', 'viewer']}"}
    assert httpx2.get(f"http://127.0.0.1:{site.port}/v1/accounts", headers=headers).status_code == 200
