"""Who may pay how much to whom: a tenant's policy, held in the commit that promises a payout."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx2
import pytest

from tallystick.access import store as tenants
from tallystick.ledger.outcome import Rejected
from tallystick.settlement import store as settlement
from tallystick.settlement.store import Made
from tests import servers
from tests.http import site as sites
from tests.http.payouts import create, created, status_of, told, wish
from tests.ledgers import broken
from tests.providers.worlds import Control
from tests.settlements import Shop, shop

_numbers = itertools.count(1)
YES, NO = ({"decision": decision, "reason": "Looked."} for decision in ("approve", "reject"))


@dataclass(frozen=True)
class Office:
    """A site and a worker on one database of this test's own; every role is another person."""

    site: sites.Site
    worker: Shop
    dsn: str
    admin: httpx2.Client
    operator: httpx2.Client
    approver: httpx2.Client

    def bound(self, **policy: Any) -> None:
        done = self.admin.put("/v1/authority-policy", json=policy)
        assert done.status_code == 200, done.text

    def decide(self, client: httpx2.Client, approval: str, decision: object) -> httpx2.Response:
        key = f"decide-{next(_numbers)}"
        return client.post(f"/v1/approvals/{approval}", json=decision, headers={"idempotency-key": key})

    async def keyed(self, owner: str, role: str = "admin") -> httpx2.Client:
        key = tenants.new_key()
        await tenants.add_key(self.worker.database, self.worker.tenant, role, key, owner=owner)
        return httpx2.Client(
            base_url=f"http://127.0.0.1:{self.site.port}", headers={"authorization": f"Bearer {key}"}, timeout=60
        )


@pytest.fixture(scope="module")
def place(embedded18: servers.Server) -> Iterator[tuple[sites.Site, str]]:
    dsn = embedded18.fresh_database()
    with sites.running(dsn) as running:
        yield running, dsn


@pytest.fixture
async def office(place: tuple[sites.Site, str], control: Control) -> AsyncIterator[Office]:
    site, dsn = place
    async with shop(dsn, control) as worker:
        with (
            site.client() as admin,
            site.client(role="operator") as operator,
            site.client(role="approver") as approver,
        ):
            opened = Office(site, worker, dsn, admin, operator, approver)
            # The day's count stays; each test begins with a currency of its own, or far below what it bounds.
            yield opened
            opened.bound()
    assert await broken(dsn) == {}


# The same settlement once more under another attribution, with everything that the database computes.
BY_HAND = """
WITH template AS (
    SELECT t.name, jsonb_populate_record(null::tally.settlement, to_jsonb(s) || '{"attribution_id": "by hand"}') AS s
      FROM tally.settlement s JOIN tally.tenant t USING (tenant_id) WHERE s.id = $1::uuid
), made AS (
    INSERT INTO tally.settlement (tenant_id, id, attribution_id, squad_id, currency, gross_micros, fee_micros,
                                  net_micros, amount_micros, provider, destination, key, created_at)
    SELECT (s).tenant_id, tally.settlement_id(name, s), (s).attribution_id, (s).squad_id, (s).currency,
           (s).gross_micros, (s).fee_micros, (s).net_micros, (s).amount_micros, (s).provider, (s).destination,
           tally.settlement_key(name, s), now()
      FROM template
    RETURNING tenant_id, number, provider
)
INSERT INTO tally.settlement_state (tenant_id, number, provider, changed_at)
SELECT tenant_id, number, provider, now() FROM made
"""


def _eur(**bounds: int) -> dict[str, Any]:
    return {"ceilings": [{"currency": "EUR", **bounds}]}


async def _used(office: Office) -> int:
    async with office.worker.database.owning() as connection:
        used = await connection.fetchval(
            "SELECT coalesce(sum(gross_micros), 0)::bigint FROM tally.settlement "
            "WHERE tenant_id = $1 AND currency = 'EUR'",
            office.worker.tenant.number,
        )
    return int(used)


def test_without_a_policy_nothing_is_bounded(office: Office, squad: str) -> None:
    policy = office.operator.get("/v1/authority-policy").json()
    assert (policy["known_destinations"], policy["ceilings"]) == (False, [])
    assert create(office.operator, squad, gross_micros=10**12).status_code == 201


