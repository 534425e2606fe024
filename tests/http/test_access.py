"""Who may call what."""

import asyncio
from dataclasses import replace

import httpx2
import pytest

from tallystick import app
from tallystick.access import store as tenant
from tallystick.access.store import Access
from tallystick.http.access import Doorkeeper, Need
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS, Settings
from tests import servers
from tests.http.site import Site

BODY = {"kind": "transfer", "debit": "a", "credit": "b", "amount_micros": 1, "currency": "USD"}


@pytest.mark.parametrize("value", [None, "", "Bearer", "Bearer tsk_nobody", "Basic abc", "Bearer " + "k" * 10_000])
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
    ("role", "may_write"),
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


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/readyz?verbose", "/metrics", "/openapi.json", "/docs"])
def test_no_key_is_needed_to_look_at_the_service(site: Site, path: str) -> None:
    answer = httpx2.get(f"http://127.0.0.1:{site.port}{path}")
    assert answer.status_code == 200
    assert not any(key in answer.text for key in site.keys.values())


def test_the_scheme_may_be_in_any_case(site: Site) -> None:
    headers = {"authorization": f"bearer {site.keys['default', 'viewer']}"}
    assert httpx2.get(f"http://127.0.0.1:{site.port}/v1/accounts", headers=headers).status_code == 200


async def test_guessing_neither_fills_the_memory_nor_pushes_known_keys_out(
    embedded18: servers.Server,
) -> None:
    async with app.running(Settings(database_url=embedded18.fresh_database())) as service:
        owner = await tenant.ensure_tenant(service.database, "default")
        await tenant.add_key(service.database, owner, "viewer", "tsk_known")
        doorkeeper = Doorkeeper(service.database, limits=replace(LIMITS, key_memory=3))
        assert isinstance(await doorkeeper.admit([b"Bearer tsk_known"], Need.READ), Access)
        for number in range(10):
            guess = await doorkeeper.admit([b"Bearer guess-%d" % number], Need.READ)
            assert isinstance(guess, Rejected)
        assert (len(doorkeeper._known), len(doorkeeper._unknown), doorkeeper._lookups) == (1, 3, {})


async def test_a_revoked_key_works_until_its_memory_ends_and_no_longer(embedded18: servers.Server) -> None:
    async with app.running(Settings(database_url=embedded18.fresh_database())) as service:
        owner = await tenant.ensure_tenant(service.database, "default")
        prefix = await tenant.add_key(service.database, owner, "admin", "tsk_to_be_revoked")
        remembering = Doorkeeper(service.database)
        forgetting = Doorkeeper(service.database, limits=replace(LIMITS, key_memory_seconds=0))
        for doorkeeper in (remembering, forgetting):
            assert isinstance(await doorkeeper.admit([b"Bearer tsk_to_be_revoked"], Need.WRITE), Access)
        assert await tenant.revoke_key(service.database, owner, prefix)
        assert isinstance(await remembering.admit([b"Bearer tsk_to_be_revoked"], Need.WRITE), Access)
        assert isinstance(await forgetting.admit([b"Bearer tsk_to_be_revoked"], Need.WRITE), Rejected)


async def test_many_callers_with_one_key_ask_the_database_once(embedded18: servers.Server) -> None:
    async with app.running(Settings(database_url=embedded18.fresh_database())) as service:
        owner = await tenant.ensure_tenant(service.database, "default")
        await tenant.add_key(service.database, owner, "viewer", "tsk_busy_one")
        doorkeeper = Doorkeeper(service.database)
        asking = [asyncio.create_task(doorkeeper.admit([b"Bearer tsk_busy_one"], Need.READ)) for _ in range(50)]
        await asyncio.sleep(0)
        assert len(doorkeeper._lookups) == 1
        assert all(isinstance(access, Access) for access in await asyncio.gather(*asking))
