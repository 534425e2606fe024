"""Transactions on PostgreSQL, read back by their id."""

from asyncpg.pgproto.pgproto import UUID

from tallystick.database.pool import Database
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected, transaction_id


async def read(database: Database, tenant: Tenant, name: str) -> bytes | Rejected:
    """The recorded answer of a transaction, to the byte."""
    id_ = transaction_id(name)
    if id_ is not None:
        async with database.reading(tenant.number) as connection:
            body = await connection.fetchval(
                "SELECT body FROM tally.operation WHERE tenant_id = $1 AND id = $2", tenant.number, UUID(id_)
            )
        if body is not None:
            return bytes(body)
    return Rejected(
        "transaction_unknown",
        f"There is no transaction {name!r:.80}.",
        "Use the id that the first call returned (tx_ and 32 hexadecimal digits).",
    )
