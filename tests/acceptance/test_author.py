"""Who did it: after every kind of write, by every way in, the journal names somebody for each step."""

import asyncio
import getpass
import inspect
import re
import typing
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

import tallystick
from tallystick import app, library
from tallystick.access import store as tenants
from tallystick.audit import author
from tallystick.audit.author import acting, at_terminal
from tallystick.movement import steps
from tallystick.settlement.review import store as settlement_review
from tests.acceptance.storefront import Storefront, eventually, storefront
from tests.checkouts import CARD
from tests.cli.commands import tally
from tests.payments import new_key
from tests.providers.worlds import Control

PACKAGE = Path(tallystick.__file__).parent
PERSON = at_terminal(getpass.getuser())
DECLINED = "pm_card_chargeDeclined"
# Steps that take a lost answer, a wrong book or a payment that comes too late: each with the test that makes it.
ELSEWHERE = {
    "order.backordered": "tests/checkout/saga/test_flow.py::test_backorders_deliver_later_what_was_paid_late",
    "order.filled": "tests/checkout/saga/test_flow.py::test_backorders_deliver_later_what_was_paid_late",
    "settlement.came_back": (
        "tests/settlement/review/test_flow.py::test_a_payout_that_came_back_is_disputed_and_its_money_is_in_transit"
    ),
    "settlement.contradicted": "tests/settlement/review/test_flow.py::test_a_second_movement_for_one_payout_is_seen",
    "settlement.key_differs": "tests/recovery/test_flow.py::test_a_key_that_is_not_its_content_s_is_never_asked_with",
    "settlement.late_answer": "tests/settlement/tick/test_flow.py::test_a_late_answer_is_kept_as_evidence_and_believed",
    "settlement.missing_there": (
        "tests/reconciliation/test_flow.py::test_what_the_provider_lost_can_be_paid_again_by_two_people"
    ),
    "settlement.payout_approved": (
        "tests/http/test_authority.py::test_a_payout_above_the_threshold_is_held_until_another_person_agrees"
    ),
    "settlement.payout_rejected": (
        "tests/http/test_authority.py::test_a_rejected_payout_has_failed_and_its_money_is_payable"
    ),
}


@pytest.fixture
async def shop(dsn: str, control: Control) -> AsyncIterator[Storefront]:
    async with storefront(dsn, control) as opened:
        yield opened


async def _person(shop: Storefront, name: str, role: str = "admin") -> httpx2.AsyncClient:
    """Somebody with a key of his own."""
    owner = await tenants.ensure_tenant(shop.service.database, "default")
    key = tenants.new_key()
    with acting(at_terminal("tests")):
        await tenants.add_key(shop.service.database, owner, role, key, owner=name)
    return httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{shop.port}", timeout=60, headers={"authorization": f"Bearer {key}"}
    )


async def _authors(shop: Storefront) -> dict[str, set[str]]:
    """Everybody whom the journal names, by what was done; a key's prefix is left out."""
    async with shop.service.database.owning() as connection:
        rows = await connection.fetch("SELECT DISTINCT subject, author FROM tally.journal")
    found: dict[str, set[str]] = {}
    for subject, name in rows:
        who, _, by = name.rpartition("/")
        found.setdefault(subject, set()).add(f"{who}/key" if by.startswith("tsk_") else name)
    return found


async def _money(client: httpx2.AsyncClient, *accounts: str) -> None:
    for name, floor in (*((account, 0) for account in accounts), ("outside", None)):
        answer = await client.put(f"/v1/accounts/{name}", json={"currency": "EUR", "floor_micros": floor})
        assert answer.status_code in {200, 201}, answer.text
    for account in accounts:
        wish = {"kind": "topup", "account": account, "source": "outside", "amount_micros": 10**12, "currency": "EUR"}
        answer = await client.post("/v1/operations", json=wish, headers={"idempotency-key": f"fund-{account}"})
        assert answer.status_code == 201, answer.text


def _transfer(debit: str, credit: str) -> dict[str, object]:
    return {"kind": "transfer", "debit": debit, "credit": credit, "amount_micros": 1_000_000, "currency": "EUR"}


