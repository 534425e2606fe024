"""Who did it: after every kind of write, by every way in, the journal names somebody for each step."""

import asyncio
import getpass
import inspect
from collections.abc import AsyncIterator

import asyncpg
import httpx2
import pytest

import tallystick
from tallystick import app, library
from tallystick.core import author
from tallystick.core.author import acting, at_terminal
from tallystick.store import tenant as tenants
from tests.acceptance.storefront import Storefront, eventually, storefront
from tests.checkouts import CARD
from tests.cli.commands import tally
from tests.ledgers import broken
from tests.providers.worlds import Control

PERSON = at_terminal(getpass.getuser())


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
    assert await broken(shop.dsn) == {}


async def _checkout(shop: Storefront) -> None:
    await shop.stock(3)
    bought, cancelled = await shop.reserve("bought"), await shop.reserve("cancelled")
    await shop.pay(bought)
    await shop.becomes(bought, "PAID")
    assert (await shop.client.post(f"/v1/orders/{cancelled['id']}/cancel")).status_code == 200
    part = {"amount_micros": 10_000_000, "reason": "a scratch"}
    given = await shop.client.post(
        f"/v1/orders/{bought['id']}/refund", json=part, headers={"idempotency-key": "scratch"}
    )
    assert given.status_code in {201, 202}, given.text
    answer = await shop.client.put("/v1/checkout-policy", json={"other_amount": "review"})
    assert answer.status_code == 200, answer.text
    await shop.quiet()


async def _payouts(shop: Storefront) -> None:
    await _money(shop.client, "settlement:clearing:EUR")
    fee = {"percent_ppm": 20_000}
    assert (await shop.client.put("/v1/settlement-policies/EUR", json=fee)).status_code == 200
    wish = {"attribution_id": "a", "squad_id": "s", "gross_micros": 5_000_000, "currency": "EUR"}
    answer = await shop.client.post(
        "/v1/settlements", json={**wish, "destination": "acct_good"}, headers={"idempotency-key": "payout"}
    )
    assert answer.status_code == 201, answer.text
    name = answer.json()["id"]

    async def is_paid() -> bool:
        return bool((await shop.client.get(f"/v1/settlements/{name}")).json()["status"] == "transferred")

    await eventually(is_paid, "the payout")
    doubt = {"reason": "the seller says no", "evidence": "a letter"}
    answer = await shop.client.post(f"/v1/settlements/{name}/dispute", json=doubt, headers={"idempotency-key": "doubt"})
    assert answer.status_code == 200, answer.text


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
