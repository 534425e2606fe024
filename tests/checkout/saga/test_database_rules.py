"""What the database holds of the saga by itself, attacked by raw SQL as its owner; damage that `verify` must see."""

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from tallystick import queries
from tallystick.checkout import policy_store as checkout_policy
from tallystick.checkout.order.rules import order_id
from tallystick.checkout.order.store import OrderView
from tallystick.checkout.saga.rules import Policy
from tallystick.database.migrate import migrate
from tallystick.keys.derived import refund_key
from tests import servers
from tests.ledgers import broken
from tests.payments import checkout
from tests.providers.worlds import Control
from tests.sagas import Desk, desk
from tests.settlements import empty, superuser

PRICE = 25_000_000
VERIFY = queries.load("tallystick.database", "verify.sql")["checkout"]
RECEIPT = (
    "INSERT INTO tally.payment_receipt (tenant_id, order_id, provider, payment_intent_id, charge_key, amount_micros,"
    " currency, fate, reason, event_number, received_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1, now())"
)
REFUND = (
    "INSERT INTO tally.payment_idempotency_log (tenant_id, idempotency_key, order_id, operation_type, attempt,"
    " amount_micros, currency, provider, payment_intent_id, refund_id, status, reason, completed_at, due_at,"
    " created_at) VALUES ($1, $2, $3, 'REFUND', $4, $5, $6, $7, $8, $9, $10, $11, $12, now(), now())"
)
BREAK = (
    "INSERT INTO tally.payment_break (kind, provider, purpose, object_id, word, amount_micros, currency, tenant_id,"
    " order_id) VALUES ($1, 'stripe', 'charge', $2, 'succeeded', 1, 'EUR', $3, $4)"
)


@pytest.fixture(scope="module", params=["embedded18", "postgres15"])
def saga_dsn(request: pytest.FixtureRequest) -> str:
    server: servers.Server = request.getfixturevalue(request.param)
    return server.fresh_database()


@pytest_asyncio.fixture
async def till(saga_dsn: str, control: Control) -> AsyncIterator[Desk]:
    """On a database that was emptied."""
    await migrate(saga_dsn)
    await empty(saga_dsn)
    async with desk(saga_dsn, control) as opened:
        yield opened


@pytest_asyncio.fixture
async def owner(till: Desk) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(till.dsn)
    yield connection
    await connection.close()


async def refused(connection: asyncpg.Connection, state: str, statement: str, *arguments: object) -> None:
    with pytest.raises(asyncpg.PostgresError) as raised:
        await connection.execute(statement, *arguments)
    assert raised.value.sqlstate == state, raised.value


async def receipt(till: Desk, order: OrderView, payment: str, **other: Any) -> list[Any]:
    """A receipt as the saga writes it, with these fields otherwise."""
    (charge,) = await till.shop.log(order)
    values = {
        "tenant": till.shop.tenant.number,
        "order": order_id(order.id),
        "provider": "stripe",
        "payment": payment,
        "charge": charge.key,
        "amount": PRICE,
        "currency": "EUR",
        "fate": "PAID",
        "reason": None,
    }
    return list({**values, **other}.values())


def refund(till: Desk, order: OrderView, payment: str, **other: Any) -> list[Any]:
    """A refund in the log as the saga begins it; its key is its content's unless another is given."""
    generation = other.pop("generation", 0)
    currency = other.pop("currency", "EUR")
    key = refund_key(
        tenant=till.shop.tenant.name,
        currency=currency,
        provider="stripe",
        payment_intent_id=payment,
        generation=generation,
    )
    values = {
        "tenant": till.shop.tenant.number,
        "key": key,
        "order": order_id(order.id),
        "generation": generation,
        "amount": PRICE,
        "currency": currency,
        "provider": "stripe",
        "payment": payment,
        "refund": None,
        "status": "PENDING",
        "reason": None,
        "completed_at": None,
    }
    return list({**values, **other}.values())


