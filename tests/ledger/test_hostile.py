"""What a hostile or unlucky caller once got away with, each as a fact that must hold."""

import asyncio
import threading
import time
from typing import Any

import asyncpg
import pytest

import tallystick
from tallystick import sync
from tallystick.access import store as tenant
from tallystick.database.migrate import require_current
from tallystick.errors import (
    Busy,
    CallerTransaction,
    Faulted,
    InFlight,
    Misconfigured,
    SchemaMismatch,
    TallystickError,
)
from tallystick.ledger.account import store as account
from tallystick.ledger.kinds import Hold, Kind, Operation, Release, Transfer
from tallystick.ledger.outcome import Committed, Rejected
from tallystick.ledger.rules import Leg
from tallystick.settings import Limits
from tests import servers
from tests.faults.wire import wire
from tests.ledgers import Ledger, broken, fetchval, ledger


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


def move(debit: str = "a", credit: str = "b", amount: int = 1) -> Transfer:
    return Transfer(debit=debit, credit=credit, amount_micros=amount, currency="USD")


async def held(one: Ledger) -> str:
    """A hold of 50 from `a`; its id."""
    await one.account("a", 100)
    await one.account("b")
    await one.account("h")
    done = await one.submit(Hold(account="a", held="h", amount_micros=50, currency="USD"), "hold")
    assert isinstance(done, Committed)
    return done.transaction.id


@pytest.mark.parametrize("statement", ["INSERT INTO tally.operation", "FOR NO KEY UPDATE", "pg_advisory_xact_lock"])
async def test_a_release_cut_off_in_a_callers_transaction_is_whole_or_nothing(dsn: str, statement: str) -> None:
    """Half of it (the entries without the closing) would let the hold be released again."""
    async with ledger(dsn) as one, tallystick.open(database_url=dsn) as tally:
        name = await held(one)
        connection = await asyncpg.connect(dsn)
        async with connection.transaction():
            call = asyncio.create_task(tally.submit(Release(hold=name), idempotency_key="cut", connection=connection))

            def cut(record: Any) -> None:
                if statement in record.query:
                    call.cancel()

            connection.add_query_logger(cut)
            with pytest.raises(asyncio.CancelledError):
                await call
            connection.remove_query_logger(cut)
            await connection.execute("CREATE TABLE still_usable ()")
        await connection.close()
        kept = await fetchval(dsn, "SELECT count(*) FROM tally.operation WHERE key = 'cut'")
        assert await fetchval(dsn, "SELECT count(*) FROM tally.closing") == kept
        answers = [await one.submit(Release(hold=name), key) for key in ("once", "twice")]
        assert [type(answer) for answer in answers] == [Rejected if kept else Committed, Rejected]
        assert answers[1].code == "already_closed"
        assert await one.balance("a") == 100
    assert await broken(dsn) == {}


async def test_a_transaction_has_one_spelling(dsn: str) -> None:
    """Another spelling passed the look at what is closed, and kept its whole batch busy for ten seconds."""
    async with ledger(dsn) as one:
        name = await held(one)
        assert isinstance(await one.submit(Release(hold=name), "r1"), Committed)
        for spelled in ("tx_" + name[3:].upper(), name[:-2] + "  ", f" {name}", name + "0"):
            odd, neighbour = await asyncio.gather(
                one.submit(Release(hold=spelled), f"odd{spelled!r}".replace(" ", "_")),
                one.submit(move(), f"n{spelled!r}".replace(" ", "_")),
            )
            assert isinstance(odd, Rejected)
            assert odd.code == "transaction_unknown"
            assert isinstance(neighbour, Committed)


class Closing(Operation, frozen=True, tag_field="kind", tag="closing"):
    """Closes a transaction without naming it, so that only the primary key can refuse the second."""

    what: str


async def test_a_kind_that_collides_again_and_again_is_set_apart(dsn: str) -> None:
    kind = Kind(
        Closing,
        lambda _operation, _transactions: ("a", "b"),
        lambda _operation, _reading: [Leg("a", -1, "USD"), Leg("b", 1, "USD")],
        closes=lambda operation: operation.what,
    )
    async with ledger(dsn, kinds=(kind,), limits=Limits(wait_seconds=1.0)) as one:
        name = await held(one)
        assert isinstance(await one.submit(Release(hold=name), "r1"), Committed)
        answers: list[object] = await asyncio.gather(
            one.submit(Closing(what=name), "odd"), one.submit(move(), "neighbour"), return_exceptions=True
        )
        assert isinstance(answers[0], Rejected | InFlight)
        assert isinstance(answers[1], Committed)


