"""submit() inside a caller's own open transaction, on his asyncpg connection.

The caller commits or rolls back. Until then he holds the accounts and, by an advisory lock, the key: lanes step
around both (`try_keys`), so a slow caller delays only those who need the same money.
"""

import asyncpg

from tallystick.core.idempotency import Claim
from tallystick.core.outcome import Committed, Outcome
from tallystick.engine.batch import run
from tallystick.engine.engine import outcome
from tallystick.engine.group_commit import SetAside
from tallystick.errors import CallerTransaction, InFlight, require
from tallystick.settings import LIMITS
from tallystick.store.operation import PostgresTransaction

_AGE = "SELECT extract(epoch FROM clock_timestamp() - now())"
_UNDO = "ROLLBACK TO SAVEPOINT tally_submit; RELEASE SAVEPOINT tally_submit"
_TRANSACTION_TIMEOUT_SINCE = 17


async def submit(connection: asyncpg.Connection, claim: Claim) -> Outcome:
    """Decide and record within the caller's transaction. A refusal or an error leaves his transaction usable."""
    if not connection.is_in_transaction():
        message = "submit(connection=...) needs an open transaction: use `async with connection.transaction():`."
        raise CallerTransaction(message)
    await _bound_age(connection)
    # A savepoint: what fails here must not take the caller's own rows with it.
    await connection.execute("SAVEPOINT tally_submit")
    try:
        transaction = PostgresTransaction(connection)
        await transaction.hold(claim)
        (answer,) = await run(transaction, [claim], patient=True)
    except (asyncpg.LockNotAvailableError, asyncpg.UniqueViolationError) as error:
        await connection.execute(_UNDO)
        raise InFlight(LIMITS.lock_wait_seconds) from error
    except asyncpg.PostgresError:
        await connection.execute(_UNDO)
        raise
    # What wrote nothing holds nothing: the account and the key are free for others again.
    await connection.execute("RELEASE SAVEPOINT tally_submit" if isinstance(answer, Committed) else _UNDO)
    require(not isinstance(answer, SetAside), "a patient run set an item aside")
    return outcome(answer)  # type: ignore[arg-type]


async def _bound_age(connection: asyncpg.Connection) -> None:
    limit = LIMITS.caller_transaction_seconds
    if await connection.fetchval(_AGE) > limit:
        message = (
            f"The caller's transaction is older than {limit:g} s. Nothing was recorded. Roll it back and begin a "
            f"new one: an old transaction holds money that others wait for."
        )
        raise CallerTransaction(message)
    milliseconds = int(limit * 1000)
    settings = f"SET LOCAL lock_timeout = {int(LIMITS.lock_wait_seconds * 1000)}"
    settings += f"; SET LOCAL idle_in_transaction_session_timeout = {milliseconds}"
    if connection.get_server_version().major >= _TRANSACTION_TIMEOUT_SINCE:
        settings += f"; SET LOCAL transaction_timeout = {milliseconds}"
    await connection.execute(settings)