async def intend(connection: asyncpg.Connection, till: Desk, key: bytes) -> None:
    """An intent and its attempt, by hand."""
    await connection.execute(
        "INSERT INTO tally.intent (tenant_id, provider, key, purpose, instruction, account, attempts)"
        " VALUES ($1, 'stripe', $2, 'refund', convert_to('{\"amount_micros\":25000000,\"currency\":\"EUR\"}', 'UTF8'),"
        " 'test', 1)",
        till.shop.tenant.number,
        key,
    )
    await connection.execute(
        "INSERT INTO tally.attempt (tenant_id, provider, key, number, token, sent_at, not_after)"
        " SELECT tenant_id, provider, key, 1, gen_random_uuid(), first_sent_at, first_sent_at FROM tally.intent"
        "  WHERE tenant_id = $1 AND key = $2",
        till.shop.tenant.number,
        key,
    )


# --- receipts


async def test_a_receipt_by_hand_pays_like_any_other(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await till.bought()
    async with owner.transaction():
        await owner.execute(RECEIPT, *await receipt(till, order, payment))
        await owner.execute("UPDATE tally.orders SET status = 'PAID'")
    assert await till.status(order) == "PAID"


@pytest.mark.parametrize(
    ("state", "other"),
    [
        ("TS005", {"amount": PRICE - 1}),  # pays with another amount than the order's
        ("TS005", {"currency": "USD"}),
        ("TS005", {"charge": b"k" * 32}),  # nobody's charge
        ("TS005", {"provider": "adyen"}),  # a charge of another provider
        ("23514", {"amount": 0}),
        ("23514", {"currency": "EURO"}),
        ("23514", {"fate": "LOST", "reason": "late"}),
        ("23514", {"fate": "REFUND"}),  # without a reason
        ("23514", {"fate": "REVIEW"}),
        ("23514", {"fate": "KEPT"}),
    ],
)
async def test_a_receipt_that_is_not_its_charges_is_refused(
    till: Desk, owner: asyncpg.Connection, state: str, other: dict[str, Any]
) -> None:
    order, payment = await till.bought()
    await refused(owner, state, RECEIPT, *await receipt(till, order, payment, **other))


async def test_a_receipt_of_another_orders_or_tenants_charge_is_refused(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await till.bought()
    other, _ = await till.bought("other")
    (charge,) = await till.shop.log(other)
    await refused(owner, "TS005", RECEIPT, *await receipt(till, order, payment, charge=charge.key))
    async with checkout(till.dsn, till.shop.control, tenant="other") as foreign:
        number = foreign.tenant.number
        foreigners = await receipt(till, order, payment, tenant=number, fate="REFUND", reason="late")
        await refused(owner, "TS005", RECEIPT, *foreigners)


async def test_another_amount_may_be_held_and_never_pays(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await till.bought()
    odd = await receipt(till, order, payment, amount=1, fate="REVIEW", reason="amount_differs")
    await owner.execute(RECEIPT, *odd)
    await refused(owner, "TS004", "UPDATE tally.orders SET status = 'PAID'")


async def test_a_payment_counts_once_and_one_payment_pays_an_order(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await till.bought()
    other, _ = await till.bought("other")
    await owner.execute(RECEIPT, *await receipt(till, order, payment))
    again = await receipt(till, order, payment, fate="REFUND", reason="second_payment")
    await refused(owner, "23505", RECEIPT, *again)
    # Not of another order's either: the provider's id is one payment, whoever's.
    await refused(owner, "23505", RECEIPT, *await receipt(till, other, payment))
    await refused(owner, "23505", RECEIPT, *await receipt(till, order, "pi_second"))
    second = await receipt(till, order, "pi_second", fate="REFUND", reason="second_payment")
    await owner.execute(RECEIPT, *second)


@pytest.mark.parametrize(
    "change",
    [
        "tenant_id = tenant_id + 1",
        "order_id = gen_random_uuid()",
        "provider = 'adyen'",
        "payment_intent_id = 'pi_other'",
        "charge_key = 'k'",
        "amount_micros = 1",
        "currency = 'USD'",
        "event_number = 99",
        "received_at = now() - interval '1 day'",
    ],
)
async def test_what_was_taken_never_changes(till: Desk, owner: asyncpg.Connection, change: str) -> None:
    order, payment = await till.bought()
    await owner.execute(RECEIPT, *await receipt(till, order, payment, fate="REVIEW", reason="amount_differs"))
    await refused(owner, "TS004", f"UPDATE tally.payment_receipt SET {change}")
    # Not even in the step that decides it.
    await refused(owner, "TS004", f"UPDATE tally.payment_receipt SET fate = 'KEPT', {change}")


@pytest.mark.parametrize("fate", ["PAID", "REFUND", "REVIEW", "KEPT"])
async def test_what_became_of_a_payment_is_decided_once(till: Desk, owner: asyncpg.Connection, fate: str) -> None:
    allowed = {("REVIEW", "REFUND"), ("REVIEW", "KEPT")}
    for number, other in enumerate(["PAID", "REFUND", "REVIEW", "KEPT"]):
        order, payment = await till.bought(f"k{number}")
        await owner.execute(RECEIPT, *await receipt(till, order, payment, fate=fate, reason="late"))
        change = "UPDATE tally.payment_receipt SET fate = $1 WHERE payment_intent_id = $2"
        if other == fate or (fate, other) in allowed:
            await owner.execute(change, other, payment)
        else:
            await refused(owner, "TS004", change, other, payment)


# --- what is kept for good


async def test_receipts_breaks_and_policies_are_kept(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await till.bought()
    await owner.execute(RECEIPT, *await receipt(till, order, payment))
    await owner.execute(BREAK, "disputed", payment, None, None)
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(), by="test")
    for table in ("payment_receipt", "payment_break", "checkout_policy"):
        await refused(owner, "TS004", f"DELETE FROM tally.{table}")
        await refused(owner, "TS004", f"TRUNCATE tally.{table}")


async def test_a_policy_is_one_of_those_there_are_and_every_change_is_journaled(
    till: Desk, owner: asyncpg.Connection
) -> None:
    insert = "INSERT INTO tally.checkout_policy (tenant_id, late, other_amount, changed_by) VALUES ($1, $2, $3, $4)"
    tenant = till.shop.tenant.number
    await refused(owner, "23514", insert, tenant, "keep", "refund", "test")
    await refused(owner, "23514", insert, tenant, "refund", "pay", "test")
    await refused(owner, "23502", insert, tenant, "refund", "refund", None)
    await refused(owner, "23503", insert, 999_999, "refund", "refund", "test")
    await owner.execute(insert, tenant, "refund", "review", "test")
    await owner.execute("UPDATE tally.checkout_policy SET late = 'backorder'")
    rows = await owner.fetch("SELECT body FROM tally.journal WHERE subject = 'checkout.policy' ORDER BY number")
    assert [json.loads(row["body"])["late"] for row in rows] == ["refund", "backorder"]


# --- breaks: what nothing here explains


async def test_a_break_is_told_once_and_resolved_once(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await till.bought()
    tenant = till.shop.tenant.number
    await refused(owner, "23514", BREAK, "strange", payment, None, None)
    await refused(owner, "23514", BREAK, "disputed", payment, tenant, None)
    await refused(owner, "23514", BREAK, "disputed", payment, None, order_id(order.id))
    await owner.execute(BREAK, "disputed", payment, tenant, order_id(order.id))
    await refused(owner, "23505", BREAK, "disputed", payment, None, None)
    await refused(owner, "23514", "UPDATE tally.payment_break SET resolved_at = now()")
    await refused(owner, "23514", "UPDATE tally.payment_break SET resolved_at = now(), resolution = 'seen'")
    for change in ("kind = 'missing_here'", "provider = 'adyen'", "object_id = 'x'", "found_at = now()"):
        await refused(owner, "TS004", f"UPDATE tally.payment_break SET {change}")
    resolve = "UPDATE tally.payment_break SET resolved_at = now(), resolution = 'seen', resolved_by = 'test'"
    await owner.execute(resolve)
    await refused(owner, "TS004", resolve)


# --- refunds


async def owed(till: Desk, owner: asyncpg.Connection, **other: Any) -> tuple[OrderView, str]:
    """A payment that is to be given back, and no refund yet."""
    order, payment = await till.bought()
    values = {"fate": "REFUND", "reason": "late", **other}
    await owner.execute(RECEIPT, *await receipt(till, order, payment, **values))
    return order, payment


async def test_a_refund_by_hand_with_its_intent_is_like_any_other(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await owed(till, owner)
    row = refund(till, order, payment)
    async with owner.transaction():
        await intend(owner, till, row[1])
        await owner.execute(REFUND, *row)
    assert await till.refund_statuses(order) == ["PENDING"]


async def test_a_refund_without_its_committed_intent_is_refused(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await owed(till, owner)
    await refused(owner, "TS004", REFUND, *refund(till, order, payment))


@pytest.mark.parametrize("fate", ["PAID", "REVIEW", "KEPT", None])
async def test_only_what_is_to_be_given_back_is_refunded(
    till: Desk, owner: asyncpg.Connection, fate: str | None
) -> None:
    order, payment = await till.bought()
    if fate is not None:
        await owner.execute(RECEIPT, *await receipt(till, order, payment, fate=fate, reason="late"))
    row = refund(till, order, payment)
    await intend(owner, till, row[1])
    await refused(owner, "TS005", REFUND, *row)


@pytest.mark.parametrize(
    ("state", "other"),
    [
        ("TS005", {"key": b"k" * 32}),
        ("TS005", {"amount": PRICE - 1}),  # a part of it
        ("TS005", {"amount": PRICE + 1}),
        ("TS005", {"currency": "USD"}),
        ("TS005", {"refund": "re_1"}),  # made before it was asked for
        ("23514", {"status": "COMPLETED"}),
        ("TS004", {"generation": 1}),  # before the one before it has failed
        ("TS005", {"payment": "pi_unheard_of"}),
    ],
)
async def test_a_refund_that_is_not_its_receipts_is_refused(
    till: Desk, owner: asyncpg.Connection, state: str, other: dict[str, Any]
) -> None:
    order, payment = await owed(till, owner)
    row = refund(till, order, other.get("payment", payment), **{k: v for k, v in other.items() if k != "payment"})
    await intend(owner, till, row[1])
    await refused(owner, state, REFUND, *row)


async def test_a_payment_has_one_live_refund_and_the_next_follows_a_failure(
    till: Desk, owner: asyncpg.Connection
) -> None:
    order, payment = await owed(till, owner)
    first, second = refund(till, order, payment), refund(till, order, payment, generation=1)
    for row in (first, second):
        await intend(owner, till, row[1])
    await owner.execute(REFUND, *first)
    await refused(owner, "23505", REFUND, *second)
    fail = "UPDATE tally.payment_idempotency_log SET status = 'FAILED', reason = 'r', completed_at = now()"
    await owner.execute(f"{fail} WHERE idempotency_key = $1", first[1])
    await owner.execute(REFUND, *second)
    # Failed as well, it is still the one of its generation.
    await owner.execute(f"{fail} WHERE idempotency_key = $1", second[1])
    await refused(owner, "23505", REFUND, *refund(till, order, payment, generation=1, key=b"k" * 32))


# --- orders


async def test_an_order_is_paid_by_a_receipt_alone(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await till.bought()
    await refused(owner, "TS004", "UPDATE tally.orders SET status = 'PAID'")
    await owner.execute(RECEIPT, *await receipt(till, order, payment, fate="REFUND", reason="late"))
    await refused(owner, "TS004", "UPDATE tally.orders SET status = 'PAID'")
    assert await till.status(order) == "PENDING"


async def test_a_cancelled_order_is_paid_only_where_backorders_are_taken(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await till.ghost()
    await owner.execute(RECEIPT, *await receipt(till, order, payment))
    await refused(owner, "TS004", "UPDATE tally.orders SET status = 'PAID'")
    await refused(owner, "TS004", "UPDATE tally.orders SET status = 'PAID', is_backordered = true")
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(late="backorder"), by="test")
    await owner.execute("UPDATE tally.orders SET status = 'PAID', is_backordered = true")
    sku: Any = await till.shop.orders.sku(till.shop.tenant, "lamp")
    assert (sku.reserved, sku.sold, sku.backordered) == (0, 0, 1)
    await owner.execute("UPDATE tally.orders SET is_backordered = false")
    sku = await till.shop.orders.sku(till.shop.tenant, "lamp")
    assert (sku.reserved, sku.sold, sku.backordered) == (0, 1, 0)
    # Filled once.
    await refused(owner, "TS004", "UPDATE tally.orders SET is_backordered = true")
    assert await owner.fetchval("SELECT count(*) FROM tally.journal WHERE subject = 'order.filled'") == 1


async def test_what_its_buyer_cancelled_is_never_paid(till: Desk, owner: asyncpg.Connection) -> None:
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(late="backorder"), by="test")
    order, payment = await till.bought()
    await till.shop.orders.cancel(till.shop.tenant, order.id)
    await owner.execute(RECEIPT, *await receipt(till, order, payment))
    await refused(owner, "TS004", "UPDATE tally.orders SET status = 'PAID'")


async def test_a_backorder_is_paid_and_was_cancelled(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await till.bought()
    await refused(owner, "TS004", "UPDATE tally.orders SET is_backordered = true")
    await owner.execute(RECEIPT, *await receipt(till, order, payment))
    await refused(owner, "TS004", "UPDATE tally.orders SET status = 'PAID', is_backordered = true")
    await till.ghost("late")
    await refused(owner, "23514", "UPDATE tally.orders SET is_backordered = true WHERE status <> 'PENDING'")
    await refused(owner, "TS004", "UPDATE tally.sku SET backordered = 1")
    await refused(
        owner, "TS004", "INSERT INTO tally.sku (tenant_id, sku, stock, backordered) VALUES ($1, 'x', 5, 1)",
        till.shop.tenant.number,
    )  # fmt: skip


async def test_a_backorder_is_filled_by_stock_that_is_there(till: Desk, owner: asyncpg.Connection) -> None:
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(late="backorder"), by="test")
    order, payment = await till.ghost()
    await till.shop.orders.set_stock(till.shop.tenant, "lamp", 0)
    await owner.execute(RECEIPT, *await receipt(till, order, payment))
    await refused(owner, "23514", "UPDATE tally.orders SET status = 'PAID'")
    await owner.execute("UPDATE tally.orders SET status = 'PAID', is_backordered = true")
    await refused(owner, "23514", "UPDATE tally.orders SET is_backordered = false")


# --- what is told, and to whom


async def test_every_step_of_a_refund_is_journaled_told_and_timed(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    assert await till.refund_statuses(order) == ["COMPLETED"]
    rows = await owner.fetch("SELECT subject FROM tally.journal WHERE subject LIKE 'refund.%' ORDER BY number")
    assert [row["subject"] for row in rows] == ["refund.pending", "refund.completed"]
    assert await owner.fetchval("SELECT count(*) FROM tally.outbox WHERE topic = 'refund.completed'") == 1
    assert await owner.fetchval("SELECT sum(count) FROM tally.compensation_time") == 1


async def test_a_tenant_sees_his_own_payments_alone_and_writes_none(till: Desk, owner: asyncpg.Connection) -> None:
    order, payment = await till.bought()
    await owner.execute(RECEIPT, *await receipt(till, order, payment))
    await owner.execute(BREAK, "disputed", payment, till.shop.tenant.number, order_id(order.id))
    # Nobody's: of no tenant.
    await owner.execute(BREAK, "missing_here", "pi_stray", None, None)
    await checkout_policy.put(till.shop.database, till.shop.tenant, Policy(), by="test")
    tables = {
        "payment_receipt": "fate = 'KEPT'",
        "payment_break": "resolution = 'x'",
        "checkout_policy": "late = 'backorder'",
    }
    async with checkout(till.dsn, till.shop.control, tenant="other") as other:
        for table, change in tables.items():
            async with other.database.reading(other.tenant.number) as connection:
                assert await connection.fetchval(f"SELECT count(*) FROM tally.{table}") == 0
            async with till.shop.database.reading(till.shop.tenant.number) as connection:
                assert await connection.fetchval(f"SELECT count(*) FROM tally.{table}") == 1
            async with owner.transaction():
                await owner.execute("SET LOCAL ROLE tallystick_reader")
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    async with owner.transaction():
                        await owner.execute(f"UPDATE tally.{table} SET {change}")


# --- what `verify` sees afterwards

# What somebody could do who takes the triggers off, and what `verify` then counts.
DAMAGE = (
    "DELETE FROM tally.payment_receipt WHERE fate = 'PAID'",
    "DELETE FROM tally.payment_receipt WHERE fate = 'REFUND'",
    "UPDATE tally.payment_receipt SET amount_micros = amount_micros - 1 WHERE fate = 'PAID'",
    "UPDATE tally.payment_receipt SET fate = 'KEPT', reason = 'x' WHERE fate = 'PAID'",
    "UPDATE tally.payment_receipt SET fate = 'REVIEW' WHERE fate = 'REFUND'",
    "UPDATE tally.payment_receipt SET order_id = gen_random_uuid() WHERE fate = 'PAID'",
    "UPDATE tally.orders SET status = 'PENDING' WHERE status = 'PAID'",
    "UPDATE tally.orders SET status = 'PAID' WHERE status = 'CANCELLED_BY_SWEEPER'",
    (
        "UPDATE tally.payment_idempotency_log SET status = 'PENDING', completed_at = NULL"
        " WHERE operation_type = 'REFUND'"
    ),
    (
        "UPDATE tally.payment_idempotency_log SET status = 'FAILED', reason = 'x', refund_id = NULL"
        " WHERE operation_type = 'REFUND'"
    ),
    "UPDATE tally.payment_idempotency_log SET amount_micros = 1 WHERE operation_type = 'REFUND'",
    "DELETE FROM tally.payment_idempotency_log WHERE operation_type = 'REFUND'",
    "UPDATE tally.account SET balance_micros = balance_micros + 1 WHERE id LIKE 'checkout:owed:%'",
    "UPDATE tally.account SET balance_micros = balance_micros + 1 WHERE id LIKE 'checkout:taken:%'",
)


@pytest.mark.parametrize("damage", DAMAGE)
async def test_verify_sees_what_a_hand_without_triggers_has_done(till: Desk, damage: str) -> None:
    _, paid = await till.bought("paid")
    _, late = await till.ghost("late")
    await till.tell(paid)
    await till.tell(late, "evt_2")
    await till.run()
    connection = await asyncpg.connect(superuser(till.dsn))
    try:
        assert (await connection.fetch(VERIFY))[0]["broken"] == 0
        await connection.execute("SET session_replication_role = replica")
        assert not (await connection.execute(damage)).endswith(" 0"), "the damage did none"
        assert (await connection.fetch(VERIFY))[0]["broken"] > 0
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "removed",
    [
        "ALTER TABLE tally.payment_receipt DISABLE TRIGGER receipts_made",
        "ALTER TABLE tally.payment_receipt DISABLE TRIGGER identity",
        "ALTER TABLE tally.payment_receipt DISABLE TRIGGER transition",
        "ALTER TABLE tally.payment_receipt DISABLE TRIGGER kept",
        "ALTER TABLE tally.payment_break DISABLE TRIGGER kept",
        "ALTER TABLE tally.checkout_policy DISABLE TRIGGER changed_journaled",
        "DROP INDEX tally.one_receipt",
        "DROP INDEX tally.one_payer",
        "DROP INDEX tally.refund_generation",
        "ALTER TABLE tally.orders DROP CONSTRAINT backordered_is_paid",
        "ALTER TABLE tally.payment_receipt DISABLE ROW LEVEL SECURITY",
    ],
)
async def test_verify_misses_a_rule_that_was_taken_off(
    embedded18: servers.Server, control: Control, removed: str
) -> None:
    async with desk(embedded18.fresh_database(), control) as till:
        connection = await asyncpg.connect(till.dsn)
        try:
            await connection.execute(removed)
        finally:
            await connection.close()
        assert await broken(till.dsn) == {"guards": 1}