async def test_a_cancelled_write_does_not_leak_its_transaction(dsn: str) -> None:
    """The next user of the connection would work inside it, and lose what he was told is done."""
    async with ledger(dsn) as one:
        for number in range(15):
            key = tenant.new_key()
            prefix = await tenant.add_key(one.database, one.tenant, "viewer", key)
            put = asyncio.create_task(
                account.put(one.database, one.tenant, f"x{number}", currency="USD", floor_micros=0, limits=())
            )
            read = asyncio.create_task(account.read(one.database, one.tenant, "world"))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            put.cancel()
            read.cancel()
            await asyncio.gather(put, read, return_exceptions=True)
            assert await tenant.revoke_key(one.database, one.tenant, prefix)
            assert await tenant.access(one.database, key) is None


DAMAGE = [
    ("closings", "DELETE FROM tally.closing"),
    ("closings", "UPDATE tally.closing SET operation_id = closed_id"),
    ("accounts", "UPDATE tally.account SET floor_micros = -5 WHERE id = 'a'"),
    ("accounts", "DELETE FROM tally.velocity_limit"),
    ("accounts", "UPDATE tally.account SET limited = false"),
    ("journal", "UPDATE tally.journal SET body = body || ' ' WHERE subject = 'account'"),
    ("journal", "DELETE FROM tally.journal WHERE operation_id IS NOT NULL"),
    (
        "tenants",
        "INSERT INTO tally.outbox (tenant_id, topic, operation_id) SELECT 1, topic, operation_id FROM tally.outbox",
    ),
    ("one_effect_per_key", "UPDATE tally.account SET currency = 'EUR'"),
    ("one_effect_per_key", "UPDATE tally.operation SET at = at + interval '1 hour'"),
    ("one_effect_per_key", "UPDATE tally.entry SET at = at + interval '1 hour'"),
    ("one_effect_per_key", "UPDATE tally.operation SET key = key || 'x'"),
    ("one_effect_per_key", r"UPDATE tally.operation SET body = '\xff'::bytea"),
    ("balances", "UPDATE tally.account SET posted_at = posted_at + interval '1 hour'"),
    ("balances", "UPDATE tally.entry SET amount_micros = amount_micros * 2"),
    ("balances", "UPDATE tally.entry SET number = number + 1000 WHERE number > 1"),
    ("conservation", "UPDATE tally.entry SET amount_micros = amount_micros + 1 WHERE amount_micros > 0"),
    ("solvency", "UPDATE tally.account SET floor_micros = balance_micros + 1 WHERE id = 'a'"),
    ("tenants", "UPDATE tally.entry SET operation_id = gen_random_uuid()"),
    ("guards", "DROP TRIGGER entry_posted ON tally.entry"),
    ("guards", "ALTER TABLE tally.account DISABLE ROW LEVEL SECURITY"),
]


@pytest.mark.parametrize(("invariant", "statement"), DAMAGE, ids=[statement[:60] for _, statement in DAMAGE])
async def test_verify_sees_the_damage(dsn: str, invariant: str, statement: str) -> None:
    """A check that holds on a damaged ledger is worse than none."""
    async with ledger(dsn) as one:
        name = await held(one)
        await one.submit(Release(hold=name), "release")
        await one.account("slow", limits=(tallystick.VelocityLimit(60, max_count=3),))
    assert await broken(dsn) == {}
    tables = ("operation", "entry", "closing", "journal", "outbox", "account", "velocity_limit")
    connection = await asyncpg.connect(dsn)
    for table in tables:
        await connection.execute(f"ALTER TABLE tally.{table} DISABLE TRIGGER USER")
    if "solvency" in invariant:
        await connection.execute("ALTER TABLE tally.account DROP CONSTRAINT solvency")
    await connection.execute(statement)
    for table in tables:
        await connection.execute(f"ALTER TABLE tally.{table} ENABLE TRIGGER USER")
    await connection.close()
    assert (await broken(dsn)).get(invariant, 0) > 0