async def test_no_step_of_the_journal_lacks_an_author(shop: Storefront) -> None:
    await _checkout(shop)
    await _payouts(shop)
    await _library(shop)
    await asyncio.to_thread(_commands, shop)
    found = await _authors(shop)
    workers = f"worker/{app.worker_name()}"

    assert not [(what, name) for what, names in found.items() for name in names if name.startswith("unknown")]
    async with shop.service.database.owning() as connection:
        possible = await _subjects(connection)
    assert (set(found) - possible, possible - set(found)) == (set(), set(ELSEWHERE))
    assert found["charge.failed"] == {"provider/simulator"}
    assert found["refund.failed"] == {"provider/simulator"}
    assert found["order.cancelled_by_sweeper"] <= {workers, PERSON}
    assert found["approval.asked"] == {"shop default/key"}
    assert found["approval.approved"] == found["approval.rejected"] == {"bert/key"}
    assert found["settlement.generation_approved"] == found["settlement.generation_rejected"] == {"bert/key"}
    assert found["settlement.resolved_confirm"] == {"shop default/key"}
    assert found["authority.policy"] == found["authority.destination"] == {"shop default/key"}
    assert found["retention.policy"] == {PERSON}
    assert found["charge.pending"] == {"shop default/key"}
    assert found["charge.completed"] == {"provider/simulator"}
    assert found["attempt.sent"] >= {"shop default/key", workers}
    assert found["attempt.answered"] == {"provider/simulator"}
    assert found["refund.pending"] == {"shop default/key"}
    assert found["order.paid"] == {"provider/simulator"}
    assert found["order.cancelled"] == {"shop default/key"}
    assert found["sku.stock"] == {"shop default/key"}
    assert found["settlement.policy"] == {"shop default/key", PERSON}
    assert found["checkout.policy"] == {"shop default/key", PERSON}
    assert found["settlement.disputed"] == {"shop default/key"}
    assert found["key.created"] == {"tests/terminal", PERSON}
    assert found["key.revoked"] == {PERSON}
    assert found["account"] >= {"shop default/key", "billing/library", "provider/simulator"}
    assert found["operation"] >= {"shop default/key", "billing/library", workers, "provider/simulator"}
    await shop.books_match()


async def test_who_asks_a_second_person_about_a_payout_is_named(shop: Storefront) -> None:
    await _held_payouts(shop)
    found = await _authors(shop)
    assert found["approval.approved"] == found["approval.rejected"] == {"bert/key"}
    assert found["settlement.payout_approved"] == found["settlement.payout_rejected"] == {"bert/key"}
    assert found["approval.asked"] == {"shop default/key"}


def test_what_is_exercised_elsewhere_is_there() -> None:
    for place in ELSEWHERE.values():
        file, name = place.split("::")
        assert re.search(rf"^(async )?def {name}\(", Path(file).read_text(encoding="utf-8"), re.MULTILINE), place


# How functions and statements write the journal. Each subject is a literal, or one of COMPOSED.
WRITES = (
    r"journal_step\(\w+\.tenant_id, (.+?),\s*convert_to\(",
    r"INTO tally\.journal \([^)]*\)\s*SELECT (?:\w+\.)?tenant_id, ([^,]+),",
    r"INTO tally\.journal \([^)]*\) VALUES \(\$1, ([^,]+),",
)
TERM = r"(?:'[\w.]+'|lower\([\w.]+\)|\w+)"
# A function of that name only passes on what it was given.
PASSES_ON = "journal_step"


async def _subjects(connection: Any) -> set[str]:
    """Every subject that the installed functions and the statements of the store can write."""
    sources = {
        row["proname"]: row["prosrc"]
        for row in await connection.fetch(
            "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'tally'::regnamespace"
            " AND prosrc ~ 'journal_step\\(|INTO tally\\.journal ' AND proname <> $1",
            PASSES_ON,
        )
    }
    texts = {
        str(file.relative_to(PACKAGE)): file.read_text(encoding="utf-8")
        for file in PACKAGE.rglob("*.sql")
        if not {"migrations", "mysql", "bench", "probes", "simulator"} & set(file.relative_to(PACKAGE).parts)
    }
    sources |= {name: text for name, text in texts.items() if re.search(r"journal_step\(|INTO tally\.journal ", text)}
    composed = await _composed(connection)
    found: set[str] = set()
    for name, text in sources.items():
        written = [subject.strip() for pattern in WRITES for subject in re.findall(pattern, text, re.DOTALL)]
        assert written, f"{name} writes the journal in a way that this test cannot read"
        if any(re.fullmatch(r"(\w\.)?subject", subject) for subject in written):
            written = re.findall(rf"({TERM}(?: \|\| {TERM})*) AS subject", text)
            assert written, f"{name} makes up a subject in a way that this test cannot read"
        for subject in written:
            literal = re.fullmatch(r"'([a-z_.]+)'", subject)
            found |= {literal[1]} if literal else composed[" ".join(subject.split())]
    return found


