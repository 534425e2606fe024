"""Tenants and their API keys on PostgreSQL.

A key is shown once, when it is made; the database keeps its digest and its first characters.
"""

import hashlib
import secrets
from datetime import datetime
from typing import Final, cast

import msgspec

from tallystick.access.api_key import with_checksum
from tallystick.audit.author import BOOTSTRAP, UNKNOWN, by_key
from tallystick.commit.port import Contended, plain_errors
from tallystick.database.pool import Database
from tallystick.errors import Misconfigured, require
from tallystick.ledger.claims import Tenant

ROLES = ("admin", "operator", "approver", "viewer", "auditor")
_PREFIX_LENGTH = 12


class Access(msgspec.Struct, frozen=True):
    """Whom a key speaks for, and as what."""

    tenant: Tenant
    role: str
    prefix: str
    owner: str = UNKNOWN

    @property
    def author(self) -> str:
        """Who does what is done with this key."""
        return by_key(self.owner, self.prefix)


class KeyView(msgspec.Struct, frozen=True):
    """An API key without the key."""

    prefix: str
    role: str
    owner: str
    created_at: datetime
    revoked_at: datetime | None


def new_key() -> str:
    """256 random bits, marked as ours so that scanners for leaked secrets can find them, with a checksum."""
    return with_checksum(secrets.token_urlsafe(32))


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


_ADD_KEY: Final = (
    "INSERT INTO tally.api_key (tenant_id, prefix, digest, role, owner) VALUES ($1, $2, $3, $4, $5) "
    "ON CONFLICT (digest) DO NOTHING"
)


async def add_key(database: Database, tenant: Tenant, role: str, key: str, *, owner: str = UNKNOWN) -> str:
    """Store a key's digest; returns the prefix by which it is known. Adding the same key again changes nothing.

    `owner` is the person or service that uses it; who is unknown can approve nothing. Journaled.
    """
    prefix = key[:_PREFIX_LENGTH]
    with plain_errors():
        try:
            async with database.writing() as connection:
                await connection.execute(_ADD_KEY, tenant.number, prefix, _digest(key), role, owner)
        except Contended as error:
            raise _taken(tenant, prefix, error) from error
    return prefix


async def replace_bootstrap_key(database: Database, tenant: Tenant, key: str) -> bool:
    """Have this be the only key that belongs to nobody but the installation. False: it was revoked, and stays so.

    Journaled. In one commit: at no moment are both good, or neither.
    """
    prefix = key[:_PREFIX_LENGTH]
    with plain_errors():
        try:
            async with database.writing() as connection:
                await connection.execute(_ADD_KEY, tenant.number, prefix, _digest(key), "admin", BOOTSTRAP)
                is_good = await connection.fetchval(
                    "SELECT revoked_at IS NULL FROM tally.api_key WHERE digest = $1", _digest(key)
                )
                if is_good:
                    await connection.execute(
                        "UPDATE tally.api_key SET revoked_at = now() WHERE tenant_id = $1 AND owner = $2 "
                        "AND digest <> $3 AND revoked_at IS NULL",
                        tenant.number,
                        BOOTSTRAP,
                        _digest(key),
                    )
        except Contended as error:
            raise _taken(tenant, prefix, error) from error
    return bool(is_good)


async def revoke_key(database: Database, tenant: Tenant, prefix: str) -> bool:
    """False: there is no such key, or it was revoked before. Journaled."""
    async with database.stepping() as connection:
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
            "SELECT prefix, role, owner, created_at, revoked_at FROM tally.api_key ORDER BY created_at"
        )
    return [KeyView(*row) for row in rows]


async def access(database: Database, key: str, *, aside: str = "keys") -> Access | None:
    """Whom this key speaks for; None: nobody. Read as the owner: the tenant is not known before.

    `aside`: on a connection that nothing else but look-ups of this name waits for.
    """
    async with database.aside(aside) as connection:
        row = await connection.fetchrow(
            "SELECT t.tenant_id, t.name, k.role, k.prefix, k.owner "
            "FROM tally.api_key k JOIN tally.tenant t USING (tenant_id) WHERE k.digest = $1 AND k.revoked_at IS NULL",
            _digest(key),
        )
    if row is None:
        return None
    return Access(Tenant(row["tenant_id"], row["name"]), row["role"], row["prefix"], row["owner"])


def _taken(tenant: Tenant, prefix: str, error: Contended) -> Exception:
    """Why a key could not be added: somebody holds the row, or another key begins like it."""
    if error.held:
        return error
    return Misconfigured(
        f"Another key of tenant {tenant.name} begins with {prefix!r}. Choose one that begins differently."
    )
