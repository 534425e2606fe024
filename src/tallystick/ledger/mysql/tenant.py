"""Tenants on MariaDB and MySQL."""

from typing import cast

from tallystick.commit.port import plain_errors
from tallystick.errors import require
from tallystick.ledger.claims import Tenant
from tallystick.ledger.mysql.database import Database


async def find_tenant(database: Database, name: str) -> Tenant | None:
    """The tenant of that name."""
    async with database.reading() as session:
        found = await session.rows("SELECT tenant_id FROM tally_tenant WHERE name = %s", name)
    return Tenant(found[0][0], name) if found else None


async def ensure_tenant(database: Database, name: str) -> Tenant:
    """The tenant of that name, made if it is new."""
    with plain_errors():
        async with database.writing() as session:
            # Not IGNORE, which would also forgive a name that is none.
            await session.execute(
                "INSERT INTO tally_tenant (name) VALUES (%s) ON DUPLICATE KEY UPDATE name = name", name
            )
    tenant = await find_tenant(database, name)
    require(tenant is not None, f"tenant {name} was made and is not there")
    return cast("Tenant", tenant)
