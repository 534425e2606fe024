"""Disputes, resolutions and approvals over HTTP: who decided what, once, and with a second person where needed."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx2
import pytest

from tallystick.access import store as tenants
from tests.http.conftest import Payouts
from tests.http.payouts import created, status_of, told
from tests.providers.worlds import Control
from tests.settlements import Shop, shop, superuser

WHY = {"reason": "The squad has not received it.", "evidence": "Ticket 4711"}


@pytest.fixture
async def worker(payouts: Payouts, control: Control) -> AsyncIterator[Shop]:
    async with shop(payouts.dsn, control) as running:
        yield running


def _post(client: httpx2.Client, path: str, body: object, key: str) -> httpx2.Response:
    return client.post(path, json=body, headers={"idempotency-key": key})


def _dispute(client: httpx2.Client, name: str, **fields: Any) -> httpx2.Response:
    return _post(client, f"/v1/settlements/{name}/dispute", {**WHY, **fields}, f"dispute-{name}")


def _resolve(client: httpx2.Client, name: str, resolution: str, *, key: str = "", **fields: Any) -> httpx2.Response:
    body = {"resolution": resolution, "reason": "Looked.", "evidence": "The dashboard.", **fields}
    return _post(client, f"/v1/settlements/{name}/resolve", body, key or f"{resolution}-{name}")


def _in_transit(client: httpx2.Client) -> int:
    return int(client.get("/v1/accounts/settlement:in_transit:EUR:simulator").json()["balance_micros"])


async def test_a_dispute_puts_the_money_back_in_transit_and_confirming_ends_it(
    payer: httpx2.Client, squad: str, worker: Shop, payouts: Payouts
) -> None:
    name = created(payer, squad)
    assert told(_dispute(payer, name)) == (409, "not_disputable")
    await worker.tick()
    before = _in_transit(payer)
    doubt = _dispute(payer, name)
    assert doubt.status_code == 200
    assert (doubt.json()["settlement"]["status"], doubt.json()["settlement"]["reason"]) == ("disputed", WHY["reason"])
    assert doubt.json()["approval"] is None
    assert _in_transit(payer) == before + 12_340_000
    assert told(_post(payer, f"/v1/settlements/{name}/dispute", WHY, f"again-{name}")) == (409, "not_disputable")
    confirmed = _resolve(payer, name, "confirm")
    assert (confirmed.status_code, confirmed.json()["settlement"]["status"]) == (200, "transferred")
    assert _in_transit(payer) == before
    replay = _dispute(payer, name)
    assert (replay.status_code, replay.content) == (200, doubt.content)
    assert replay.headers["idempotent-replayed"] == "true"
    assert status_of(payer, name) == "transferred"
    events = payer.get(f"/v1/settlements/{name}").json()["events"]
    person = payouts.site.author()
    told_of = [(event["what"], event["by"]) for event in events]
    assert told_of == [("disputed", person), ("resolved_confirm", person)]
    assert (events[0]["body"]["reason"], events[0]["body"]["evidence"]) == (WHY["reason"], WHY["evidence"])


async def test_a_key_used_for_another_decision_names_the_fields(payer: httpx2.Client, squad: str, worker: Shop) -> None:
    name = created(payer, squad)
    await worker.tick()
    assert _dispute(payer, name).status_code == 200
    other = _dispute(payer, name, reason="Something else.")
    assert told(other) == (422, "key_reused")
    assert other.json()["fields"] == ["reason"]


async def test_a_write_off_makes_the_money_payable_again(payer: httpx2.Client, squad: str, worker: Shop) -> None:
    name = created(payer, squad)
    assert told(_resolve(payer, name, "write_off")) == (409, "not_resolvable")
    await worker.tick()
    _dispute(payer, name)
    payable = f"/v1/accounts/settlement:payable:EUR:{squad}"
    assert payer.get(payable).json()["balance_micros"] == 0
    # It was made under its key: asking again could only find that.
    assert told(_resolve(payer, name, "retry")) == (409, "not_retryable")
    written = _resolve(payer, name, "write_off")
    assert (written.json()["settlement"]["status"], written.json()["settlement"]["reason"]) == ("failed", "written_off")
    assert payer.get(payable).json()["balance_micros"] == 12_340_000


async def test_confirming_what_no_id_is_known_of_needs_one(payer: httpx2.Client, squad: str, worker: Shop) -> None:
    name = created(payer, squad, destination="acct_closed")
    await worker.tick()
    assert status_of(payer, name) == "failed"
    _dispute(payer, name)
    assert told(_resolve(payer, name, "confirm")) == (400, "transfer_id_missing")
    confirmed = _resolve(payer, name, "confirm", transfer_id="tr_by_hand")
    assert confirmed.json()["settlement"]["transfer_id"] == "tr_by_hand"


async def test_another_generation_needs_a_second_person(
    payer: httpx2.Client, squad: str, worker: Shop, payouts: Payouts
) -> None:
    """Who asked cannot approve; the approver can, once; the next tick then sends under the new key."""
    name = created(payer, squad, destination="acct_closed")
    await worker.tick()
    first_key = payer.get(f"/v1/settlements/{name}").json()["idempotency_key"]
    with payouts.site.client(role="operator") as operator, payouts.site.client(role="approver") as approver:
        asked = _resolve(operator, name, "retry")
        assert (asked.status_code, asked.json()["settlement"]["status"]) == (200, "failed")
        approval = asked.json()["approval"]
        assert (approval["settlement"], approval["generation"], approval["decision"]) == (name, 1, None)
        assert approval["asked_by"] == payouts.site.author("operator")
        path = f"/v1/approvals/{approval['id']}"
        yes = {"decision": "approve", "reason": "The refusal is final."}
        assert told(_post(operator, path, yes, f"{squad}-0")) == (403, "forbidden")
        assert approval["id"] in [one["id"] for one in approver.get("/v1/approvals").json()["approvals"]]
        assert approver.get(path).json() == approval
        done = _post(approver, path, yes, f"{squad}-1")
        assert done.status_code == 200, done.text
        assert done.json()["approval"]["decision"] == "approved"
        assert (done.json()["settlement"]["status"], done.json()["settlement"]["generation"]) == ("pending", 1)
        again = _post(approver, path, yes, f"{squad}-1")
        assert (again.status_code, again.content) == (200, done.content)
        assert again.headers["idempotent-replayed"] == "true"
        assert told(_post(approver, path, yes, f"{squad}-2")) == (409, "already_decided")
        assert approval["id"] not in [one["id"] for one in approver.get("/v1/approvals").json()["approvals"]]
        assert approver.get(path).json()["decided_why"] == "The refusal is final."
    await worker.tick()
    detail = payer.get(f"/v1/settlements/{name}").json()
    assert [(attempt["generation"], attempt["answer"]) for attempt in detail["attempts"]] == [
        (0, "refused"),
        (1, "refused"),
    ]
    assert [attempt["idempotency_key"] for attempt in detail["attempts"]] == [first_key, detail["idempotency_key"]]
    assert first_key != detail["idempotency_key"]


async def test_an_admin_who_asked_cannot_approve_his_own(payer: httpx2.Client, squad: str, worker: Shop) -> None:
    name = created(payer, squad, destination="acct_closed")
    await worker.tick()
    approval = _resolve(payer, name, "retry").json()["approval"]["id"]
    own = _post(payer, f"/v1/approvals/{approval}", {"decision": "approve", "reason": "Me."}, f"{squad}-own")
    assert told(own) == (403, "second_person_needed")
    assert status_of(payer, name) == "failed"


async def _keyed(payouts: Payouts, worker: Shop, owner: str) -> httpx2.Client:
    """An admin's key of this owner."""
    key = tenants.new_key()
    await tenants.add_key(worker.database, worker.tenant, "admin", key, owner=owner)
    return httpx2.Client(
        base_url=f"http://127.0.0.1:{payouts.site.port}", headers={"authorization": f"Bearer {key}"}, timeout=60
    )