def test_a_policy_is_an_administrators(office: Office) -> None:
    for client in (office.operator, office.approver):
        assert told(client.put("/v1/authority-policy", json={})) == (403, "forbidden")
    office.bound(known_destinations=False, waiting_seconds=5, **_eur(payout_micros=7, second_person_micros=0))
    shown = office.approver.get("/v1/authority-policy").json()
    assert (shown["waiting_seconds"], shown["changed_by"]) == (5, office.site.author())
    assert shown["ceilings"] == [{"currency": "EUR", "payout_micros": 7, "day_micros": None, "second_person_micros": 0}]


@pytest.mark.parametrize(
    "policy",
    [
        {"waiting_seconds": -1},
        {"ceilings": [{"currency": "EUR", "payout_micros": 0}]},
        {"ceilings": [{"currency": "EUR", "day_micros": -1}]},
        {"ceilings": [{"currency": "EUR"}, {"currency": "EUR"}]},
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_kept_is_refused(office: Office, policy: dict[str, Any]) -> None:
    assert told(office.admin.put("/v1/authority-policy", json=policy)) == (400, "authority_invalid")


def test_a_payout_above_the_ceiling_is_refused_and_leaves_its_key_unused(office: Office, squad: str) -> None:
    office.bound(**_eur(payout_micros=12_000_000))
    refused = create(office.operator, squad, gross_micros=12_000_001)
    assert told(refused) == (403, "payout_above_ceiling")
    assert "12.00 EUR" in refused.json()["detail"]
    assert "Nothing was created" in refused.json()["detail"]
    assert create(office.operator, squad, gross_micros=12_000_000).status_code == 201


def test_a_currency_without_a_line_is_not_paid(office: Office, squad: str) -> None:
    office.bound(**_eur(payout_micros=12_000_000))
    assert told(create(office.operator, squad, currency="USD")) == (403, "currency_not_permitted")


async def test_a_day_has_its_ceiling_over_one_by_one_and_batches(office: Office, squad: str) -> None:
    office.bound(**_eur(day_micros=await _used(office) + 30_000_000))
    assert create(office.operator, squad, "a", gross_micros=10_000_000).status_code == 201
    batch = [
        {**wish(squad, f"b-{number}", gross_micros=10_000_000), "idempotency_key": f"{squad}-b-{number}"}
        for number in range(4)
    ]
    outcomes = office.operator.post("/v1/settlements/batch", json={"settlements": batch}).json()["outcomes"]
    assert sorted(one["status"] for one in outcomes) == ["created", "created", "rejected", "rejected"]
    assert {one["problem"]["code"] for one in outcomes if "problem" in one} == {"day_ceiling_reached"}
    refused = create(office.operator, squad, "c", gross_micros=10_000)
    assert told(refused) == (403, "day_ceiling_reached")
    assert "tomorrow" in refused.json()["remedy"]
    # A line that is taken away and put back on the same day goes on from where it was.
    office.bound()
    office.bound(**_eur(day_micros=await _used(office)))
    assert told(create(office.operator, squad, "c", gross_micros=10_000)) == (403, "day_ceiling_reached")


async def test_two_processes_at_once_cannot_pass_a_days_ceiling(office: Office, control: Control, squad: str) -> None:
    """Each has room for its own: only together they are too much. They meet anew in every round."""
    async with shop(office.dsn, control) as other:
        for round_ in range(5):
            office.bound(**_eur(day_micros=await _used(office) + 10_000_000))
            answers = await asyncio.gather(
                *(
                    one.propose(
                        f"{name}-{round_}-{number}",
                        squad_id=squad,
                        gross_micros=1_000_000,
                        key=f"{squad}-{name}-{round_}-{number}",
                    )
                    for number in range(15)
                    for name, one in (("here", office.worker), ("there", other))
                )
            )
            made = [answer for answer in answers if isinstance(answer, Made)]
            codes = {answer.code for answer in answers if isinstance(answer, Rejected)}
            assert (len(made), codes) == (10, {"day_ceiling_reached"})


async def test_the_database_itself_refuses_what_is_beyond_the_policy(office: Office, squad: str) -> None:
    """Whoever writes past our code: the release before this one, or somebody at a prompt."""
    held = created(office.operator, squad)
    async with office.worker.database.owning() as connection:
        for policy in (
            _eur(payout_micros=1),
            _eur(day_micros=1),
            _eur(second_person_micros=1),
            {"ceilings": [{"currency": "USD"}]},
            {"known_destinations": True},
        ):
            office.bound(**policy)
            with pytest.raises(asyncpg.PostgresError) as refused:
                async with connection.transaction():
                    await connection.execute(BY_HAND, held.removeprefix("st_"))
            assert refused.value.sqlstate == "TS007", refused.value


def test_an_unknown_destination_is_refused_until_it_has_waited(office: Office, squad: str) -> None:
    office.bound(known_destinations=True)
    destination = f"acct_{squad.replace('-', '')}"
    assert told(create(office.operator, squad, destination=destination)) == (403, "destination_unknown")
    known = office.operator.put("/v1/destinations", json={"destination": destination})
    assert known.status_code == 200, known.text
    assert (known.json()["added_by"], known.json()["withdrawn_at"]) == (office.site.author("operator"), None)
    # Known twice is known since the first time.
    assert office.operator.put("/v1/destinations", json={"destination": destination}).json() == known.json()
    office.bound(known_destinations=True, waiting_seconds=3600)
    waiting = create(office.operator, squad, destination=destination)
    assert told(waiting) == (403, "destination_waiting")
    assert "UTC on" in waiting.json()["detail"]
    office.bound(known_destinations=True, waiting_seconds=0)
    assert create(office.operator, squad, destination=destination).status_code == 201
    gone = office.operator.put("/v1/destinations", json={"destination": destination, "known": False}).json()
    assert gone["withdrawn_at"] is not None
    assert told(create(office.operator, squad, "a-2", destination=destination)) == (403, "destination_unknown")
    listed = office.approver.get("/v1/destinations", params={"limit": 1}).json()["destinations"]
    assert listed == [gone]
    with office.site.client("other") as stranger:
        assert stranger.get("/v1/destinations").json()["destinations"] == []


async def test_a_payout_above_the_threshold_is_held_until_another_person_agrees(office: Office, squad: str) -> None:
    office.bound(**_eur(second_person_micros=10_000_000))
    small = created(office.operator, squad, "small", gross_micros=10_000_000)
    made = create(office.operator, squad, "large", gross_micros=10_000_001)
    assert (made.status_code, made.json()["status"]) == (201, "held")
    large, approval = made.json()["id"], made.json()["approval"]
    await office.worker.tick()
    await office.worker.tick()
    assert (status_of(office.admin, small), status_of(office.admin, large)) == ("transferred", "held")
    assert office.worker.moved(await _view(office, large)) == []
    waiting = office.approver.get("/v1/approvals").json()["approvals"]
    assert [(one["action"], one["settlement"]) for one in waiting if one["id"] == approval] == [("payout", large)]
    held = office.approver.get("/v1/settlements", params={"status": "held", "squad_id": squad}).json()["settlements"]
    assert [one["id"] for one in held] == [large]
    assert told(office.decide(office.operator, approval, YES)) == (403, "forbidden")
    agreed = office.decide(office.approver, approval, YES)
    assert (agreed.status_code, agreed.json()["settlement"]["status"]) == (200, "pending")
    await office.worker.tick()
    assert status_of(office.admin, large) == "transferred"
    assert len(office.worker.moved(await _view(office, large))) == 1
    # What was answered is answered again, to the byte, whatever became of it.
    again = create(office.operator, squad, "large", gross_micros=10_000_001)
    assert (again.content, again.headers["idempotent-replayed"]) == (made.content, "true")


async def test_a_rejected_payout_has_failed_and_its_money_is_payable(office: Office, squad: str) -> None:
    office.bound(**_eur(second_person_micros=0))
    made = create(office.operator, squad).json()
    refused = office.decide(office.approver, made["approval"], NO)
    assert (refused.json()["settlement"]["status"], refused.json()["settlement"]["reason"]) == (
        "failed",
        "approval_rejected",
    )
    await office.worker.tick()
    assert office.worker.moved(await _view(office, made["id"])) == []
    payable = office.admin.get(f"/v1/accounts/settlement:payable:EUR:{squad}").json()
    assert payable["balance_micros"] == 12_340_000
    assert told(office.decide(office.approver, made["approval"], YES)) == (409, "already_decided")


async def test_what_a_second_person_rejected_is_not_paid_by_way_of_a_dispute(office: Office, squad: str) -> None:
    """Disputed and tried again it would be sent with one person's will."""
    office.bound(**_eur(second_person_micros=0))
    made = create(office.operator, squad).json()
    office.decide(office.approver, made["approval"], NO)
    where = f"/v1/settlements/{made['id']}"
    doubt = {"reason": "Was it paid?", "evidence": "None."}
    disputed = office.operator.post(f"{where}/dispute", json=doubt, headers={"idempotency-key": f"doubt-{squad}"})
    assert disputed.json()["settlement"]["status"] == "disputed", disputed.text
    retry = {**doubt, "resolution": "retry"}
    tried = office.operator.post(f"{where}/resolve", json=retry, headers={"idempotency-key": f"retry-{squad}"})
    assert told(tried) == (409, "not_retryable")
    await office.worker.tick()
    assert office.worker.moved(await _view(office, made["id"])) == []
    assert status_of(office.admin, made["id"]) == "disputed"
    async with office.worker.database.owning() as connection:
        with pytest.raises(asyncpg.PostgresError, match="nobody approved"):
            await connection.execute(
                "UPDATE tally.settlement_state st SET status = 'processing' FROM tally.settlement s "
                "WHERE s.tenant_id = st.tenant_id AND s.number = st.number AND s.id = $1::uuid",
                made["id"].removeprefix("st_"),
            )


async def test_whoever_asked_for_a_payout_cannot_approve_it_with_another_key(office: Office, squad: str) -> None:
    office.bound(**_eur(second_person_micros=0))
    with await office.keyed("anna", "operator") as asks, await office.keyed("anna", "approver") as again:
        approval = create(asks, squad).json()["approval"]
        assert told(office.decide(again, approval, YES)) == (403, "second_person_needed")
        assert status_of(office.admin, create(asks, squad).json()["id"]) == "held"


async def test_a_key_of_nobodys_promises_nothing_that_needs_a_second_person(office: Office, squad: str) -> None:
    office.bound(**_eur(second_person_micros=10_000_000))
    with await office.keyed("unknown", "operator") as unnamed:
        assert told(create(unnamed, squad)) == (403, "second_person_needed")
        assert create(unnamed, squad, gross_micros=10_000_000).status_code == 201


async def test_a_held_payout_is_not_released_without_an_approval(office: Office, squad: str) -> None:
    office.bound(**_eur(second_person_micros=0))
    large = created(office.operator, squad)
    async with office.worker.database.owning() as connection:
        for step in ("pending", "processing", "transferred"):
            with pytest.raises(asyncpg.PostgresError) as refused:
                await connection.execute(
                    "UPDATE tally.settlement_state st SET status = $2, transfer_id = 'tr_x' FROM tally.settlement s "
                    "WHERE s.tenant_id = st.tenant_id AND s.number = st.number AND s.id = $1::uuid",
                    large.removeprefix("st_"),
                    step,
                )
            assert refused.value.sqlstate == "TS004", refused.value


async def test_another_generation_is_within_the_policy_of_its_day(office: Office, squad: str) -> None:
    name = created(office.operator, squad, destination="acct_closed")
    await office.worker.tick()
    assert status_of(office.admin, name) == "failed"
    retry = {"resolution": "retry", "reason": "Again.", "evidence": "A letter."}
    asked = office.operator.post(
        f"/v1/settlements/{name}/resolve", json=retry, headers={"idempotency-key": f"retry-{squad}"}
    )
    approval = asked.json()["approval"]["id"]
    for policy, code in (
        (_eur(payout_micros=12_339_999), "payout_above_ceiling"),
        (_eur(day_micros=await _used(office) + 12_339_999), "day_ceiling_reached"),
        ({"known_destinations": True}, "destination_unknown"),
    ):
        office.bound(**policy)
        assert told(office.decide(office.approver, approval, YES)) == (403, code)
    used = await _used(office)
    office.bound(**_eur(day_micros=used + 12_340_000, second_person_micros=0))
    assert office.decide(office.approver, approval, YES).json()["settlement"]["generation"] == 1
    # It counts: there is no room for another.
    assert told(create(office.operator, squad, "next", gross_micros=10_000)) == (403, "day_ceiling_reached")


async def _view(office: Office, name: str) -> Any:
    return await settlement.read(office.worker.database, office.worker.tenant, name)