async def _composed(connection: Any) -> dict[str, set[str]]:
    """What expressions stand for: the words that the tables allow, or those that our own code writes."""
    kinds = await _allowed(connection, "payment_idempotency_log", "operation_type")
    ends = await _allowed(connection, "payment_idempotency_log", "status")
    orders = await _allowed(connection, "orders", "status") - {"pending"}
    decisions = await _allowed(connection, "approval", "decision")
    given = await connection.fetch(
        "SELECT encode(tgargs, 'escape') AS name FROM pg_trigger"
        " WHERE tgfoid = 'tally.authority_journaled()'::regprocedure"
    )
    return {
        "TG_ARGV[0]": {row["name"].removesuffix("\\000") for row in given},
        "CASE WHEN f.revoked_at IS NULL THEN 'key.created' ELSE 'key.revoked' END": {"key.created", "key.revoked"},
        "'approval.' || coalesce(f.decision, 'asked')": {f"approval.{word}" for word in {*decisions, "asked"}},
        "'order.' || name": {f"order.{word}" for word in {*orders, "filled", "backordered"}},
        "'settlement.' || f.what": {f"settlement.{word}" for word in _events_of_settlements(decisions)},
        "lower(l.operation_type) || '.pending'": {f"{kind}.pending" for kind in kinds},
        "lower(l.operation_type) || '.' || lower(l.status)": {f"{kind}.{end}" for kind in kinds for end in ends},
    }


async def _allowed(connection: Any, table: str, column: str) -> set[str]:
    """The words that a column's check lists, in small letters."""
    (check,) = [
        row["def"]
        for row in await connection.fetch(
            "SELECT pg_get_constraintdef(oid) AS def FROM pg_constraint"
            " WHERE contype = 'c' AND conrelid = $1::regclass",
            f"tally.{table}",
        )
        if re.match(rf"CHECK \(\({column} = ANY ", row["def"])
    ]
    return {word.lower() for word in re.findall(r"'(\w+)'::text", check)}


def _events_of_settlements(decisions: set[str]) -> set[str]:
    """The table takes any word: these are the words that our code gives it."""
    templates = {
        "resolved_{resolution}": {f"resolved_{word}" for word in typing.get_args(settlement_review.Resolution)},
        "{what}_{given['decision']}": {f"{what}_{word}" for what in ("generation", "payout") for word in decisions},
    }
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(PACKAGE.rglob("*.py")))
    found = set(re.findall(r'Evidence\(\s*what="(\w+)"', text))
    found |= set(re.findall(r'_note\(connection, row, "(\w+)"', text))
    found |= {getattr(steps, name) for name in re.findall(r"Evidence\(what=([A-Z_]+)", text)}
    for template in re.findall(r'_note\(connection, row, f"([^"]+)"', text):
        found |= templates[template]
    return found


async def _checkout(shop: Storefront) -> None:
    await shop.stock(4)
    bought, cancelled = await shop.reserve("bought"), await shop.reserve("cancelled")
    late = await shop.reserve("late")
    assert (await shop.click(bought, payment_method=DECLINED)).status_code == 402
    await shop.pay(bought)
    await shop.becomes(bought, "PAID")
    assert (await shop.client.post(f"/v1/orders/{cancelled['id']}/cancel")).status_code == 200
    part = {"amount_micros": 10_000_000, "reason": "a scratch"}
    given = await shop.client.post(
        f"/v1/orders/{bought['id']}/refund", json=part, headers={"idempotency-key": "scratch"}
    )
    assert given.status_code in {201, 202}, given.text
    await shop.quiet()
    await shop.plan("stripe.refund:refused(charge_disputed)")
    given = await shop.client.post(
        f"/v1/orders/{bought['id']}/refund", json=part, headers={"idempotency-key": "another-scratch"}
    )
    assert (given.status_code, given.json()["code"]) == (402, "refund_refused"), given.text
    await shop.behave()
    answer = await shop.client.put("/v1/checkout-policy", json={"other_amount": "review"})
    assert answer.status_code == 200, answer.text
    await shop.later(late, minutes=11)
    await shop.becomes(late, "CANCELLED_BY_SWEEPER")
    await shop.quiet()