async def test_a_memo_that_cannot_be_stored_is_dropped_not_kept(dsn: str) -> None:
    """A user's kind may carry anything; a NUL in an answer would make the books unreadable for good."""

    class Noted(Operation, frozen=True, tag_field="kind", tag="noted"):
        memo: str

    kind = Kind(
        Noted,
        lambda _operation, _transactions: ("a", "b"),
        lambda _operation, _reading: [Leg("a", -1, "USD"), Leg("b", 1, "USD")],
    )
    async with ledger(dsn, kinds=(kind,)) as one:
        await one.account("a", 10)
        await one.account("b")
        done = await one.submit(Noted(memo="a\0b"), "k")
        assert isinstance(done, Committed)
        assert done.transaction.memo is None
    assert await broken(dsn) == {}


async def test_verify_changes_nothing(embedded18: servers.Postgres) -> None:
    dsn = embedded18.empty_database()
    with pytest.raises(SchemaMismatch, match="tally migrate"):
        await require_current(dsn)
    assert await fetchval(dsn, "SELECT count(*) FROM pg_namespace WHERE nspname = 'tally'") == 0


async def test_callers_are_told_while_the_server_is_stuck(dsn: str) -> None:
    """Neither the batch in hand nor those queued behind it may wait without end."""
    limits = Limits(
        lanes=1, transaction_seconds=1.0, connect_seconds=1.0, wait_seconds=1.5, outage_seconds=0.1, sweep_seconds=0.1
    )
    async with wire(dsn) as (cable, address), ledger(address, limits=limits) as one:
        await one.account("a", 10)
        await one.account("b")
        cable.is_frozen = True
        first = asyncio.create_task(one.submit(move(), "first"))
        await asyncio.sleep(0.1)
        behind = asyncio.create_task(one.submit(move(), "behind"))
        async with asyncio.timeout(8):
            answers = await asyncio.gather(first, behind, return_exceptions=True)
        assert all(isinstance(answer, TallystickError) for answer in answers)
        cable.is_frozen = False
        assert isinstance(await one.submit(move(), "later"), Committed)


async def test_an_account_that_cannot_be_hashed_fails_alone(dsn: str) -> None:
    class Odd(Operation, frozen=True, tag_field="kind", tag="odd"):
        """Names a list as an account, and says it checked."""

    kind = Kind(
        Odd,
        lambda _operation, _transactions: ([],),  # type: ignore[arg-type, return-value]
        lambda _operation, _reading: [],
        checks_accounts=True,
    )
    async with ledger(dsn, kinds=(kind,)) as one:
        await one.account("a", 10)
        await one.account("b")
        with pytest.raises(Faulted):
            await one.submit(Odd(), "odd")
        assert isinstance(await one.submit(move(), "after"), Committed)


async def test_an_entry_from_the_future_does_not_open_others_windows(dsn: str) -> None:
    async with ledger(dsn) as one:
        await one.account("f", floor=None)
        await one.account("b", floor=None)
        await one.account("lim", floor=None, limits=(tallystick.VelocityLimit(3600, max_count=1),))
        await fetchval(dsn, "UPDATE tally.account SET posted_at = now() + interval '2 hours' WHERE id = 'f'")
        assert isinstance(await one.submit(move("lim", "b"), "k1"), Committed)
        refused = await one.submit(move("lim", "f"), "k2")
        assert isinstance(refused, Rejected)
        assert refused.code == "velocity_exceeded"


async def test_thousands_blocked_on_one_account_do_not_hold_up_the_others(dsn: str) -> None:
    async with ledger(dsn, limits=Limits(batch=100)) as one:
        await one.account("a", 10_000)
        await one.account("b")
        await one.account("c", 10)
        await one.account("d")
        holder = await asyncpg.connect(dsn)
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("SELECT 1 FROM tally.account WHERE id = 'a' FOR UPDATE")
        blocked = [asyncio.create_task(one.submit(move(), f"blocked{i}")) for i in range(3_000)]
        await asyncio.sleep(1.0)
        began = time.monotonic()
        assert isinstance(await one.submit(move("c", "d"), "free"), Committed)
        waited = time.monotonic() - began
        await transaction.rollback()
        await holder.close()
        answers = await asyncio.gather(*blocked, return_exceptions=True)
        assert waited < 4.0, f"waited {waited:.1f} s behind operations that need another account"
        assert all(isinstance(answer, Committed | InFlight | Busy) for answer in answers)


