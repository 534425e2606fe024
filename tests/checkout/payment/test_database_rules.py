"""What the database holds of payments by itself, attacked by raw SQL as its owner; damage that `verify` must see."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from tallystick.checkout.order.rules import order_id
from tallystick.checkout.order.store import OrderView
from tallystick.database.migrate import migrate
from tallystick.keys.derived import charge_key, refund_key
from tests import servers
from tests.ledgers import broken
from tests.payments import Checkout, checkout
from tests.providers.worlds import Control
from tests.settlements import empty, superuser

INSERT = (
    "INSERT INTO tally.payment_idempotency_log (tenant_id, idempotency_key, order_id, operation_type, attempt,"
    " amount_micros, currency, provider, payment_intent_id, refund_id, status, reason, completed_at, due_at,"
    " created_at)"
    " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, now(), now())"
)


@pytest.fixture(scope="module", params=["embedded18", "postgres15"])
def payment_dsn(request: pytest.FixtureRequest) -> str:
    server: servers.Server = request.getfixturevalue(request.param)
    return server.fresh_database()


@pytest_asyncio.fixture
async def shop(payment_dsn: str, control: Control) -> AsyncIterator[Checkout]:
    """On a database that was emptied."""
    await migrate(payment_dsn)
    await empty(payment_dsn)
    async with checkout(payment_dsn, control) as opened:
        yield opened


@pytest_asyncio.fixture
async def fragile(embedded18: servers.Server, control: Control) -> AsyncIterator[Checkout]:
    """On a database of its own: what is done to it cannot be undone."""
    async with checkout(embedded18.fresh_database(), control) as opened:
        yield opened


@pytest_asyncio.fixture
async def owner(shop: Checkout) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(shop.dsn)
    yield connection
    await connection.close()


async def refused(connection: asyncpg.Connection, state: str, statement: str, *arguments: object) -> None:
    with pytest.raises(asyncpg.PostgresError) as raised:
        await connection.execute(statement, *arguments)
    assert raised.value.sqlstate == state, raised.value


def key_of(shop: Checkout, order: OrderView, **other: Any) -> bytes:
    fields = {
        "tenant": shop.tenant.name,
        "currency": order.currency,
        "provider": "stripe",
        "order_id": order.id,
        "reservation_token": order.reservation_token,
        "attempt": 1,
        "amount_micros": order.amount_micros,
    }
    return charge_key(**{**fields, **other})


def row(shop: Checkout, order: OrderView, **other: Any) -> list[Any]:
    values = {
        "tenant_id": shop.tenant.number,
        "key": key_of(shop, order),
        "order": order_id(order.id),
        "type": "CHARGE",
        "attempt": 1,
        "amount": order.amount_micros,
        "currency": order.currency,
        "provider": "stripe",
        "payment": None,
        "refund": None,
        "status": "PENDING",
        "reason": None,
        "completed_at": None,
    }
    return list({**values, **other}.values())


async def intend(connection: asyncpg.Connection, shop: Checkout, key: bytes) -> None:
    """An intent and its attempt, by hand."""
    await connection.execute(
        "INSERT INTO tally.intent (tenant_id, provider, key, purpose, instruction, account, attempts)"
        " VALUES ($1, 'stripe', $2, 'charge', convert_to('{\"amount_micros\":25000000,\"currency\":\"EUR\"}', 'UTF8'),"
        " 'test', 1)",
        shop.tenant.number,
        key,
    )
    await connection.execute(
        "INSERT INTO tally.attempt (tenant_id, provider, key, number, token, sent_at, not_after)"
        " SELECT tenant_id, provider, key, 1, gen_random_uuid(), first_sent_at, first_sent_at FROM tally.intent"
        "  WHERE tenant_id = $1 AND key = $2",
        shop.tenant.number,
        key,
    )


async def test_a_charge_by_hand_with_its_intent_is_like_any_other(shop: Checkout, owner: asyncpg.Connection) -> None:
    order = await shop.order()
    async with owner.transaction():
        await intend(owner, shop, key_of(shop, order))
        await owner.execute(INSERT, *row(shop, order))
    assert await broken(shop.dsn) == {}


async def test_a_charge_without_its_intent_is_refused(shop: Checkout, owner: asyncpg.Connection) -> None:
    await refused(owner, "TS004", INSERT, *row(shop, await shop.order()))


@pytest.mark.parametrize(
    ("state", "other"),
    [
        ("TS005", {"key": b"k" * 32}),
        ("TS005", {"amount": 1}),
        ("TS005", {"currency": "USD"}),
        ("TS005", {"attempt": 2}),
        ("TS005", {"provider": "adyen"}),
        ("23514", {"payment": ""}),
        ("TS005", {"payment": "pi_1"}),
        ("23514", {"refund": "re_1"}),
        ("23514", {"attempt": 0}),
        ("23514", {"type": "GIFT"}),
        ("23514", {"status": "COMPLETED"}),
        ("23514", {"status": "FAILED"}),
        ("23514", {"type": "REFUND"}),
    ],
)
async def test_a_row_that_is_not_its_content_is_refused(
    shop: Checkout, owner: asyncpg.Connection, state: str, other: dict[str, Any]
) -> None:
    order = await shop.order()
    await intend(owner, shop, key_of(shop, order))
    await refused(owner, state, INSERT, *row(shop, order, **other))


async def test_a_second_live_charge_of_an_order_is_refused(shop: Checkout, owner: asyncpg.Connection) -> None:
    order = await shop.order()
    await shop.paying(order)
    key = key_of(shop, order, attempt=2)
    await intend(owner, shop, key)
    await refused(owner, "23505", INSERT, *row(shop, order, attempt=2, key=key))
    # Also when another provider is asked.
    key = key_of(shop, order, provider="adyen")
    await refused(owner, "23505", INSERT, *row(shop, order, provider="adyen", key=key))


async def test_an_attempt_follows_a_known_failure_alone(shop: Checkout, owner: asyncpg.Connection) -> None:
    """Not even where no live charge is in its way."""
    order = await shop.order()
    key = key_of(shop, order, attempt=2)
    await intend(owner, shop, key)
    await refused(owner, "TS004", INSERT, *row(shop, order, attempt=2, key=key))
    await shop.pay(order, payment_method="pm_card_chargeDeclined")
    await owner.execute(INSERT, *row(shop, order, attempt=2, key=key))


async def test_an_order_that_has_ended_cannot_be_charged(shop: Checkout, owner: asyncpg.Connection) -> None:
    order = await shop.order()
    await intend(owner, shop, key_of(shop, order))
    await shop.orders.cancel(shop.tenant, order.id)
    await refused(owner, "TS004", INSERT, *row(shop, order))


async def test_orders_of_others_cannot_be_charged(shop: Checkout, owner: asyncpg.Connection, control: Control) -> None:
    async with checkout(shop.dsn, control, tenant="other") as other:
        theirs = await other.order()
    await refused(owner, "TS003", INSERT, *row(shop, theirs))


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("UPDATE tally.payment_idempotency_log SET amount_micros = 1", "TS004"),
        ("UPDATE tally.payment_idempotency_log SET order_id = gen_random_uuid()", "TS004"),
        ("UPDATE tally.payment_idempotency_log SET payment_intent_id = 'pi_other'", "TS004"),
        ("UPDATE tally.payment_idempotency_log SET created_at = now()", "TS004"),
        ("UPDATE tally.payment_idempotency_log SET payment_intent_id = NULL", "TS004"),
        ("UPDATE tally.payment_idempotency_log SET idempotency_key = sha256(idempotency_key)", "TS004"),
        ("UPDATE tally.payment_idempotency_log SET attempt = 2", "TS004"),
        ("UPDATE tally.payment_idempotency_log SET currency = 'CHF'", "TS004"),
        ("UPDATE tally.payment_idempotency_log SET provider = 'adyen'", "TS004"),
        ("UPDATE tally.payment_idempotency_log SET status = 'PENDING', completed_at = NULL", "TS004"),
        ("UPDATE tally.payment_idempotency_log SET claim_number = 0", "23514"),
        ("UPDATE tally.payment_idempotency_log SET status = 'FAILED'", "23514"),
        ("DELETE FROM tally.payment_idempotency_log", "TS004"),
        ("TRUNCATE tally.payment_idempotency_log", "TS004"),
    ],
)
async def test_what_is_logged_stays(shop: Checkout, owner: asyncpg.Connection, statement: str, state: str) -> None:
    await shop.paying(await shop.order())
    with pytest.raises(asyncpg.PostgresError) as raised:
        await owner.execute(statement)
    assert raised.value.sqlstate in {state, "TS004"}, raised.value


async def test_what_failed_has_failed_for_good(shop: Checkout, owner: asyncpg.Connection) -> None:
    await shop.pay(await shop.order(), payment_method="pm_card_chargeDeclined")
    for status in ("PENDING", "COMPLETED"):
        await refused(owner, "TS004", "UPDATE tally.payment_idempotency_log SET status = $1", status)


async def test_a_payment_is_given_back_once(shop: Checkout, owner: asyncpg.Connection) -> None:
    """The log is made for refunds as well: one live refund of a payment, for ever."""
    order = await shop.order()
    paid = await shop.paying(order)
    payment = paid.payment.payment_intent_id
    assert payment is not None

    def refund(generation: int) -> list[Any]:
        key = refund_key(
            tenant=shop.tenant.name,
            currency=order.currency,
            provider="stripe",
            payment_intent_id=payment,
            generation=generation,
        )
        return row(shop, order, type="REFUND", attempt=generation, key=key, payment=payment)

    # Neither a receipt that is to be given back, nor an intent: nothing is logged without them.
    await refused(owner, "TS005", INSERT, *refund(0))
    receipt = (
        "INSERT INTO tally.payment_receipt (tenant_id, order_id, provider, payment_intent_id, charge_key,"
        " amount_micros, currency, fate, reason, event_number, received_at)"
        " VALUES ($1, $2, 'stripe', $3, $4, 25000000, 'EUR', 'REFUND', 'late', 1, now())"
    )
    await owner.execute(receipt, shop.tenant.number, order_id(order.id), payment, key_of(shop, order))
    await refused(owner, "TS004", INSERT, *refund(0))
    for generation in (0, 1):
        await intend(owner, shop, refund(generation)[1])
    await owner.execute(INSERT, *refund(0))
    await refused(owner, "23505", INSERT, *refund(0))
    await refused(owner, "23505", INSERT, *refund(1))
    # By whom it was given back must be said.
    done = "UPDATE tally.payment_idempotency_log SET status = 'COMPLETED', completed_at = now(), refund_id = $1"
    await refused(owner, "23514", done + " WHERE operation_type = 'REFUND'", None)
    await owner.execute(done + " WHERE operation_type = 'REFUND'", "re_1")
    await refused(owner, "23505", INSERT, *refund(1))
    subjects = await owner.fetch("SELECT subject FROM tally.journal WHERE subject LIKE 'refund.%' ORDER BY number")
    assert [found["subject"] for found in subjects] == ["refund.pending", "refund.completed"]


async def test_tenants_see_their_own_payments_alone(shop: Checkout, control: Control) -> None:
    order = await shop.order()
    await shop.paying(order)
    id_ = order_id(order.id)
    async with checkout(shop.dsn, control, tenant="other") as other:
        async with other.database.reading(other.tenant.number) as connection:
            assert await connection.fetchval("SELECT count(*) FROM tally.payment_idempotency_log") == 0
        assert await other.refused(order) == "order_unknown"
    async with shop.database.reading(shop.tenant.number) as connection:
        assert await connection.fetchval("SELECT order_id FROM tally.payment_idempotency_log") == id_


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM tally.intent",
        "UPDATE tally.payment_idempotency_log SET amount_micros = amount_micros + 1",
        "UPDATE tally.payment_idempotency_log SET order_id = gen_random_uuid()",
        "UPDATE tally.payment_idempotency_log SET idempotency_key = sha256(idempotency_key)",
        "UPDATE tally.payment_idempotency_log SET attempt = 2",
        "UPDATE tally.payment_idempotency_log SET status = 'FAILED', reason = 'x'",
        "DELETE FROM tally.payment_idempotency_log",
        "DELETE FROM tally.journal WHERE subject = 'charge.completed'",
        "DROP INDEX tally.one_live_charge",
        "ALTER TABLE tally.payment_idempotency_log DISABLE TRIGGER kept",
    ],
)
async def test_verify_sees_damage(fragile: Checkout, damage: str) -> None:
    await fragile.paying(await fragile.order())
    assert await broken(fragile.dsn) == {}
    connection = await asyncpg.connect(superuser(fragile.dsn))
    try:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(damage)
    finally:
        await connection.close()
    assert set(await broken(fragile.dsn)) & {"payments", "guards"}


async def test_verify_sees_two_live_charges(fragile: Checkout) -> None:
    order = await fragile.order()
    await fragile.paying(order)
    connection = await asyncpg.connect(superuser(fragile.dsn))
    try:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("DROP INDEX tally.one_live_charge")
        key = key_of(fragile, order, attempt=2)
        await intend(connection, fragile, key)
        await connection.execute(INSERT, *row(fragile, order, attempt=2, key=key))
    finally:
        await connection.close()
    assert (await broken(fragile.dsn))["payments"] >= 2
