"""submit() and create_settlement() inside a caller's own open transaction, on his asyncpg connection.

The caller commits or rolls back. Until then he holds the accounts and, by an advisory lock, the key: lanes step
around both (`try_keys`), so a slow caller delays only those who need the same money.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import asyncpg

from tallystick.audit import author
from tallystick.commit.group import SetAside
from tallystick.commit.port import Contended
from tallystick.errors import CallerTransaction, InFlight, require
from tallystick.keys.derived import operation_id
from tallystick.ledger.batch import run
from tallystick.ledger.claims import Answer, Claim, Tenant
from tallystick.ledger.flow import outcome
from tallystick.ledger.outcome import Committed, Outcome, Rejected
from tallystick.ledger.store import PostgresTransaction
from tallystick.settings import LIMITS
from tallystick.settlement import store as settlement
from tallystick.settlement.store import Made, Wish

_SITUATION = """
SELECT extract(epoch FROM clock_timestamp() - now())::float8,
       row_security_active('tally.account') AND NOT EXISTS (
           SELECT FROM pg_policy p CROSS JOIN LATERAL unnest(p.polroles) AS r (oid)
            WHERE p.polrelid = 'tally.account'::regclass AND p.polname = 'service' AND pg_has_role(r.oid, 'USAGE')),
       (SELECT name FROM tally.tenant WHERE tenant_id = $1),
       (SELECT setting::integer FROM pg_settings WHERE name = 'lock_timeout'),
       current_setting('server_version_num')::integer
"""
_UNDO = "ROLLBACK TO SAVEPOINT tally_submit; RELEASE SAVEPOINT tally_submit"
_TRANSACTION_TIMEOUT_SINCE = 170_000
# Somebody else is at it: the same call may be made again.
_RUN_AGAIN = (asyncpg.LockNotAvailableError, asyncpg.UniqueViolationError, Contended)

T = TypeVar("T")


async def submit(connection: asyncpg.Connection, claim: Claim) -> Outcome:
    """Decide and record within the caller's transaction. A refusal or an error leaves his transaction usable."""

    async def act() -> tuple[Answer | SetAside, bool]:
        transaction = PostgresTransaction(connection)
        await transaction.hold(claim.tenant, claim.id)
        (answer,) = await run(transaction, [claim], patient=True)
        return answer, isinstance(answer, Committed)

    answer = await _within(connection, claim.tenant, act)
    require(not isinstance(answer, SetAside), "a patient run set an item aside")
    return outcome(answer)  # type: ignore[arg-type]


async def create_settlement(connection: asyncpg.Connection, wish: Wish) -> Made | Rejected:
    """Promise a payout within the caller's transaction: his rows, the debit of its source, the payout; or nothing."""

    async def act() -> tuple[Made | Rejected | SetAside, bool]:
        await PostgresTransaction(connection).hold(wish.tenant, operation_id(wish.tenant.name, wish.key))
        (answer,) = await settlement.create(connection, [wish])
        return answer, isinstance(answer, Made) and answer.is_new and not answer.is_replayed

    answer = await _within(connection, wish.tenant, act)
    if isinstance(answer, SetAside):
        raise InFlight(LIMITS.lock_wait_seconds)
    return answer


async def _within(connection: asyncpg.Connection, tenant: Tenant, act: Callable[[], Awaitable[tuple[T, bool]]]) -> T:
    """Run it in the caller's transaction. It also tells whether it wrote anything."""
    if not connection.is_in_transaction():
        message = "connection=... needs an open transaction: use `async with connection.transaction():`."
        raise CallerTransaction(message)
    await _look_at(connection, tenant)
    # A savepoint: what fails here must not take the caller's own rows with it.
    await connection.execute("SAVEPOINT tally_submit")
    try:
        answer, has_written = await act()
    except BaseException as error:
        await _undo(connection)
        if isinstance(error, _RUN_AGAIN) or getattr(error, "sqlstate", None) in settlement.OTHER_POLICIES:
            raise InFlight(LIMITS.lock_wait_seconds) from error
        raise
    # What wrote nothing holds nothing: the account and the key are free for others again. This is finished even
    # when the caller gives up meanwhile: the operation is then whole, in his transaction and under its key.
    await _whatever_happens(connection.execute("RELEASE SAVEPOINT tally_submit" if has_written else _UNDO))
    return answer


async def _whatever_happens(ending: Coroutine[Any, Any, str]) -> None:
    task = asyncio.ensure_future(ending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _undo(connection: asyncpg.Connection) -> None:
    """Half an operation must never be committed with the caller's rows, however it was cut off."""
    try:
        await connection.execute(_UNDO)
    except BaseException:
        connection.terminate()
        raise


async def _look_at(connection: asyncpg.Connection, tenant: Tenant) -> None:
    """Refuse a transaction that is too old, that cannot see the tables, or that is in another database."""
    try:
        row = await connection.fetchrow(_SITUATION, tenant.number)
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.InsufficientPrivilegeError) as error:
        message = f"This connection does not reach the ledger's tables: {error}. Nothing was recorded."
        raise CallerTransaction(message) from error
    require(row is not None, "one row of facts was asked for")
    age, is_blind, name, lock_timeout, server = row  # type: ignore[misc]
    limit = LIMITS.caller_transaction_seconds
    if age > limit:
        message = (
            f"The caller's transaction is older than {limit:g} s. Nothing was recorded. Roll it back and begin a "
            f"new one: an old transaction holds money that others wait for."
        )
        raise CallerTransaction(message)
    if is_blind or name != tenant.name:
        message = (
            "This connection is not the ledger's: another database, or a role that row-level security blinds. "
            "Nothing was recorded. Connect to the same database as a member of the service's role, or as the owner."
        )
        raise CallerTransaction(message)
    ours = int(LIMITS.lock_wait_seconds * 1000)
    milliseconds = int(limit * 1000)
    settings = f"SET LOCAL lock_timeout = {min(ours, lock_timeout or ours)}"
    settings += f"; SET LOCAL tally.author = {author.written(author.current())}"
    settings += f"; SET LOCAL idle_in_transaction_session_timeout = {milliseconds}"
    if server >= _TRANSACTION_TIMEOUT_SINCE:
        settings += f"; SET LOCAL transaction_timeout = {milliseconds}"
    await connection.execute(settings)
