"""Tenants and their API keys on PostgreSQL.

A key is shown once, when it is made; the database keeps its digest and its first characters.
"""

import hashlib
import secrets
from datetime import datetime
from typing import cast

import asyncpg
import msgspec

from tallystick.core.idempotency import Tenant
from tallystick.errors import Misconfigured, require
from tallystick.store.database import Database

ROLES = ("admin", "operator", "approver", "viewer", "auditor")
_PREFIX_LENGTH = 12


class Access(msgspec.Struct, frozen=True):
    """Whom a key speaks for, and as what."""

    tenant: Tenant
    role: str
    prefix: str


class KeyView(msgspec.Struct, frozen=True):
    """An API key without the key."""

    prefix: str
    role: str
    created_at: datetime
    revoked_at: datetime | None


def new_key() -> str:
    """256 random bits, marked as ours so that scanners for leaked secrets can find them."""
    return "tsk_" + secrets.token_urlsafe(32)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


async def find_tenant(database: Database, name: str) -> Tenant | None:
    """The tenant of that name."""
    async with database.owning() as connection:
        number = await connection.fetchval("SELECT tenant_id FROM tally.tenant WHERE name = $1", name)
    return None if number is None else Tenant(number, name)


async def ensure_tenant(database: Database, name: str) -> Tenant:
    """The tenant of that name, made if it is new."""
    found = await find_tenant(database, name)
    if found is None:
        async with database.owning() as connection:
            await connection.execute("INSERT INTO tally.tenant (name) VALUES ($1) ON CONFLICT (name) DO NOTHING", name)
        found = await find_tenant(database, name)
    require(found is not None, f"tenant {name} was made and is not there")
    return cast("Tenant", found)


async def add_key(database: Database, tenant: Tenant, role: str, key: str) -> str:
    """Store a key's digest; returns the prefix by which it is known. Adding the same key again changes nothing."""
    prefix = key[:_PREFIX_LENGTH]
    try:
        async with database.owning() as connection:
            await connection.execute(
                "INSERT INTO tally.api_key (tenant_id, prefix, digest, role) VALUES ($1, $2, $3, $4) "
                "ON CONFLICT (digest) DO NOTHING",
                tenant.number,
                prefix,
                _digest(key),
                role,
            )
    except asyncpg.UniqueViolationError as error:
        message = f"Another key of tenant {tenant.name} begins with {prefix!r}. Choose one that begins differently."
        raise Misconfigured(message) from error
    return prefix


async def revoke_key(database: Database, tenant: Tenant, prefix: str) -> bool:
    """False: there is no such key, or it was revoked before."""
    async with database.owning() as connection:
        status = await connection.execute(
            "UPDATE tally.api_key SET revoked_at = now() WHERE tenant_id = $1 AND prefix = $2 AND revoked_at IS NULL",
            tenant.number,
            prefix,
        )
    return bool(status == "UPDATE 1")


async def list_keys(database: Database, tenant: Tenant) -> list[KeyView]:
    """The tenant's keys, oldest first."""
    async with database.reading(tenant.number) as connection:
        rows = await connection.fetch(
            "SELECT prefix, role, created_at, revoked_at FROM tally.api_key ORDER BY created_at"
        )
    return [KeyView(*row) for row in rows]


async def access(database: Database, key: str) -> Access | None:
    """Whom this key speaks for; None: nobody. Read as the owner: the tenant is not known before."""
    async with database.owning() as connection:
        row = await connection.fetchrow(
            "SELECT t.tenant_id, t.name, k.role, k.prefix FROM tally.api_key k JOIN tally.tenant t USING (tenant_id) "
            "WHERE k.digest = $1 AND k.revoked_at IS NULL",
            _digest(key),
        )
    return None if row is None else Access(Tenant(row["tenant_id"], row["name"]), row["role"], row["prefix"])
