"""What the database holds of orders by itself, attacked by raw SQL as its owner."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from tallystick import queries
from tallystick.checkout.order import store as orders_store
from tallystick.checkout.order.rules import claim_of, recorded
from tests import servers
from tests.ledgers import broken
from tests.orders import A_MOMENT, NONE, Store, emptied, expired, receive, store, wish
from tests.settlements import superuser

VERIFY = queries.load("tallystick.database", "verify.sql")["orders"]
INSERT = (
    "INSERT INTO tally.orders (tenant_id, id, sku, quantity, amount_micros, currency, status, created_at, expires_at,"
    " changed_at) VALUES ($1, $2, $3, $4, $5, $6, $7, now(), now() + interval '1 minute', now())"
)


@pytest.fixture(scope="module", params=["embedded18", "postgres15"])
def fresh(request: pytest.FixtureRequest) -> str:
    server: servers.Server = request.getfixturevalue(request.param)
    return server.fresh_database()


@pytest_asyncio.fixture
async def shop(fresh: str) -> AsyncIterator[Store]:
    async with store(await emptied(fresh)) as opened:
        await opened.put(10)
        yield opened


@pytest_asyncio.fixture
async def owner(shop: Store) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(shop.dsn)
    yield connection
    await connection.close()


async def refused(connection: asyncpg.Connection, state: str, statement: str, *arguments: object) -> None:
    with pytest.raises(asyncpg.PostgresError) as raised:
        await connection.execute(statement, *arguments)
    assert raised.value.sqlstate == state, raised.value


async def operation(connection: asyncpg.Connection, shop: Store, key: str, **fields: Any) -> UUID:
    """An operation as `reserve` writes it, without its order."""
    claim = claim_of(shop.tenant, wish(**fields), key)
    at = await connection.fetchval("SELECT now()")
    await connection.execute(
        "INSERT INTO tally.operation (tenant_id, id, key, request, body, at) VALUES ($1, $2, $3, $4, $5, $6)",
        shop.tenant.number,
        UUID(bytes=claim.id),
        key,
        claim.request,
        recorded(claim, at),
        at,
    )
    return UUID(bytes=claim.id)


async def insert(connection: asyncpg.Connection, shop: Store, id_: UUID, **other: Any) -> None:
    row = {"tenant": shop.tenant.number, "id": id_, "sku": "lamp", "quantity": 1, "amount": 25_000_000}
    row |= {"currency": "EUR", "status": "PENDING", **other}
    await connection.execute(INSERT, *row.values())


async def test_an_order_by_hand_moves_the_counters_like_any_other(shop: Store, owner: asyncpg.Connection) -> None:
    async with owner.transaction():
        await insert(owner, shop, await operation(owner, shop, "k", quantity=3), quantity=3)
    assert await shop.figures() == (3, 0, 7)
    assert await broken(shop.dsn) == {}


@pytest.mark.parametrize(
    ("state", "asked", "row"),
    [
        ("23514", {"quantity": 11}, {"quantity": 11}),  # more than there is
        ("TS005", {}, {"quantity": 2}),  # another quantity than the key was bound to
        ("TS005", {}, {"amount": 1}),  # another amount
        ("TS005", {}, {"currency": "USD"}),
        ("TS005", {"sku": "chair"}, {}),
        ("TS003", {"sku": "none"}, {"sku": "none"}),  # a SKU nobody sells
        ("TS004", {}, {"status": "PAID"}),  # paid from birth
        ("TS004", {}, {"status": "CANCELLED"}),
        ("23514", {}, {"quantity": 0}),
        ("23514", {}, {"amount": 0}),
        ("23514", {}, {"status": "LOST"}),
    ],
)
async def test_an_order_that_was_never_asked_for_is_refused(
    shop: Store, owner: asyncpg.Connection, state: str, asked: dict[str, Any], row: dict[str, Any]
) -> None:
    await shop.put(5, "chair")
    with pytest.raises(asyncpg.PostgresError) as raised:
        async with owner.transaction():
            await insert(owner, shop, await operation(owner, shop, "k", **asked), **row)
    if row.get("status") == "LOST":
        # Which of the two rules speaks first is not ours to say.
        assert raised.value.sqlstate in {"23514", "TS004"}
    else:
        assert raised.value.sqlstate == state, raised.value
    assert await shop.figures() == (0, 0, 10)


async def test_an_order_without_a_key_is_refused(shop: Store, owner: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.PostgresError) as raised:
        await insert(owner, shop, uuid4())
    assert raised.value.sqlstate == "TS005"


async def test_an_order_under_another_tenants_key_or_stock_is_refused(shop: Store, owner: asyncpg.Connection) -> None:
    async with store(shop.dsn, tenant="other") as other:
        with pytest.raises(asyncpg.PostgresError) as raised:
            async with owner.transaction():
                await insert(owner, other, await operation(owner, shop, "k"))
        assert raised.value.sqlstate == "TS003"
        await other.put(10)
        with pytest.raises(asyncpg.PostgresError) as raised:
            async with owner.transaction():
                await insert(owner, other, await operation(owner, shop, "k"))
        assert raised.value.sqlstate == "TS005"


@pytest.mark.parametrize("oversold", ["reserved = 11", "sold = 11", "reserved = -1"])
async def test_counters_are_moved_by_orders_alone(shop: Store, owner: asyncpg.Connection, oversold: str) -> None:
    await shop.made("k")
    await refused(owner, "TS004", f"UPDATE tally.sku SET {oversold}")
    await refused(owner, "TS004", "UPDATE tally.sku SET reserved = 0")
    await refused(owner, "TS004", "UPDATE tally.sku SET sold = 1, reserved = 0")
    await refused(owner, "TS004", "INSERT INTO tally.sku (tenant_id, sku, stock, reserved) VALUES (1, 'x', 5, 1)")
    await refused(owner, "23514", "UPDATE tally.sku SET stock = 0")
    await refused(owner, "23514", "UPDATE tally.sku SET stock = -1")
    assert await shop.figures() == (1, 0, 9)


@pytest.mark.parametrize(
    "change",
    [
        "amount_micros = amount_micros + 1",
        "currency = 'USD'",
        "quantity = quantity + 1",
        "sku = 'chair'",
        "reservation_token = gen_random_uuid()",
        "expires_at = expires_at + interval '1 hour'",
        "created_at = created_at - interval '1 hour'",
        "id = gen_random_uuid()",
        "tenant_id = tenant_id + 1",
    ],
)
async def test_what_an_order_is_never_changes(shop: Store, owner: asyncpg.Connection, change: str) -> None:
    await shop.put(5, "chair")
    await shop.made("k")
    await refused(owner, "TS004", f"UPDATE tally.orders SET {change}")
    # Not even in the step that ends it.
    await refused(owner, "TS004", f"UPDATE tally.orders SET status = 'PAID', {change}")


@pytest.mark.parametrize("end", ["PAID", "CANCELLED"])
async def test_a_step_is_taken_once_and_never_back(shop: Store, owner: asyncpg.Connection, end: str) -> None:
    await shop.made("k")
    if end == "PAID":
        await receive(shop.dsn)
    await owner.execute("UPDATE tally.orders SET status = $1", end)
    after = await shop.figures()
    assert after == ((0, 1, 9) if end == "PAID" else (0, 0, 10))
    # Said again, it changes nothing; another word is refused.
    await owner.execute("UPDATE tally.orders SET status = $1", end)
    assert await shop.figures() == after
    for other in {"PENDING", "PAID", "CANCELLED", "CANCELLED_BY_SWEEPER"} - {end}:
        await refused(owner, "TS004", "UPDATE tally.orders SET status = $1", other)
    assert await shop.figures() == after
    assert await owner.fetchval("SELECT count(*) FROM tally.journal WHERE subject LIKE 'order.%'") == 1


async def test_the_sweeper_may_not_come_early(shop: Store, owner: asyncpg.Connection) -> None:
    await shop.made("k")
    await refused(owner, "TS004", "UPDATE tally.orders SET status = 'CANCELLED_BY_SWEEPER'")
    assert await shop.figures() == (1, 0, 9)


async def test_orders_and_skus_are_kept(shop: Store, owner: asyncpg.Connection) -> None:
    await shop.made("k")
    for table in ("orders", "sku"):
        await refused(owner, "TS004", f"DELETE FROM tally.{table}")
        await refused(owner, "TS004", f"TRUNCATE tally.{table} CASCADE")
    await refused(owner, "TS004", "UPDATE tally.sku SET sku = 'other'")


async def test_every_step_is_in_the_journal_and_in_the_outbox(shop: Store, owner: asyncpg.Connection) -> None:
    first, second = await shop.made("k"), await shop.made("l")
    await shop.orders.cancel(shop.tenant, first.id)
    await shop.pay(second.id)
    await shop.put(20)
    for table, name in (("journal", "subject"), ("outbox", "topic")):
        rows = await owner.fetch(
            f"SELECT {name} AS what, body FROM tally.{table} WHERE {name} LIKE 'order.%' ORDER BY 1"
        )
        assert [row["what"] for row in rows] == ["order.cancelled", "order.paid"]
        told = [json.loads(row["body"]) for row in rows]
        assert [f"or_{UUID(one['order']).hex}" for one in told] == [first.id, second.id]
        assert [(one["was"], one["quantity"], one["amount_micros"]) for one in told] == [("PENDING", 1, 25_000_000)] * 2
    # Two reservations, and the posting of the payment.
    assert await owner.fetchval("SELECT count(*) FROM tally.outbox WHERE topic = 'operation.committed'") == 3
    stocks = await owner.fetch("SELECT body FROM tally.journal WHERE subject = 'sku.stock' ORDER BY number")
    assert [json.loads(row["body"])["stock"] for row in stocks] == [10, 20]
    assert await broken(shop.dsn) == {}


async def test_the_reader_may_not_write(owner: asyncpg.Connection) -> None:
    for table, change in (("orders", "status = 'PAID'"), ("sku", "stock = 1")):
        async with owner.transaction():
            await owner.execute("SET LOCAL ROLE tallystick_reader")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with owner.transaction():
                    await owner.execute(f"UPDATE tally.{table} SET {change}")


async def test_a_tenant_sees_his_own_orders_and_stock_alone(shop: Store) -> None:
    view = await shop.made("k")
    async with store(shop.dsn, tenant="other") as other:
        async with other.database.reading(other.tenant.number) as connection:
            for table in ("orders", "sku"):
                assert await connection.fetchval(f"SELECT count(*) FROM tally.{table}") == 0
        async with shop.database.reading(shop.tenant.number) as connection:
            for table in ("orders", "sku"):
                assert await connection.fetchval(f"SELECT count(*) FROM tally.{table}") == 1
        answer: Any = await other.orders.cancel(other.tenant, view.id)
        assert answer.code == "order_unknown"
        answer = await other.reserve("k")
        assert answer.code == "sku_unknown"
    assert await shop.status(view.id) == "PENDING"


# What somebody could do who takes the triggers off, and what `verify` then counts.
DAMAGE = (
    "UPDATE tally.sku SET reserved = reserved + 1",
    "UPDATE tally.sku SET sold = sold + 1",
    "UPDATE tally.sku SET stock = stock - 1",
    "UPDATE tally.orders SET status = 'PAID' WHERE status = 'PENDING'",
    "UPDATE tally.orders SET status = 'PENDING' WHERE status = 'CANCELLED'",
    "UPDATE tally.orders SET quantity = quantity + 1",
    "UPDATE tally.orders SET amount_micros = amount_micros + 1",
    "UPDATE tally.orders SET sku = 'chair' WHERE status = 'CANCELLED'",
    "DELETE FROM tally.orders WHERE status = 'CANCELLED'",
    "DELETE FROM tally.sku",
    "DELETE FROM tally.journal WHERE subject = 'order.cancelled'",
    (
        "INSERT INTO tally.journal (tenant_id, subject, body, digest)"
        " SELECT tenant_id, subject, body, digest FROM tally.journal WHERE subject = 'order.cancelled'"
    ),
    "DELETE FROM tally.operation WHERE key = 'k'",
)


@pytest.mark.parametrize("damage", DAMAGE)
async def test_verify_sees_what_a_hand_without_triggers_has_done(shop: Store, damage: str) -> None:
    await shop.put(10, "chair")
    await shop.made("k")
    await shop.orders.cancel(shop.tenant, (await shop.made("l")).id)
    connection = await asyncpg.connect(superuser(shop.dsn))
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
        "ALTER TABLE tally.orders DISABLE TRIGGER orders_changed",
        "ALTER TABLE tally.orders DISABLE TRIGGER patience",
        "ALTER TABLE tally.sku DISABLE TRIGGER counters",
        "ALTER TABLE tally.sku DROP CONSTRAINT never_oversold",
        "ALTER TABLE tally.orders DISABLE ROW LEVEL SECURITY",
    ],
)
async def test_verify_misses_a_rule_that_was_taken_off(embedded18: servers.Server, removed: str) -> None:
    async with store(embedded18.fresh_database()) as shop:
        connection = await asyncpg.connect(shop.dsn)
        try:
            await connection.execute(removed)
        finally:
            await connection.close()
        assert await broken(shop.dsn) == {"guards": 1}


async def test_the_sweeper_looks_at_no_more_rows_however_many_are_finished(embedded18: servers.Server) -> None:
    """By the plan that a worker's connection has: made once, when the tables were still empty."""
    async with store(embedded18.fresh_database(), ttl=A_MOMENT, grace=NONE) as shop:
        await shop.put(100)
        overdue = orders_store._SQL["overdue"]
        async with shop.database.connection() as connection:
            await connection.fetch(overdue, timedelta(), 10, None, [], None)
            for number in range(20):
                await shop.made(f"k{number}")
            await expired(shop.dsn)
            few = await looked_at(connection)
            await finish_many(shop)
            many = await looked_at(connection)
        assert few["index"] == many["index"] == "orders_pending"
        assert many["rows"] == few["rows"] == 10
        # A page or two more: the index may have split meanwhile. A scan of the finished would be hundreds.
        assert many["pages"] <= few["pages"] + 10, (few, many)