async def test_a_second_key_of_the_same_person_approves_nothing(
    payer: httpx2.Client, squad: str, worker: Shop, payouts: Payouts
) -> None:
    """Four eyes are two people's, however many keys each of them has."""
    name = created(payer, squad, destination="acct_closed")
    await worker.tick()
    yes = {"decision": "approve", "reason": "Me again."}
    with await _keyed(payouts, worker, "anna") as one, await _keyed(payouts, worker, "anna") as two:
        approval = _resolve(one, name, "retry").json()["approval"]
        own = _post(two, f"/v1/approvals/{approval['id']}", yes, f"{squad}-own")
        assert told(own) == (403, "second_person_needed")
        assert one.get(f"/v1/approvals/{approval['id']}").json()["decision"] is None
    with await _keyed(payouts, worker, "bert") as another:
        done = _post(another, f"/v1/approvals/{approval['id']}", yes, f"{squad}-other")
        assert (done.status_code, done.json()["approval"]["decision"]) == (200, "approved")


@pytest.mark.parametrize("nobody", ["unknown", "bootstrap"])
async def test_a_key_without_a_person_approves_nothing(
    payer: httpx2.Client, squad: str, worker: Shop, payouts: Payouts, nobody: str
) -> None:
    """Whoever holds it may be the one who asked; and who asked with one may be anybody. Both can still reject."""
    name = created(payer, squad, destination="acct_closed")
    await worker.tick()
    yes, no = ({"decision": decision, "reason": "Looked."} for decision in ("approve", "reject"))
    with await _keyed(payouts, worker, "anna") as anna, await _keyed(payouts, worker, nobody) as unnamed:
        approval = _resolve(anna, name, "retry").json()["approval"]["id"]
        refused = _post(unnamed, f"/v1/approvals/{approval}", yes, f"{squad}-1")
        assert told(refused) == (403, "second_person_needed")
        assert "tally keys create --for NAME" in refused.json()["remedy"]
        assert _post(unnamed, f"/v1/approvals/{approval}", no, f"{squad}-2").status_code == 200
        approval = _resolve(unnamed, name, "retry", key=f"again-{name}").json()["approval"]["id"]
        assert told(_post(anna, f"/v1/approvals/{approval}", yes, f"{squad}-3")) == (403, "second_person_needed")


