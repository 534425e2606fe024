"""What the database holds of settlements by itself, attacked by raw SQL as its owner."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from tallystick import queries
from tallystick.keys.derived import settlement_key
from tallystick.settlement.terms import identity
from tests import servers
from tests.ledgers import broken
from tests.providers.worlds import Control
from tests.settlements import Shop, shop

INSERT = (
    "INSERT INTO tally.settlement (tenant_id, id, attribution_id, squad_id, currency, gross_micros, fee_micros,"
    " net_micros, amount_micros, provider, destination, key, created_at)"
    " VALUES (1, $1, $2, 'amber', 'EUR', $3, $4, $5, $6, 'simulator', 'acct_good', $7, now())"
)

VERIFY = queries.load("tallystick.database", "verify.sql")["settlements"]


@pytest_asyncio.fixture(params=["embedded18", "postgres15"])
async def till(request: pytest.FixtureRequest, control: Control) -> AsyncIterator[Shop]:
    server: servers.Server = request.getfixturevalue(request.param)
    async with shop(server.fresh_database(), control) as opened:
        yield opened


@pytest_asyncio.fixture
async def owner(till: Shop) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(till.dsn)
    yield connection
    await connection.close()


def raw(
    attribution: str = "raw", *, net: int = 900, generation: int = 0, tenant: str = "default"
) -> tuple[object, bytes]:
    key = settlement_key(
        tenant=tenant,
        currency="EUR",
        provider="simulator",
        attribution_id=attribution,
        squad_id="amber",
        net_micros=net,
        generation=generation,
    )
    return identity(tenant, attribution, "amber"), key


async def refused(connection: asyncpg.Connection, state: str, statement: str, *arguments: object) -> None:
    with pytest.raises(asyncpg.PostgresError) as raised:
        await connection.execute(statement, *arguments)
    assert raised.value.sqlstate == state, raised.value


async def test_the_database_computes_the_same_identity_and_key(till: Shop, owner: asyncpg.Connection) -> None:
    """Two opinions on one key: whoever recovers from a backup must come to the same."""
    for attribution in ("plain", "a:b|c", "~!@#$%^&*()_+"):
        view = await till.create(attribution, gross_micros=10_005_001)
        row = await owner.fetchrow(
            "SELECT s.id = tally.settlement_id('default', s) AS id, tally.settlement_key('default', s) AS key"
            "  FROM tally.settlement s WHERE attribution_id = $1",
            attribution,
        )
        assert row is not None
        assert row["id"]
        assert row["key"].hex() == view.idempotency_key


WRONG_FEES = (
    (1_000, 0, 1_000, 1_000, "TS006"),  # no fee at all
    (1_000, 99, 901, 900, "TS006"),  # a micro less than the policy
    (1_000, 101, 899, 890, "TS006"),
    (1_000, 100, 901, 900, "23514"),  # net is not gross less fee
    (1_000, 100, 900, 901, "23514"),  # more is sent than is owed
    (1_000, 100, 900, 0, "23514"),
    (1_000, -100, 1_100, 1_100, "23514"),
    (100, 100, 0, 0, "23514"),
)


async def test_no_row_has_another_fee_than_its_tenant_s_policy(till: Shop, owner: asyncpg.Connection) -> None:
    await till.set_fee(percent_ppm=100_000)
    for gross, fee, net, amount, state in WRONG_FEES:
        id_, key = raw(net=net)
        await refused(owner, state, INSERT, id_, "raw", gross, fee, net, amount, key)
    id_, key = raw(net=900)
    await owner.execute(INSERT, id_, "raw", 1_000, 100, 900, 900, key)


async def test_no_row_has_another_identity_or_key_than_its_content_s(till: Shop, owner: asyncpg.Connection) -> None:
    id_, key = raw(net=1_000)
    other_id, other_key = raw("other", net=1_000)
    assert till.tenant.number == 1
    await refused(owner, "TS005", INSERT, other_id, "raw", 1_000, 0, 1_000, 1_000, key)
    await refused(owner, "TS005", INSERT, id_, "raw", 1_000, 0, 1_000, 1_000, other_key)
    await refused(owner, "TS005", INSERT, id_, "raw", 1_000, 0, 1_000, 1_000, raw(net=1_000, generation=1)[1])
    await refused(owner, "TS005", INSERT, id_, "raw", 1_000, 0, 1_000, 1_000, raw(net=1_000, tenant="other")[1])


CHANGES = (
    "gross_micros = gross_micros + 1, net_micros = net_micros + 1",
    "fee_micros = fee_micros + 1, net_micros = net_micros - 1",
    "amount_micros = amount_micros - 1",
    "destination = 'acct_mine'",
    "squad_id = 'mine'",
    "provider = 'stripe'",
    "key = sha256('mine')",
    "generation = generation + 1",
    "tenant_id = 2",
)
JUMPS = (
    ("pending", "status = 'transferred', transfer_id = 'tr_x'", "TS004"),
    ("pending", "status = 'failed', reason = 'x'", "TS004"),
    ("pending", "status = 'processing', due_at = now(), processing_since = now()", "TS004"),
    ("transferred", "status = 'pending'", "TS004"),
    ("transferred", "status = 'processing'", "TS004"),
    ("transferred", "status = 'failed', reason = 'x'", "TS004"),
    ("transferred", "claim_number = 0", "TS004"),
    ("transferred", "transfer_id = NULL", "23514"),
    ("transferred", "status = 'disputed', reason = NULL", "23514"),
    ("transferred", "provider = 'stripe'", "TS004"),
    ("transferred", "number = 99", "TS004"),
)


async def test_what_a_settlement_is_never_changes(till: Shop, owner: asyncpg.Connection) -> None:
    await till.create("a")
    for change in CHANGES:
        await refused(owner, "TS004", f"UPDATE tally.settlement SET {change}")


async def test_no_state_is_reached_but_by_its_steps(till: Shop, owner: asyncpg.Connection) -> None:
    await till.create("a")
    for status, change, state in JUMPS:
        if status == "transferred":
            await till.tick()
        assert await owner.fetchval("SELECT status FROM tally.settlement_state") == status
        await refused(owner, state, f"UPDATE tally.settlement_state SET {change}")


async def test_nothing_of_a_settlement_is_deleted(till: Shop, owner: asyncpg.Connection) -> None:
    await till.create("a")
    for table in ("settlement", "settlement_state", "settlement_event", "approval", "reply"):
        await refused(owner, "TS004", f"DELETE FROM tally.{table}")
        await refused(owner, "TS004", f"TRUNCATE tally.{table} CASCADE")


async def test_a_second_live_key_for_one_settlement_is_impossible(till: Shop, owner: asyncpg.Connection) -> None:
    """An operator who sends it again under a key of his own would pay it twice."""
    await till.create("a")
    await till.tick()
    with pytest.raises(asyncpg.UniqueViolationError, match="one_live_key"):
        await owner.execute(
            "INSERT INTO tally.intent (tenant_id, provider, key, purpose, instruction, account, subject)"
            " SELECT tenant_id, provider, sha256('mine'), purpose, instruction, account, subject FROM tally.intent"
        )
    await refused(owner, "TS004", "UPDATE tally.intent SET ended = true")
    await refused(owner, "TS004", "UPDATE tally.intent SET subject = NULL")


async def test_one_person_cannot_approve_what_he_asked_for(till: Shop, owner: asyncpg.Connection) -> None:
    await till.create("a")
    await owner.execute(
        "INSERT INTO tally.approval (tenant_id, id, subject, action, generation, reason, evidence, asked_by)"
        " SELECT tenant_id, gen_random_uuid(), id, 'new_generation', 1, 'r', 'e', 'ann' FROM tally.settlement"
    )
    decide = "UPDATE tally.approval SET decision = 'approved', decided_by = $1, decided_at = now()"
    await refused(owner, "23514", decide, "ann")
    await refused(owner, "TS004", "UPDATE tally.approval SET asked_by = 'bob'")
    await owner.execute(decide, "bob")
    await refused(owner, "TS004", decide, "cyd")
    # Approved, and yet no final failure: still no other key.
    new = raw("a", net=12_340_000, generation=1)[1]
    await refused(owner, "TS004", "UPDATE tally.settlement SET generation = 1, key = $1", new)


async def test_policies_change_only_in_the_open(till: Shop, owner: asyncpg.Connection) -> None:
    await till.set_fee(percent_ppm=1)
    await till.set_fee(percent_ppm=2)
    journaled = await owner.fetch("SELECT body FROM tally.journal WHERE subject = 'settlement.policy' ORDER BY number")
    assert [b'"percent_ppm": %d' % ppm in row["body"] for row, ppm in zip(journaled, (1, 2), strict=True)] == [
        True,
        True,
    ]
    assert await broken(till.dsn) == {}


async def test_verify_sees_money_that_is_not_where_a_state_says(till: Shop) -> None:
    view = await till.create("a")
    await till.tick()
    assert await broken(till.dsn) == {}
    connection = await asyncpg.connect(till.dsn.replace("tally@", "postgres@"))
    try:
        for damage in (
            "UPDATE tally.settlement_state SET status = 'failed', reason = 'x'",
            "UPDATE tally.settlement_state SET transfer_id = 'tr_other'",
            "UPDATE tally.settlement SET key = sha256('mine')",
            "UPDATE tally.settlement SET amount_micros = amount_micros - 10000",
            "DELETE FROM tally.settlement_state",
        ):
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(damage)
            ((count, _checked),) = await connection.fetch(VERIFY)
            await transaction.rollback()
            assert count > 0, damage
    finally:
        await connection.close()
    assert (await till.read(view.id)).status == "transferred"