async def looked_at(connection: asyncpg.Connection) -> dict[str, Any]:
    statement = orders_store._SQL["overdue"]
    for parameter, value in (
        ("$1::interval", "interval '0'"),
        ("$2", "10"),
        ("$3", "NULL"),
        ("$4", "'{}'"),
        ("$5", "NULL"),
    ):
        statement = statement.replace(parameter, value)
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}")
    plan = json.loads(text)[0]["Plan"]
    node = plan
    while "Index Name" not in node:
        # Beside what they are asked about: each of those is one probe.
        (node,) = [inner for inner in node["Plans"] if "Subplan Name" not in inner]
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return {"index": node["Index Name"], "rows": plan["Actual Rows"], "pages": pages}


async def finish_many(shop: Store) -> None:
    connection = await asyncpg.connect(superuser(shop.dsn))
    try:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(
            "INSERT INTO tally.orders (tenant_id, id, sku, quantity, amount_micros, currency, status, created_at,"
            " expires_at, changed_at) SELECT $1, gen_random_uuid(), 'lamp', 1, 1, 'EUR',"
            " CASE number % 3 WHEN 0 THEN 'PAID' WHEN 1 THEN 'CANCELLED' ELSE 'CANCELLED_BY_SWEEPER' END,"
            " now() - interval '1 day', now() - interval '23 hours', now() FROM generate_series(1, 50000) AS number",
            shop.tenant.number,
        )
    finally:
        await connection.close()