async def test_a_key_that_asked_before_keys_had_names_is_its_owners(
    payer: httpx2.Client, squad: str, worker: Shop, payouts: Payouts
) -> None:
    """The release before knew who asked by the key alone: its owner cannot approve, with this key or another."""
    name = created(payer, squad, destination="acct_closed")
    await worker.tick()
    with await _keyed(payouts, worker, "anna") as anna:
        approval = _resolve(anna, name, "retry").json()["approval"]
        connection = await asyncpg.connect(superuser(payouts.dsn))
        try:
            async with connection.transaction():
                await connection.execute("SET LOCAL session_replication_role = replica")
                await connection.execute(
                    "UPDATE tally.approval SET asked_by = split_part(asked_by, '/', 2) WHERE id = $1::uuid",
                    approval["id"].removeprefix("ap_"),
                )
        finally:
            await connection.close()
        assert anna.get(f"/v1/approvals/{approval['id']}").json()["asked_by"].startswith("tsk_")
        yes = {"decision": "approve", "reason": "Me."}
        own = _post(anna, f"/v1/approvals/{approval['id']}", yes, f"{squad}-own")
        assert told(own) == (403, "second_person_needed")


async def test_the_database_holds_that_a_second_person_is_another(
    payer: httpx2.Client, squad: str, worker: Shop, payouts: Payouts
) -> None:
    name = created(payer, squad, destination="acct_closed")
    await worker.tick()
    approval = _resolve(payer, name, "retry").json()["approval"]
    with pytest.raises(asyncpg.CheckViolationError, match="second_person"):
        async with worker.database.owning() as connection:
            await connection.execute(
                "UPDATE tally.approval SET decision = 'approved', decided_at = now(), "
                "decided_by = split_part(asked_by, '/', 1) || '/another key' WHERE id = $1::uuid",
                approval["id"].removeprefix("ap_"),
            )


async def test_a_rejected_generation_leaves_it_failed(
    payer: httpx2.Client, squad: str, worker: Shop, payouts: Payouts
) -> None:
    name = created(payer, squad, destination="acct_closed")
    await worker.tick()
    approval = _resolve(payer, name, "retry").json()["approval"]["id"]
    with payouts.site.client(role="approver") as approver:
        no = _post(approver, f"/v1/approvals/{approval}", {"decision": "reject", "reason": "Closed."}, f"{squad}-no")
    assert (no.json()["approval"]["decision"], no.json()["settlement"]["status"]) == ("rejected", "failed")
    assert status_of(payer, name) == "failed"


