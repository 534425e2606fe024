"""A person's decision under its key: made once, and answered from then on with what it was answered first."""

from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg
import msgspec
from asyncpg.pgproto import pgproto

from tallystick import queries
from tallystick.authority.rules import OTHER_POLICY
from tallystick.commit.port import Contended, plain_errors
from tallystick.database.pool import Connection, Database
from tallystick.errors import InFlight
from tallystick.keys.derived import operation_id
from tallystick.ledger.claims import Tenant
from tallystick.ledger.kinds import differing_fields
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS

_SQL: Final = queries.load(__package__, "decisions.sql")
_ROUNDS: Final = 5


class Reviewed(msgspec.Struct, frozen=True):
    """A decision that is durable. `body` is what every replay under its key returns."""

    body: bytes
    is_replayed: bool


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person asked for, in the form its key is bound to."""

    subject: str
    action: str
    reason: str
    evidence: str = ""
    transfer_id: str | None = None


class DecisionRefused(Exception):
    """The ledger refuses what a decision would post; nothing of the decision stays."""

    def __init__(self, refusal: Rejected) -> None:
        """As the ledger said it."""
        super().__init__(refusal.code)
        self.refusal = refusal


Act = Callable[[Connection], Awaitable[msgspec.Struct | Rejected]]


async def once(database: Database, tenant: Tenant, key: str, decision: msgspec.Struct, act: Act) -> Reviewed | Rejected:
    """Run a decision once under its key, and keep the answer with it."""
    request = msgspec.json.encode(decision, order="deterministic")
    with plain_errors():
        for _ in range(_ROUNDS):
            try:
                async with database.writing() as connection:
                    known = await _known(connection, tenant, key, request)
                    if known is not None:
                        return known
                    done = await act(connection)
                    if isinstance(done, Rejected):
                        return done
                    body = msgspec.json.encode(done)
                    await connection.execute(_SQL["keep_reply"], tenant.number, key, request, body)
                return Reviewed(body, is_replayed=False)
            except DecisionRefused as refused:
                return refused.refusal
            except Contended:
                continue
            except asyncpg.PostgresError as error:
                # The tenant's policy was changed after we read it.
                if error.sqlstate != OTHER_POLICY:
                    raise
    raise InFlight(LIMITS.lock_wait_seconds)


async def _known(connection: Connection, tenant: Tenant, key: str, request: bytes) -> Reviewed | Rejected | None:
    row = await connection.fetchrow(_SQL["reply"], tenant.number, key)
    if row is not None and row["request"] == request:
        return Reviewed(row["body"], is_replayed=True)
    fields = () if row is None else differing_fields(row["request"], request)
    is_used = row is not None or await connection.fetchval(
        _SQL["is_operation"], tenant.number, pgproto.UUID(operation_id(tenant.name, key))
    )
    if not is_used:
        return None
    return Rejected(
        "key_reused",
        f"The idempotency key {key!r} was used for another request.",
        "Use a new key for a new request, or repeat the first one unchanged.",
        fields,
    )
