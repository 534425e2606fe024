"""Who may do what in the database.

owner     owns schema, tables and rules; `tally migrate` runs as it, and nothing else has to
service   a role without a login (`tallystick_service`): works on the rows, and can neither change a rule, switch off a
          trigger, nor touch what is only added to. The service's own user is made a member of it
reader    `tallystick_reader`, which reads for one tenant, behind row-level security

Privileges follow from the tables' own rules: a table that is added later has the right ones after `tally migrate`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from tallystick import queries
from tallystick.database.patience import patiently
from tallystick.database.pool import Connection
from tallystick.errors import Misconfigured
from tallystick.settings import LIMITS

_SQL: Final = queries.load(__package__, "roles.sql")
# Nothing of ours deletes these, and no trigger of theirs says so: who is a tenant, and what must not be forgotten.
_NEVER_DELETED: Final = ("tenant", "api_key", "whereabouts", "orphan", "webhook_body_detached", "outbox", "relayed")
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Granted:
    """What a service's role may do, and whose tables they are. `note`: why there is no such role."""

    owner: str
    service: str
    # Tables by what may be done to them.
    privileges: tuple[tuple[str, tuple[str, ...]], ...] = ()
    note: str | None = None


async def grant_service(connection: asyncpg.Connection, service: str) -> Granted:
    """Make the service's role unless it is there, and give it what it lacks. Runs as the owner; safe to repeat.

    Where the owner may not make roles nothing is granted, and the note says what an administrator can run.
    """
    owner = await connection.fetchval("SELECT current_user::text")
    try:
        await _ensure_role(connection, service)
        await patiently(f"grants to {service}", lambda: _grant(connection, service))
    except asyncpg.InsufficientPrivilegeError as error:
        note = (
            f"{error}. The role {service} is not there or not complete; the service can go on as {owner}. For one that "
            f"cannot change the rules, have an administrator run: CREATE ROLE {_quoted(service)} NOLOGIN; GRANT "
            f"{_quoted(service)}, tallystick_reader TO {_quoted(owner)} WITH ADMIN OPTION; then `tally migrate` again."
        )
        return Granted(owner, service, note=note)
    by_privileges: dict[str, list[str]] = {}
    for row in await connection.fetch(_SQL["wanted"], _NEVER_DELETED):
        by_privileges.setdefault(", ".join(row["privileges"]), []).append(row["name"])
    return Granted(owner, service, tuple((name, tuple(tables)) for name, tables in sorted(by_privileges.items())))


async def might(connection: Connection, service: str | None) -> str | None:
    """For a service that starts: what its role could do that it need not, and which to use instead. None: nothing."""
    row = await connection.fetchrow(_SQL["might"], service)
    if row is None or not (row["is_superuser"] or row["is_owner"]):
        return None
    what = "is a superuser" if row["is_superuser"] else "owns the tables"
    if service is None:
        made = "Name one that cannot in TALLY_SERVICE_ROLE, and run `tally migrate`, which grants it what it needs"
        service = "that role"
    elif row["has_service"]:
        made = f"`tally migrate` made {service}, which cannot"
    else:
        made = f"`tally migrate` makes {service}, which cannot; it is not there yet"
    return (
        f"The service works as {row['name']}, which {what}: it could change every rule and switch off every trigger. "
        f"{made}. Have it connect as a member: CREATE ROLE tally_app LOGIN PASSWORD '...' IN ROLE {service}; and name "
        "tally_app in TALLY_DATABASE_URL."
    )


async def _ensure_role(connection: asyncpg.Connection, service: str) -> None:
    found = await connection.fetchrow(_SQL["role"], service)
    if found is None:
        try:
            await connection.execute(f"CREATE ROLE {_quoted(service)} NOLOGIN NOBYPASSRLS")
        except (asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
            # Another database of this cluster was quicker.
            return
    elif found["is_mighty"] or found["is_owner"]:
        raise Misconfigured(
            f"TALLY_SERVICE_ROLE: {service} owns tables, is a superuser, makes roles or passes row-level security. A "
            f"service under it could change every rule. Nothing was granted; name a role of its own."
        )


async def _grant(connection: asyncpg.Connection, service: str) -> None:
    name = _quoted(service)
    if not await connection.fetchval(_SQL["may_act_as_reader"], service):
        await connection.execute(f"GRANT tallystick_reader TO {name}")
    await connection.execute(f"GRANT USAGE ON SCHEMA tally TO {name}")
    for table, privileges in await _lacking(connection, service):
        await connection.execute(f"GRANT {', '.join(privileges)} ON tally.{_quoted(table)} TO {name}")
    for row in await connection.fetch(_SQL["sequences"], service):
        await connection.execute(f"GRANT USAGE ON SEQUENCE {row['name']} TO {name}")
    for row in await connection.fetch(_SQL["functions"], service):
        await connection.execute(f"GRANT EXECUTE ON FUNCTION {row['name']} TO {name}")
    for row in await connection.fetch(_SQL["unwalled"], service):
        table = _quoted(row["name"])
        # A policy takes the table for itself, for a moment: one at a time, and for no longer than a migration waits.
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{LIMITS.migration_lock_seconds * 1000:.0f}ms'")
            if row["has_policy"]:
                await connection.execute(f"ALTER POLICY service ON tally.{table} TO {name}")
            else:
                await connection.execute(
                    f"CREATE POLICY service ON tally.{table} TO {name} USING (true) WITH CHECK (true)"
                )


async def _lacking(connection: asyncpg.Connection, role: str) -> list[tuple[str, Sequence[str]]]:
    wanted = [
        (row["name"], privilege)
        for row in await connection.fetch(_SQL["wanted"], _NEVER_DELETED)
        for privilege in row["privileges"]
    ]
    tables, privileges = [table for table, _ in wanted], [privilege for _, privilege in wanted]
    return [
        (row["name"], row["privileges"]) for row in await connection.fetch(_SQL["lacking"], role, tables, privileges)
    ]


async def require_sight(connection: asyncpg.Connection) -> None:
    """Raise Misconfigured unless this role sees every row of every table: judging a part would be false comfort."""
    unseen = [row["name"] for row in await connection.fetch(_SQL["unseen"])]
    if unseen:
        role = await connection.fetchval("SELECT current_user::text")
        raise Misconfigured(
            f"The role {role} does not see every row of {_some(unseen)}: it lacks SELECT, or row-level security hides "
            f"rows from it. Nothing was judged or done. Connect as the owner, or as a member of the service's role: "
            f"GRANT tallystick_service TO {_quoted(role)}; (`tally migrate` makes it; TALLY_SERVICE_ROLE is its name)."
        )


async def require_rights(connection: asyncpg.Connection) -> None:
    """Raise Misconfigured unless this role may do all that the service does."""
    role = await connection.fetchval("SELECT current_user::text")
    lacking = await _lacking(connection, role)
    is_reader = await connection.fetchval(_SQL["may_act_as_reader"], role)
    if lacking or not is_reader:
        what = (
            f"lacks {', '.join(lacking[0][1])} on {_some([name for name, _ in lacking])}"
            if lacking
            else ("may not act as tallystick_reader")
        )
        raise Misconfigured(
            f"The role {role} {what}. Nothing was started. Run `tally migrate` as the owner, then: "
            f"GRANT tallystick_service TO {_quoted(role)};"
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"tally.{name}" for name in names[:_SHOWN]) + more


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