async def test_a_cancelled_submit_many_leaves_no_leader_behind(dsn: str) -> None:
    async with ledger(dsn) as one:
        await one.account("a", 1_000)
        await one.account("b")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await one.engine.submit_many(one.tenant, [(move(), f"k{i}") for i in range(300)])
        answers = await one.engine.submit_many(one.tenant, [(move(), f"k{i}") for i in range(300)])
        assert not [answer for answer in answers if isinstance(answer, Rejected | TallystickError)]
        await asyncio.sleep(0)
        assert one.engine._leaders == {}
        assert await one.balance("b") == 300


async def test_a_server_that_may_lose_commits_is_made_to_keep_them(dsn: str) -> None:
    name = await fetchval(dsn, "SELECT current_database()")
    await fetchval(dsn, f"ALTER DATABASE {name} SET synchronous_commit = off")
    async with ledger(dsn) as one, one.database.connection() as connection:
        assert await connection.fetchval("SHOW synchronous_commit") == "on"


async def test_a_connection_to_another_ledger_is_refused(dsn: str, embedded18: servers.Server) -> None:
    """Tenant number 2 there is somebody else."""
    other = embedded18.fresh_database()
    async with ledger(dsn, tenant_name="acme"), ledger(other, tenant_name="globex") as theirs:
        await theirs.account("a", 10)
        await theirs.account("b")
        async with tallystick.open(database_url=dsn, tenant="acme") as tally:
            connection = await asyncpg.connect(other)
            async with connection.transaction():
                with pytest.raises(CallerTransaction, match="another database"):
                    await tally.submit(move(), idempotency_key="k", connection=connection)
            await connection.close()


@pytest.mark.parametrize(
    "address",
    ["postgresql://bob:hun/ter2@localhost/x", "postgresql://bob:hun[ter2]@localhost/x", "mysql://bob:hun/ter2@h/x"],
)
async def test_a_malformed_address_does_not_show_its_password(address: str) -> None:
    with pytest.raises(TallystickError) as raised:
        async with tallystick.open(database_url=address):
            pass
    assert "hun" not in str(raised.value)
    assert "ter2" not in str(raised.value)


async def test_a_second_key_with_the_same_beginning_is_refused_not_dropped(dsn: str) -> None:
    async with ledger(dsn) as one:
        await tenant.add_key(one.database, one.tenant, "admin", "tsk_same-beginning-one")
        with pytest.raises(Misconfigured, match="begins with"):
            await tenant.add_key(one.database, one.tenant, "admin", "tsk_same-beginning-two")


def test_leaving_the_synchronous_twin_answers_every_thread(dsn: str) -> None:
    answers: list[object] = []
    with sync.open(database_url=dsn) as tally:
        tally.put_account("a", currency="USD", floor_micros=None)
        tally.put_account("b", currency="USD")

        def work(number: int) -> None:
            for round_ in range(50):
                try:
                    answers.append(tally.submit(move(), idempotency_key=f"k{number}-{round_}"))
                except BaseException as error:  # noqa: BLE001 - whatever it is, it is an answer
                    answers.append(error)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(12)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a thread waits for an answer that cannot come"
    assert len(answers) == 600


def test_a_generator_that_uses_the_twin_does_not_wait_for_itself(dsn: str) -> None:
    with sync.open(database_url=dsn) as tally:
        for name in ("a", "b"):
            tally.put_account(name, currency="USD", floor_micros=None)
        pairs = ((move(), f"k{i}") for i in range(3) if not isinstance(tally.account("a"), Rejected))
        assert [type(answer) for answer in tally.submit_many(pairs)] == [Committed] * 3
    with pytest.raises(TallystickError, match="closed"):
        tally.account("a")


async def test_a_lost_connection_is_not_called_the_handlers_fault(dsn: str) -> None:
    async with ledger(dsn, limits=Limits(outage_seconds=0.2)) as one:
        await one.account("a", 10)
        await one.account("b")
        name = await fetchval(dsn, "SELECT current_database()")
        root = dsn.replace("tally@", "postgres@").replace(f"/{name}", "/postgres")
        await fetchval(root, f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        async with one.database.connection() as connection:
            connection.terminate()
        with pytest.raises(TallystickError) as raised:
            await asyncio.gather(*(one.submit(move(), f"k{i}") for i in range(5)))
        assert not isinstance(raised.value, Faulted)
        await fetchval(root, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert isinstance(await one.submit(move(), "k0"), Committed)
