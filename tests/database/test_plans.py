"""Plans are made once for each connection, often while the tables are empty: they must not read whole tables later."""

import re

import asyncpg
import pytest

from tallystick import queries
from tests import servers

# What a plan for few rows may say that would look at all of many.
READS_EVERYTHING = ("Seq Scan", "BitmapAnd", "Materialize", "Join Filter", "Hash Join", "Merge Join")
# Found by the tenant alone: nothing where there is one row for each, everything where there are many.
ALL_OF_A_TENANT = re.compile(r"on (?!tenant |checkout_policy )\w+ \w+\n *Index Cond: \(tenant_id = [^()]*\)(?:\n|$)")
# What tenants' own reads are made of; the rest is asked by the owner alone, whom no policy adds a tenant to.
READ_BY_TENANTS = ("order_with_payment",)
# What takes locks, or reads what no tenant may: the reader's role cannot even plan it.
OWNERS_ALONE = ("overdue", "oldest", "hold")
# File and name of a statement, and the types of its parameters.
PROBES = (
    ("checkout/payment/store.sql", "order_with_payment", "integer, uuid[]"),
    ("checkout/payment/store.sql", "newest", "text, uuid[], text"),
    ("checkout/order/store.sql", "stocks", "text, text"),
    ("checkout/saga/finding.sql", "charges_by_id", "text, text"),
    ("checkout/saga/finding.sql", "charges_by_key", "text[], bytea[], bytea[]"),
    ("checkout/refund/store.sql", "by_id", "text, text"),
    ("checkout/refund/store.sql", "by_key", "text[], bytea[], bytea[]"),
    ("checkout/refund/store.sql", "by_payment", "text[], text[], bigint[], text[]"),
    ("checkout/status/store.sql", "marks", "integer[], uuid[]"),
    ("checkout/order/store.sql", "overdue", "interval, bigint, timestamptz, uuid[], timestamptz"),
    ("checkout/order/store.sql", "charged", "integer[], uuid[]"),
    ("checkout/watermark/store.sql", "oldest", "timestamptz"),
    ("checkout/release/store.sql", "hold", "interval, timestamptz, bigint"),
)


@pytest.mark.parametrize("engine", ["embedded18", "postgres15"])
@pytest.mark.parametrize(("path", "name", "types"), PROBES)
async def test_rows_are_found_by_an_index_each(
    request: pytest.FixtureRequest, engine: str, path: str, name: str, types: str
) -> None:
    server: servers.Server = request.getfixturevalue(engine)
    folder, _, file = path.rpartition("/")
    statement = queries.load(f"tallystick.{folder.replace('/', '.')}", file)[name]
    nothing = ", ".join(["NULL"] * len(types.split(",")))
    connection = await asyncpg.connect(server.fresh_database())
    try:
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        for role in ("NONE",) if name in OWNERS_ALONE else ("NONE", "tallystick_reader"):
            await connection.execute(f"SET ROLE {role}; PREPARE probe ({types}) AS {statement}")
            rows = await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE probe ({nothing})")
            plan = "\n".join(row[0] for row in rows)
            assert not [words for words in READS_EVERYTHING if words in plan], plan
            if role == "NONE" or name in READ_BY_TENANTS:
                assert not ALL_OF_A_TENANT.search(plan), plan
            await connection.execute("DEALLOCATE probe")
    finally:
        await connection.close()