async def test_approvals_of_one_tenant_are_nobody_elses(
    payer: httpx2.Client, squad: str, worker: Shop, payouts: Payouts
) -> None:
    name = created(payer, squad, destination="acct_closed")
    await worker.tick()
    approval = _resolve(payer, name, "retry").json()["approval"]["id"]
    with payouts.site.client("other") as stranger:
        assert stranger.get("/v1/approvals").json() == {"approvals": [], "more": False}
        assert told(stranger.get(f"/v1/approvals/{approval}")) == (404, "approval_unknown")
        yes = {"decision": "approve", "reason": "Mine."}
        assert told(_post(stranger, f"/v1/approvals/{approval}", yes, f"{squad}-s")) == (404, "approval_unknown")
    assert payer.get(f"/v1/approvals/{approval}").json()["decision"] is None


async def test_a_short_list_of_approvals_says_that_there_are_more(
    payer: httpx2.Client, squad: str, worker: Shop
) -> None:
    names = [created(payer, squad, f"a-{number}", destination="acct_closed") for number in range(2)]
    await worker.tick()
    for name in names:
        assert _resolve(payer, name, "retry").status_code == 200
    whole = payer.get("/v1/approvals").json()
    assert set(names) <= {one["settlement"] for one in whole["approvals"]}
    first = payer.get("/v1/approvals?limit=1").json()
    assert (first["approvals"], first["more"]) == (whole["approvals"][:1], True)


BAD_DECISIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "dispute without a reason": ("dispute", {"evidence": "e"}, "field_invalid"),
    "dispute for no reason": ("dispute", {"reason": "  ", "evidence": "e"}, "reason_missing"),
    "dispute without evidence": ("dispute", {"reason": "r"}, "field_invalid"),
    "NUL in a reason": ("dispute", {"reason": "a\0b", "evidence": "e"}, "reason_invalid"),
    "an endless reason": ("dispute", {"reason": "r" * 4_001, "evidence": "e"}, "reason_invalid"),
    "endless evidence": ("dispute", {"reason": "r", "evidence": "e" * 4_001}, "evidence_invalid"),
    "a field of the caller's": ("dispute", {"reason": "r", "evidence": "e", "by": "boss"}, "field_invalid"),
    "resolved without evidence": (
        "resolve",
        {"resolution": "confirm", "reason": "r", "evidence": " "},
        "evidence_missing",
    ),
    "resolved somehow": ("resolve", {"resolution": "pay", "reason": "r", "evidence": "e"}, "field_invalid"),
    "resolved with a number": ("resolve", {"resolution": 1, "reason": "r", "evidence": "e"}, "field_invalid"),
    "NUL in a transfer id": (
        "resolve",
        {"resolution": "confirm", "reason": "r", "evidence": "e", "transfer_id": "tr_\0"},
        "field_invalid",
    ),
    "an endless transfer id": (
        "resolve",
        {"resolution": "confirm", "reason": "r", "evidence": "e", "transfer_id": "t" * 201},
        "field_invalid",
    ),
}


@pytest.mark.parametrize("name", BAD_DECISIONS)
def test_a_decision_without_its_reasons_is_refused(payer: httpx2.Client, squad: str, name: str) -> None:
    action, body, code = BAD_DECISIONS[name]
    settlement = created(payer, squad)
    answer = _post(payer, f"/v1/settlements/{settlement}/{action}", body, f"{squad}-bad")
    assert told(answer) == (400, code)
    assert status_of(payer, settlement) == "pending"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"decision": "maybe", "reason": "r"}, "field_invalid"),
        ({"decision": "approve"}, "field_invalid"),
        ({"decision": "approve", "reason": ""}, "reason_missing"),
        ({"decision": "approve", "reason": "\0"}, "reason_invalid"),
    ],
)
def test_an_approval_without_its_reason_is_refused(
    payer: httpx2.Client, squad: str, body: dict[str, Any], code: str
) -> None:
    assert told(_post(payer, f"/v1/approvals/ap_{'0' * 32}", body, f"{squad}-bad")) == (400, code)


@pytest.mark.parametrize("name", ["ap_", "ap_" + "0" * 32, "AP_" + "0" * 32, "st_" + "0" * 32, "nonsense", "%00"])
def test_an_unknown_approval_is_not_found(payer: httpx2.Client, name: str) -> None:
    assert told(payer.get(f"/v1/approvals/{name}")) == (404, "approval_unknown")
