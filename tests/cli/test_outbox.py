"""A follower of the outbox, as a program in any language would be one: it reads, and says how far it has everything."""

import json
from typing import Any

import pytest

from tests import servers
from tests.cli.commands import tally
from tests.database.test_roles import login
from tests.ledgers import fetchval, ledger

THERE = "SELECT count(*) FROM tally.outbox"


@pytest.fixture
async def dsn(embedded18: servers.Postgres) -> str:
    """Two operations and an order's step."""
    found = embedded18.fresh_database()
    async with ledger(found) as one:
        await one.account("a", 100)
        await one.account("b", 7)
    body = """convert_to('{"order": "1"}', 'UTF8')"""
    await fetchval(found, f"INSERT INTO tally.outbox (tenant_id, topic, body) VALUES (1, 'order.paid', {body})")
    return found


def read(dsn: str, name: str, *more: str) -> list[dict[str, Any]]:
    shown = tally("outbox", "read", name, *more, dsn=dsn)
    assert shown.returncode == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


async def test_a_follower_is_told_everything_until_it_says_that_it_has_it(dsn: str) -> None:
    first, second, third = read(dsn, "warehouse")
    assert [row["topic"] for row in (first, second, third)] == ["operation.committed"] * 2 + ["order.paid"]
    assert (first["tenant"], first["body"]["id"], third["body"]) == ("default", first["transaction"], {"order": "1"})
    assert read(dsn, "warehouse", "--limit", "1") == [first]
    for _ in range(2):
        assert tally("outbox", "relayed", "warehouse", second["place"], dsn=dsn).returncode == 0
    assert tally("outbox", "relayed", "warehouse", first["place"], dsn=dsn).returncode == 0
    assert read(dsn, "warehouse") == [third]
    assert read(dsn, "mail") == [first, second, third]
    (listed,) = json.loads(tally("outbox", "list", "--json", dsn=dsn).stdout)
    assert (listed["name"], listed["place"], listed["is_lost"]) == ("warehouse", second["place"], False)


async def test_nobody_has_what_cannot_be_read_yet(dsn: str) -> None:
    """What commits later would be let go unread."""
    for place in (f"{2**63}:1", str(await fetchval(dsn, "SELECT pg_current_xact_id()::text")) + "000:1"):
        refused = tally("outbox", "relayed", "warehouse", place, dsn=dsn)
        assert (refused.returncode, "ahead of everything" in refused.stderr) == (2, True), refused.stderr
    for wrong in ("1", "x:1", "1:2:3", f"{2**64}:1", f"1:{2**63}"):
        assert tally("outbox", "relayed", "warehouse", wrong, dsn=dsn).returncode == 2
    assert tally("outbox", "read", "two words", dsn=dsn).returncode == 2
    assert tally("outbox", "list", dsn=dsn).stdout == ""


async def test_only_the_owner_forgets_a_follower(embedded18: servers.Postgres) -> None:
    dsn = embedded18.empty_database()
    assert tally("migrate", dsn=dsn).returncode == 0
    async with ledger(dsn) as one:
        await one.account("a", 100)
    served = await login(embedded18, dsn, "GRANT tallystick_service TO {user}")
    (row,) = read(served, "warehouse")
    assert tally("outbox", "relayed", "warehouse", row["place"], dsn=served).returncode == 0
    refused = tally("outbox", "forget", "warehouse", dsn=served)
    assert (refused.returncode, "the owner's to decide" in refused.stderr) == (2, True), refused.stderr
    assert [tally("outbox", "forget", "warehouse", dsn=dsn).returncode for _ in range(2)] == [0, 1]
    assert read(served, "warehouse") == [row]
