"""What grows by how many bytes: measured, and told in docs/operating.md, table by table; the two are compared.

`pytest tests/database/test_growth.py` prints the figures under "counted".
"""

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import pytest

from tallystick.checkout.order.rules import OrderReserved
from tallystick.checkout.order.store import Reserved
from tallystick.checkout.payment.rules import Paying
from tallystick.ledger.account import store as account
from tallystick.ledger.kinds import Transfer
from tallystick.ledger.outcome import Committed
from tests import servers
from tests.checkouts import CARD, Till, till
from tests.ledgers import broken
from tests.providers.worlds import Control
from tests.settlements import shop

OPERATIONS, ORDERS, PAYOUTS = 5_000, 600, 1_000
DOCUMENT = Path(__file__).parents[2] / "docs" / "operating.md"
TABLES = """
SELECT c.oid::regclass::text AS part, coalesce(pg_partition_root(c.oid), c.oid)::regclass::text AS name
  FROM pg_class c WHERE c.relnamespace = 'tally'::regnamespace AND c.relkind = 'r'
"""
# The pages that hold rows, indexes and what is stored aside. Not the whole file: a busy server takes up to half a
# megabyte of pages ahead.
SIZE = """
SELECT current_setting('block_size')::bigint * (SELECT count(DISTINCT (ctid::text::point)[0]) FROM ONLY {part})
     + pg_indexes_size('{part}') + coalesce((SELECT pg_relation_size(reltoastrelid) FROM pg_class
                                              WHERE oid = '{part}'::regclass AND reltoastrelid <> 0), 0)
"""
# Below this a table's own pages are more than what was written to it.
LEAST_BYTES = 20
# A document that is further from what is measured is old. Who writes beside whom decides how full pages get: some per
# cent from run to run.
MOST_APART, LEAST_APART_BYTES = 0.25, 60
IN_ALL = "in all"
# Rows that are changed in place: they have a few pages, and then no more.
IN_PLACE = {
    "account",
    "sku",
    "order_count",
    "settlement_count",
    "compensation_time",
    "tenant_secret",
    "installation_secret",
}


async def sizes(dsn: str) -> Counter[str]:
    connection = await asyncpg.connect(dsn)
    found: Counter[str] = Counter()
    try:
        for part, name in await connection.fetch(TABLES):
            found[name.removeprefix("tally.")] += await connection.fetchval(SIZE.format(part=part))
    finally:
        await connection.close()
    return found


async def grown(dsn: str, before: Counter[str], count: int) -> dict[str, int]:
    after = await sizes(dsn)
    per = {name: round((size - before[name]) / count) for name, size in after.items()}
    return {
        name: size
        for name, size in sorted(per.items(), key=lambda one: -one[1])
        if size >= LEAST_BYTES and name not in IN_PLACE
    }


@pytest.fixture
async def one(embedded18: servers.Postgres, control: Control) -> AsyncIterator[Till]:
    dsn = embedded18.fresh_database()
    await let_none_clean_up(dsn)
    async with till(dsn, control) as opened:
        yield opened


async def let_none_clean_up(dsn: str) -> None:
    """Autovacuum comes when it comes: room that it finds in the middle of a count is used again, and not measured."""
    connection = await asyncpg.connect(dsn)
    try:
        for part, _ in await connection.fetch(TABLES):
            await connection.execute(f"ALTER TABLE {part} SET (autovacuum_enabled = false)")
    finally:
        await connection.close()


def told(what: str) -> dict[str, int]:
    """What the document says of an event: bytes by table, and in all."""
    rows = re.findall(r"^\| `?(?:tally\.)?(in all|\w+)`? \|(.*)\|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    (columns,) = [cells for name, cells in rows if name == "table" and "payout" in cells]
    place = [cell.strip() for cell in columns.split("|")].index(what)
    cells = {name: cells.split("|")[place].strip().replace(",", "") for name, cells in rows if cells.count("|") == 3}
    return {name: int(cell) for name, cell in cells.items() if cell.isdecimal()}


async def test_the_document_says_what_grows_and_by_how_much(
    one: Till, record_property: Callable[[str, object], None]
) -> None:
    for what, (count, work) in {
        "operation": (OPERATIONS, _operate),
        "order": (ORDERS, _sell),
        "payout": (PAYOUTS, _pay_out),
    }.items():
        before = await sizes(one.dsn)
        await work(one, count)
        found = await grown(one.dsn, before, count)
        assert sum(found.values()) > 500, what
        shown = ", ".join(f"{name} {size}" for name, size in found.items())
        record_property("counted", f"bytes by {what}: {sum(found.values()):,} ({shown})")
        found[IN_ALL] = sum(found.values())
        said = told(what)
        assert found.keys() == said.keys(), what
        assert said[IN_ALL] == sum(said.values()) - said[IN_ALL], f"{what}: the column is not its sum"
        old = {
            name: (said[name], size)
            for name, size in found.items()
            if abs(size - said[name]) > max(LEAST_APART_BYTES, MOST_APART * size)
        }
        assert old == {}, f"docs/operating.md says otherwise of {what}: (told, measured)"
    assert await broken(one.dsn) == {}


async def _operate(one: Till, count: int) -> None:
    for name in ("a", "b"):
        await account.put(one.service.database, one.tenant, name, currency="EUR", floor_micros=None, limits=())
    move = Transfer(debit="a", credit="b", amount_micros=1, currency="EUR")
    done = await one.service.engine.submit_many(one.tenant, [(move, f"move-{number:08d}") for number in range(count)])
    assert all(isinstance(outcome, Committed) for outcome in done)


async def _sell(one: Till, count: int) -> None:
    await one.service.orders.set_stock(one.tenant, "lamp", count)
    for number in range(count):
        wish = OrderReserved(sku="lamp", quantity=1, amount_micros=5_000_000, currency="EUR")
        made = await one.service.orders.reserve(one.tenant, wish, f"order-{number:08d}")
        assert isinstance(made, Reserved)
        view = made.view
        paid = await one.service.payments.pay(
            one.tenant,
            view.id,
            view.reservation_token,
            payment_method=CARD,
            idempotency_key=f"pay-{number:08d}",
        )
        assert isinstance(paid, Paying), paid
    for event in one.told():
        assert await one.deliver(event) == 200
    while (await one.service.events.run_once()).claimed:
        pass


async def _pay_out(one: Till, count: int) -> None:
    async with shop(one.dsn, one.control) as payer:
        await payer.create_many(count)
        ticked = await payer.tick()
        assert ticked.transferred == count