async def _payouts(shop: Storefront) -> None:
    await _money(shop.client, "settlement:clearing:EUR")
    fee = {"percent_ppm": 20_000}
    assert (await shop.client.put("/v1/settlement-policies/EUR", json=fee)).status_code == 200
    paid, unpaid = await _payout(shop, "a"), [await _payout(shop, name, "acct_closed") for name in ("b", "c", "d")]
    await _stands(shop, paid, "transferred")
    for name in unpaid:
        await _stands(shop, name, "failed")
    for name, resolution in ((paid, "confirm"), (paid, "write_off"), (unpaid[0], "retry")):
        await _post(shop.client, f"/v1/settlements/{name}/dispute", **DOUBT)
        await _post(shop.client, f"/v1/settlements/{name}/resolve", resolution=resolution, **DOUBT)
    bert = await _person(shop, "bert", role="approver")
    for name, decision in ((unpaid[1], "approve"), (unpaid[2], "reject")):
        asked = await _post(shop.client, f"/v1/settlements/{name}/resolve", resolution="retry", **DOUBT)
        await _post(bert, f"/v1/approvals/{asked['approval']['id']}", decision=decision, reason="Looked.")
    await bert.aclose()
    await _put(shop.client, "/v1/destinations", destination="acct_good")
    await _put(shop.client, "/v1/authority-policy", ceilings=[{"currency": "EUR", "payout_micros": 5_000_000}])
    for name in unpaid[:2]:
        await _stands(shop, name, "failed")


async def _held_payouts(shop: Storefront) -> None:
    """One that the second person approves, and one that he rejects."""
    await _money(shop.client, "settlement:clearing:EUR")
    await _put(shop.client, "/v1/authority-policy", ceilings=[{"currency": "EUR", "second_person_micros": 0}])
    held = [await _payout(shop, name) for name in ("a", "b")]
    waiting = (await shop.client.get("/v1/approvals")).json()["approvals"]
    bert = await _person(shop, "bert", role="approver")
    for name, decision in zip(held, ("approve", "reject"), strict=True):
        (asked,) = [one for one in waiting if one["settlement"] == name]
        await _post(bert, f"/v1/approvals/{asked['id']}", decision=decision, reason="Looked.")
    await bert.aclose()
    for name, status in zip(held, ("transferred", "failed"), strict=True):
        await _stands(shop, name, status)


DOUBT = {"reason": "the seller says no", "evidence": "a letter"}


async def _post(client: httpx2.AsyncClient, path: str, **body: str) -> dict[str, Any]:
    """Under a key of its own."""
    answer = await client.post(path, json=body, headers={"idempotency-key": new_key()})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def _put(client: httpx2.AsyncClient, path: str, **body: object) -> None:
    answer = await client.put(path, json=body)
    assert answer.status_code == 200, answer.text


