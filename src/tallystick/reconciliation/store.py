"""Reconciliation on PostgreSQL: which settlements a provider's movements mean, and which it should have shown.

What one run has seen is kept in temporary tables on a connection of its own, so that memory stays flat however long the
list is. Reads as the owner, over all tenants; only the notes below write.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Final, cast
from uuid import UUID

import asyncpg
import msgspec

from tallystick import queries
from tallystick.commit.port import Contended, Lost
from tallystick.database.pool import GONE, Connection, Database
from tallystick.errors import Unreachable
from tallystick.keys.derived import forms_of, reference_bounds
from tallystick.ledger.claims import Tenant
from tallystick.movement.evidence import Evidence
from tallystick.providers.words import Movement, may_have_paid
from tallystick.reconciliation.rules import Here, Meant
from tallystick.settings import LIMITS
from tallystick.settlement.tick.store import add_events, count

_SQL = queries.load(__package__, "store.sql")
# A day's payouts in one statement: longer than a lane's, and no lock is waited for.
_STATEMENT_TIMEOUT: Final = "SET statement_timeout = '10min'"
# Disputed for it already, and counted then.
_KNOWN_DOUBLES: Final = frozenset({"moved_twice", "earlier_generation_moved"})

SubjectName = tuple[int, UUID]


class Cursor(msgspec.Struct, frozen=True):
    """Where a page ended."""

    tenant: int = 0
    number: int = 0


@asynccontextmanager
async def sheet(database: Database) -> AsyncIterator["Sheet"]:
    """A sheet to compare on, thrown away at the end. Raises Unreachable."""
    with _reachable():
        connection = await database.open()
    try:
        with _reachable():
            await connection.execute(_STATEMENT_TIMEOUT)
            await connection.execute(_SQL["prepare"])
        yield Sheet(connection)
    finally:
        try:
            await connection.close(timeout=LIMITS.close_seconds)
        except GONE:
            connection.terminate()


class Sheet:
    """What was seen in one run."""

    def __init__(self, connection: Connection) -> None:
        """Use `sheet`."""
        self._connection = connection

    async def now(self) -> datetime:
        """The database's time."""
        ((now,),) = await self._fetch("now")
        return cast("datetime", now)

    async def forget(self) -> None:
        """Begin with another provider."""
        with _reachable():
            await self._connection.execute(_SQL["forget"])

    async def providers(self) -> list[str]:
        """Every provider that ever had a payout here."""
        return [row["provider"] for row in await self._fetch("providers")]

    async def match(self, provider: str, movements: Sequence[Movement]) -> list[tuple[Movement, Meant]]:
        """What each movement means here. Those that were matched before in this run are left out."""
        fresh = {row["provider_id"] for row in await self._fetch("list", [movement.id for movement in movements])}
        wanted = {movement.id: movement for movement in movements if movement.id in fresh}
        named = await self._by_transfer(provider, list(wanted))
        owners = await self._by_key(provider, wanted, named)
        names = {name for found in named.values() for name, _ in found}
        names |= {owner[0] for owner in owners.values() if owner is not None}
        rows = await self._rows(sorted(names))
        owners = {
            id_: owner
            for id_, owner in owners.items()
            # In an account that is somebody else's he can write whose key he likes.
            if owner is None or owner[0] not in rows or may_have_paid(id_, rows[owner[0]].destination)
        }
        matched = [
            (movement, _meant(owners.get(id_, ()), named.get(id_, ()), rows)) for id_, movement in wanted.items()
        ]
        await self._show(matched)
        return matched

    async def expect(self, provider: str, since: datetime, until: datetime) -> int:
        """Note the transferred payouts that were sent in [since, until). How many there were."""
        noted = 0
        with _reachable():
            for statement in ("expect_sent", "expect_unsent"):
                status = await self._connection.execute(_SQL[statement], provider, since, until)
                noted += int(status.rpartition(" ")[2])
        return noted

    async def unshown(self, after: Cursor, most: int) -> tuple[list[Here], Cursor | None]:
        """A page of expected payouts that were not shown, and where the next begins."""
        found = await self._fetch("unshown", after.tenant, after.number, most)
        rows = await self._rows([(row["tenant_id"], row["id"]) for row in found])
        return list(rows.values()), _next(found, most)

    async def doubles(self, after: Cursor, most: int) -> tuple[list[tuple[Here, list[str]]], Cursor | None]:
        """A page of payouts with more than one movement that did not come back, and where the next begins."""
        found = await self._fetch("doubles", after.tenant, after.number, most)
        rows = await self._rows([(row["tenant_id"], row["id"]) for row in found])
        pairs = [(rows[row["tenant_id"], row["id"]], row["ids"]) for row in found]
        return pairs, _next(found, most)

    async def told(self, here: Here) -> None:
        """That it moved more than once was said: `doubles` need not say it again."""
        with _reachable():
            await self._connection.execute(_SQL["told"], here.tenant.number, here.number)

    async def _by_transfer(self, provider: str, ids: Sequence[str]) -> dict[str, list[tuple[SubjectName, bytes]]]:
        found: dict[str, list[tuple[SubjectName, bytes]]] = {}
        for row in await self._fetch("by_transfer", provider, ids):
            found.setdefault(row["provider_id"], []).append(((row["tenant_id"], row["id"]), row["key"]))
        return found

    async def _by_key(
        self, provider: str, movements: Mapping[str, Movement], named: Mapping[str, list[tuple[SubjectName, bytes]]]
    ) -> dict[str, tuple[SubjectName, bytes] | None]:
        """Whose key each movement bears. None: something's that is no settlement. Absent: nobody's."""
        owners: dict[str, tuple[SubjectName, bytes] | None] = {}
        asked: list[Movement] = []
        bounds: list[tuple[bytes, bytes]] = []
        for id_, movement in movements.items():
            own = [found for found in named.get(id_, ()) if movement.reference in forms_of(found[1])]
            if own:
                owners[id_] = own[0]
            elif (bound := reference_bounds(movement.reference)) is not None:
                asked.append(movement)
                bounds.append(bound)
        if not asked:
            return owners
        columns = [low for low, _ in bounds], [high for _, high in bounds]
        for row in await self._fetch("by_key", provider, *columns):
            movement = asked[row["place"] - 1]
            if movement.reference in forms_of(row["key"]) and owners.get(movement.id) is None:
                subject = row["subject"]
                owners[movement.id] = None if subject is None else ((row["tenant_id"], subject), row["key"])
        return owners

    async def _rows(self, names: Sequence[SubjectName]) -> dict[SubjectName, Here]:
        found = await self._fetch("rows", [tenant for tenant, _ in names], [id_ for _, id_ in names]) if names else []
        return {(row["tenant_id"], row["id"]): _here(row) for row in found}

    async def _show(self, matched: Sequence[tuple[Movement, Meant]]) -> None:
        shown = [
            (here.tenant.number, here.number, movement.id, movement.state not in ("failed", "returned"))
            for movement, meant in matched
            # Who only names the movement of another was not shown.
            for here in ((meant.owner,) if meant.owner is not None else meant.named)
        ]
        if shown:
            with _reachable():
                await self._connection.execute(_SQL["show"], *(list(column) for column in zip(*shown, strict=True)))

    async def _fetch(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        with _reachable():
            return list(await self._connection.fetch(_SQL[statement], *arguments))


async def note_missing(database: Database, here: Here, *, by: str) -> bool:
    """Keep, once, that the provider's books do not have a transferred payout under the id it was recorded with.

    Without it nobody can ask for another generation of what the provider once said it had made.
    """
    seen = Evidence(what="missing_there", found="absent", detail=here.transfer_id or "")

    def is_so(row: asyncpg.Record) -> bool:
        return bool(row["status"] == "transferred" and row["transfer_id"] == here.transfer_id)

    return await _note(database, here, seen, {}, is_so, by=by)


async def note_double(database: Database, here: Here, ids: Sequence[str], *, by: str) -> bool:
    """Keep it with a payout that is disputed for something else, and count it: once. False: it is known."""
    seen = Evidence(what="contradicted", found="moved_twice", detail=", ".join(ids))

    def is_so(row: asyncpg.Record) -> bool:
        return row["status"] == "disputed" and row["reason"] not in _KNOWN_DOUBLES

    return await _note(database, here, seen, {"doubles": 1}, is_so, by=by)


async def _note(
    database: Database,
    here: Here,
    seen: Evidence,
    counts: Mapping[str, int],
    is_so: Callable[[asyncpg.Record], bool],
    *,
    by: str,
) -> bool:
    body = msgspec.json.encode(seen)
    place = here.tenant.number, here.number
    try:
        async with database.writing() as connection:
            row = await connection.fetchrow(_SQL["lock"], *place)
            if row is None or not is_so(row) or await connection.fetchval(_SQL["is_noted"], *place, seen.what, body):
                return False
            await add_events(connection, [(*place, seen.what, by, body)])
            if counts:
                await count(connection, by, counts)
    except Contended:
        # Somebody is deciding it at this moment: the next run sees what.
        return False
    except Lost as lost:
        raise Unreachable(str(lost)) from lost
    return True


def _meant(
    owner: tuple[SubjectName, bytes] | tuple[()] | None,
    named: Sequence[tuple[SubjectName, bytes]],
    rows: Mapping[SubjectName, Here],
) -> Meant:
    others = tuple(rows[name] for name, _ in named if name in rows)
    if not owner:
        return Meant(named=others, is_elsewhere=owner is None)
    name, key = owner
    here = rows.get(name)
    if here is None:
        # The subject of an intent that is no settlement's.
        return Meant(named=others, is_elsewhere=True)
    return Meant(owner=here, is_live_key=key == here.key, named=others)


def _next(found: Sequence[asyncpg.Record], most: int) -> Cursor | None:
    return Cursor(found[-1]["tenant_id"], found[-1]["number"]) if len(found) == most else None


def _here(row: asyncpg.Record) -> Here:
    return Here(
        tenant=Tenant(row["tenant_id"], row["tenant"]),
        number=row["number"],
        id=row["id"],
        key=row["key"],
        destination=row["destination"],
        amount_micros=row["amount_micros"],
        currency=row["currency"],
        status=row["status"],
        transfer_id=row["transfer_id"],
        reason=row["reason"],
        changed_at=row["changed_at"],
        account=row["account"],
        first_sent_at=row["first_sent_at"],
        not_after=row["not_after"],
    )


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    # The last is what the driver says of an idle connection that the server has just ended.
    except (*GONE, asyncpg.InternalClientError) as error:
        raise Unreachable(str(error) or type(error).__name__) from error