async def _payout(shop: Storefront, attribution: str, destination: str = "acct_good") -> str:
    wish = {"attribution_id": attribution, "squad_id": "s", "gross_micros": 5_000_000, "currency": "EUR"}
    answer = await shop.client.post(
        "/v1/settlements",
        json={**wish, "destination": destination},
        headers={"idempotency-key": f"payout-{attribution}"},
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def _stands(shop: Storefront, name: str, status: str) -> None:
    async def is_so() -> bool:
        return bool((await shop.client.get(f"/v1/settlements/{name}")).json()["status"] == status)

    await eventually(is_so, f"{name} is {status}")


async def _library(shop: Storefront) -> None:
    async with tallystick.open(database_url=shop.dsn, service="billing") as ledger:
        for name in ("amber", "birch"):
            assert not isinstance(await ledger.put_account(name, currency="EUR"), tallystick.Rejected)
        topup = tallystick.TopUp(account="amber", source="outside", amount_micros=9_000_000, currency="EUR")
        done = await ledger.submit(topup, idempotency_key="library")
        assert isinstance(done, tallystick.Committed)
        assert done.transaction.author == "billing/library"
        connection = await asyncpg.connect(shop.dsn)
        try:
            async with connection.transaction():
                move = tallystick.Transfer(debit="amber", credit="birch", amount_micros=1, currency="EUR")
                own = await ledger.submit(move, idempotency_key="own", connection=connection)
                assert isinstance(own, tallystick.Committed)
        finally:
            await connection.close()


def _commands(shop: Storefront) -> None:
    def run(*arguments: str) -> str:
        done = tally(*arguments, dsn=shop.dsn, TALLY_SIMULATOR_PORT=shop.control.url.rsplit(":", 1)[1])
        assert done.returncode == 0, done.stderr
        return done.stdout

    key = run("keys", "create", "--for", "anna", "--role", "approver").strip()
    assert "anna" in run("keys", "list")
    run("keys", "revoke", key[:12])
    run("policy", "set", "--currency", "USD", "--percent", "1")
    run("policy", "checkout", "--late", "refund")
    run("policy", "retention", "--evidence", "30")
    run("settle")
    run("sweep")


async def test_each_of_a_batch_is_its_own_callers(shop: Storefront) -> None:
    """Callers of one moment are committed together; each is named for what he asked, and for nothing else."""
    await _money(shop.client, "amber", "birch")
    people = {name: await _person(shop, name) for name in ("anna", "bert", "carl")}
    await shop.stock(60)

    async def ask(name: str, number: int) -> None:
        client = people[name]
        headers = {"idempotency-key": f"{name}-{number}"}
        moved = await client.post("/v1/operations", json=_transfer("amber", "birch"), headers=headers)
        assert moved.json()["author"].startswith(f"{name}/tsk_"), moved.text
        wish = {"sku": "phone", "quantity": 1, "amount_micros": 2_000_000, "currency": "EUR"}
        headers = {"idempotency-key": f"order-of-{name}-{number}"}
        order = (await client.post("/v1/orders", json=wish, headers=headers)).json()
        body = {"reservation_token": order["reservation_token"], "payment_method": CARD}
        headers = {"idempotency-key": f"payment-of-{name}-{number}"}
        assert (await client.post(f"/v1/orders/{order['id']}/pay", json=body, headers=headers)).status_code == 201

    await asyncio.gather(*(ask(name, number) for number in range(20) for name in people))
    async with shop.service.database.owning() as connection:
        batches = await connection.fetchval(
            "SELECT count(*) FROM (SELECT xid FROM tally.journal WHERE subject IN ('operation', 'charge.pending') "
            "GROUP BY xid, subject HAVING count(DISTINCT author) > 1) AS mixed"
        )
        mine = await connection.fetch(
            "SELECT split_part(j.author, '/', 1) AS name, j.subject, count(*) AS steps FROM tally.journal j "
            "LEFT JOIN tally.operation o ON o.id = j.operation_id AND o.tenant_id = j.tenant_id "
            "WHERE split_part(j.author, '/', 1) = ANY($1) AND (o.key IS NULL OR o.key LIKE '%' || "
            "split_part(j.author, '/', 1) || '%') GROUP BY 1, 2",
            list(people),
        )
    for client in people.values():
        await client.aclose()
    assert batches, "no batch had several callers: the test shows nothing"
    assert {(row["name"], row["subject"]): row["steps"] for row in mine} == {
        (name, subject): steps
        for name in people
        for subject, steps in (("operation", 40), ("charge.pending", 20), ("attempt.sent", 20))
    }


async def test_what_is_shown_of_a_transaction_names_its_author(shop: Storefront) -> None:
    await _money(shop.client, "amber", "birch")
    anna = await _person(shop, "anna", role="operator")
    made = await anna.post("/v1/operations", json=_transfer("amber", "birch"), headers={"idempotency-key": "mine"})
    again = await shop.client.post(
        "/v1/operations", json=_transfer("amber", "birch"), headers={"idempotency-key": "mine"}
    )
    read = await shop.client.get(f"/v1/operations/{made.json()['id']}")
    await anna.aclose()
    assert made.json()["author"].startswith("anna/tsk_")
    # Who repeats it has not done it.
    assert read.content == made.content == again.content
    told = await asyncio.to_thread(lambda: tally("explain", made.json()["id"], dsn=shop.dsn))
    assert f"by {made.json()['author']}" in told.stdout


async def test_an_author_cannot_end_the_statement_he_is_written_into(shop: Storefront) -> None:
    owner = await tenants.ensure_tenant(shop.service.database, "default")
    with acting("o'neil\\'; DROP TABLE tally.journal; --/terminal"):
        await tenants.add_key(shop.service.database, owner, "viewer", "tsk_of_nobody", owner="nobody")
    assert "oneil; DROP TABLE tally.journal; --/terminal" in (await _authors(shop))["key.created"]


def test_every_call_of_the_library_is_signed() -> None:
    """One that forgot would be journaled as nobody's."""
    calls = [
        (name, call)
        for name, call in inspect.getmembers(library.Tally, inspect.isfunction)
        if not name.startswith("_") and inspect.iscoroutinefunction(call)
    ]
    assert calls
    assert [name for name, call in calls if not hasattr(call, library.SIGNED)] == []


def test_a_second_key_is_no_second_person() -> None:
    assert author.person_of(author.by_key("anna", "tsk_one")) == author.person_of(author.by_key("anna", "tsk_two"))
    assert author.person_of(author.at_terminal("anna")) == author.person_of(author.by_key("anna", "tsk_two"))
    assert not author.is_somebody(author.person_of(author.by_key(author.UNKNOWN, "tsk_one")))
