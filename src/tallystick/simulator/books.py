"""The simulator's books: everything a provider knows, in one file (see `file` for its transactions).

The books know no provider. A dialect renders its own objects and events, and puts them here under the words that
all of them share, so that a test can ask one question of all: what moved, and how often?
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from tallystick import queries
from tallystick.simulator.dialect import Endpoint, Switch
from tallystick.simulator.file import File
from tallystick.simulator.records import Due, Entry, Event, from_microseconds, to_microseconds

__all__ = ["EVERY", "Books", "Due", "Entry", "Event"]

_SQL: Final = queries.load(__package__, "books.sql")
_INSERT_ENTRY: Final = _SQL["insert_entry"]
_INSERT_EVENT: Final = _SQL["insert_event"]
# Ten digits from the first on: they sort as text as they do as numbers.
_FIRST_ID: Final = 1_000_000_001
# Ids are taken from a block whose end is stored before its first id is told: one statement for many ids.
_ID_BLOCK: Final = 5_000
# Held in memory.
_MOST_BALANCES: Final = 10_000
_MOST_BODIES: Final = 5_000
# A limit that is none, as SQLite understands it.
EVERY: Final = -1
_EARLIEST: Final = -(2**63)
_LATEST: Final = 2**63 - 1
_FIND_EVENTS: Final = {
    newest: _SQL["find_events"].format(order="DESC" if newest else "ASC") for newest in (True, False)
}
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class Books(File):
    """The books of every dialect."""

    def __init__(self, path: Path | str, switches: Sequence[Switch] = ()) -> None:
        super().__init__(path)
        for statement in _SQL["schema"].split(";")[:-1]:
            self.execute(statement)
        self.commit()
        self._switches = {switch.name: switch for switch in switches}
        self._settings: dict[str, str | None] = {}
        self._switched: dict[str, str] = {}
        self._endpoints: dict[str, Endpoint | None] = {}
        self._balances: dict[tuple[str, str, str], int | None] = {}
        # Of events that were stored lately, what is sent: most are, a moment later.
        self._bodies: dict[tuple[str, str], bytes] = {}
        self._next_id = self._last_id = 0
        # How often something was undone, or emptied.
        self.undone = 0
        # Told of each stored event whose dialect has an endpoint, and queues its delivery.
        self.announce: Callable[[Event], None] = lambda _event: None
        # Told that something is due at a new time.
        self.wake: Callable[[], None] = lambda: None

    def forget_what_was_read(self) -> None:
        self.undone += 1
        # The ids in between were told to nobody, or lie before the stored end.
        self._next_id = self._last_id = 0
        self._settings.clear()
        self._switched.clear()
        self._endpoints.clear()
        self._balances.clear()
        self._bodies.clear()

    def reset(self) -> None:
        """Empty books: what a test starts from. Ids and time go on."""
        for statement in _SQL["reset"].split(";")[:-1]:
            self.execute(statement)
        self.forget_what_was_read()

    # -- objects

    def insert(self, entry: Entry) -> bytes:
        """Returns the body as it is stored, JSON.

        Raises sqlite3.IntegrityError when the id was taken in this turn. One that is taken for longer undoes the turn.
        """
        identity = (entry.dialect, entry.kind, entry.id)
        if self.unwritten(_INSERT_ENTRY, identity) is not None:
            raise sqlite3.IntegrityError(f"the id {entry.id} is taken")
        body = _encode(entry.body)
        self.put(
            _INSERT_ENTRY,
            identity,
            (
                self.next_number(),
                *identity,
                entry.reference,
                entry.parent,
                entry.amount,
                entry.currency,
                entry.state,
                to_microseconds(entry.created_at),
                body,
            ),
        )
        return body

    def replace(self, entry: Entry) -> bytes:
        """Store the object's new state. Its time and place in lists stay. Raises KeyError when there is none.

        Returns the body as it is stored, JSON.
        """
        body = _encode(entry.body)
        identity = (entry.dialect, entry.kind, entry.id)
        values = (entry.reference, entry.parent, entry.amount, entry.currency, entry.state)
        inserted = self.unwritten(_INSERT_ENTRY, identity)
        if inserted is not None:
            number, *_, created_at, _ = inserted
            self.put(_INSERT_ENTRY, identity, (number, *identity, *values, created_at, body))
        elif not self.execute(_SQL["replace_entry"], (*values, body, *identity)).rowcount:
            raise KeyError(entry.id)
        return body

    def get(self, dialect: str, kind: str, id: str) -> Entry | None:  # noqa: A002  the provider's word
        row = self.execute(_SQL["get_entry"], (dialect, kind, id)).fetchone()
        return None if row is None else _entry(row)

    def reference(self, dialect: str, id: str) -> str | None:  # noqa: A002  the provider's word
        """What the client calls the object of this id, "" if nothing; None: there is no such object."""
        row = self.execute(_SQL["get_reference"], (dialect, id)).fetchone()
        return None if row is None else str(row[0])

    def find(
        self,
        dialect: str,
        kind: str | tuple[str, ...],
        *,
        reference: str | None = None,
        parent: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        before: str | None = None,
        limit: int = 100,
        offset: int = 0,
        newest_first: bool = True,
    ) -> list[Entry]:
        """Objects in the order they were made. `since` and `until` are inclusive.

        `after` and `before` are ids, exclusive, in the order asked for: `after` is where the last page ended,
        whichever way it went. Raises KeyError for an id that is not there. Several kinds are one list.
        """
        kinds = kind if isinstance(kind, tuple) else (kind,)
        which = "kind IN (SELECT value FROM json_each(:kind))" if isinstance(kind, tuple) else "kind = :kind"
        values = {
            "dialect": dialect,
            "kind": kind if isinstance(kind, str) else _encode(kind).decode(),
            "reference": reference,
            "parent": parent,
            "limit": limit,
            "offset": offset,
            **_times(since, until),
            **_places(
                newest_first, self._entry_place(dialect, kinds, after), self._entry_place(dialect, kinds, before)
            ),
        }
        # A partial index is used only where its condition is said.
        which += "" if reference is None else " AND reference = :reference AND reference <> ''"
        which += "" if parent is None else " AND parent = :parent AND parent <> ''"
        # Whoever names a reference or a parent wants a handful: the index of times would go through everything.
        time = "created_at" if reference is None and parent is None else "+created_at"
        sql = _SQL["find_entries"].format(which=which, time=time, order="DESC" if newest_first else "ASC")
        return [_entry(row) for row in self.execute(sql, values)]

    def total(self, dialect: str, kind: str, parent: str, states: tuple[str, ...]) -> int:
        """The sum of all amounts under a parent, however many they are."""
        row = self.execute(_SQL["total"], (dialect, kind, parent, _encode(states).decode())).fetchone()
        return int(row[0])

    def _entry_place(self, dialect: str, kinds: tuple[str, ...], id_: str | None) -> tuple[int, int] | None:
        for kind in kinds[:-1]:
            if id_ is not None and self.get(dialect, kind, id_) is not None:
                return self._place("entry", dialect, kind, id_)
        return self._place("entry", dialect, kinds[-1], id_)

    def _place(self, table: str, *identity: str | None) -> tuple[int, int] | None:
        if identity[-1] is None:
            return None
        row: tuple[int, int] | None = self.execute(_SQL[f"{table}_place"], identity).fetchone()
        if row is None:
            raise KeyError(identity[-1])
        return row

    # -- events

    def emit(
        self,
        dialect: str,
        type: str,  # noqa: A002  the providers' word
        body: dict[str, Any],
        at: datetime,
        object_id: str,
        *,
        event_id: str | None = None,
    ) -> str:
        """Store an event and queue its delivery when the dialect has an endpoint. Returns the event's id.

        That is `event_id`, or the body's own "id", or a new one (kept beside the body, which stays as it is).
        """
        own = event_id or body.get("id")
        event = Event(dialect, type, own if isinstance(own, str) else self.next_id("evt_"), object_id, at, body)
        self.store_event(event)
        if self.endpoint(dialect) is not None:
            self.announce(event)
        return event.id

    def store_event(self, event: Event) -> None:
        """Without telling anybody."""
        at, body = to_microseconds(event.created_at), _encode(event.body)
        number = self.next_number()
        self.put(_INSERT_EVENT, number, (number, event.dialect, event.type, event.id, event.object_id, at, body))
        if len(self._bodies) >= _MOST_BODIES:
            self._bodies.clear()
        self._bodies[event.dialect, event.id] = body

    def event(self, dialect: str, event_id: str) -> Event | None:
        row = self.execute(_SQL["get_event"], (dialect, event_id)).fetchone()
        return None if row is None else _event(row)

    def event_body(self, dialect: str, event_id: str) -> bytes | None:
        """What is sent of an event, as JSON; None: there is none."""
        known = self._bodies.get((dialect, event_id))
        if known is not None:
            return known
        row = self.read(_SQL["get_event_body"], (dialect, event_id)).fetchone()
        return None if row is None else bytes(row[0])

    def events(
        self,
        dialect: str,
        *,
        after: str | None = None,
        before: str | None = None,
        types: Sequence[str] | None = None,
        object_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        newest_first: bool = True,
    ) -> list[Event]:
        """Events as `find` finds objects. A type may end in `*`."""
        values = {
            "dialect": dialect,
            "types": None if types is None else _encode(list(types)).decode(),
            "object_id": object_id,
            "limit": limit,
            **_times(since, until),
            **_places(newest_first, self._place("event", dialect, after), self._place("event", dialect, before)),
        }
        return [_event(row) for row in self.execute(_FIND_EVENTS[newest_first], values)]

    # -- ids, settings, endpoints

    def next_id(self, prefix: str) -> str:
        """A new id: the prefix and at least ten digits. Unique over all prefixes, and across restarts."""
        return f"{prefix}{self.next_number()}"

    def next_number(self) -> int:
        """A number that was never given before, and is larger than those that were."""
        if self._next_id == self._last_id:
            self._next_id = int(self.setting("next_id") or _FIRST_ID)
            self._last_id = self._next_id + _ID_BLOCK
            self.put_setting("next_id", str(self._last_id))
        self._next_id += 1
        return self._next_id - 1

    def setting(self, name: str) -> str | None:
        """A stored word of the simulator itself."""
        if name not in self._settings:
            row = self.execute(_SQL["get_setting"], (name,)).fetchone()
            self._settings[name] = None if row is None else row[0]
        return self._settings[name]

    def put_setting(self, name: str, value: str) -> None:
        self.execute(_SQL["put_setting"], (name, value))
        self._settings[name] = value
        self._switched.clear()

    def switch(self, name: str) -> str:
        """The value of an unverified fact. Raises KeyError for a name no dialect has."""
        value = self._switched.get(name)
        if value is None:
            switch = self._switches[name]
            value = self._switched[name] = self.setting(f"switch:{name}") or switch.default
        return value

    def set_switch(self, name: str, value: str) -> None:
        """Raises KeyError for an unknown name, ValueError for a value it cannot have."""
        if value not in self._switches[name].values:
            raise ValueError(f"{name} is one of {', '.join(self._switches[name].values)}, not {value!r}")
        self.put_setting(f"switch:{name}", value)

    @property
    def switches(self) -> Mapping[str, Switch]:
        return self._switches

    def endpoint(self, dialect: str) -> Endpoint | None:
        """Where the dialect's webhooks go; None: nowhere."""
        if dialect not in self._endpoints:
            row = self.execute(_SQL["get_endpoint"], (dialect,)).fetchone()
            self._endpoints[dialect] = None if row is None else Endpoint(row[0], tuple(_decode(row[1])))
        return self._endpoints[dialect]

    def set_endpoint(self, dialect: str, endpoint: Endpoint | None) -> None:
        if endpoint is None:
            self.execute(_SQL["delete_endpoint"], (dialect,))
        else:
            self.execute(_SQL["put_endpoint"], (dialect, endpoint.url, _encode(endpoint.secrets).decode()))
        self._endpoints[dialect] = endpoint

    # -- what happens by itself

    def later(self, dialect: str, action: str, object_id: str, due_at: datetime) -> None:
        """Have the dialect `act` when the simulated clock reaches `due_at`."""
        self.execute(_SQL["insert_agenda"], (dialect, action, object_id, to_microseconds(due_at)))
        self.wake()

    def due(self, now: datetime, limit: int) -> list[Due]:
        """What must happen by now, oldest first; `done` takes it off."""
        return [Due(*row) for row in self.execute(_SQL["due_agenda"], (to_microseconds(now), limit))]

    def done(self, due: Due) -> None:
        self.execute(_SQL["delete_agenda"], (due.number,))

    def next_due_at(self) -> datetime | None:
        row = self.execute(_SQL["next_agenda"]).fetchone()
        return None if row[0] is None else from_microseconds(row[0])

    # -- balances

    def balance(self, dialect: str, currency: str, account: str = "") -> int | None:
        """What the account can still spend; None: without limit, because nobody set one.

        Capitals or not, it is one currency: some providers write one, some the other.
        """
        place = (dialect, account, currency.upper())
        if place not in self._balances:
            row = self.execute(_SQL["get_balance"], place).fetchone()
            if len(self._balances) >= _MOST_BALANCES:
                self._balances.clear()
            self._balances[place] = None if row is None else int(row[0])
        return self._balances[place]

    def balances(self, dialect: str, account: str = "") -> dict[str, int]:
        return dict(self.execute(_SQL["list_balances"], (dialect, account)).fetchall())

    def moved(self, dialect: str, account: str = "") -> dict[str, int]:
        """By how much all that ever moved changed an account's balance, by currency as the provider writes it."""
        return {row[0]: int(row[1]) for row in self.execute(_SQL["moved"], (dialect, account))}

    def set_balance(self, dialect: str, currency: str, amount: int, account: str = "") -> None:
        place = (dialect, account, currency.upper())
        self.execute(_SQL["put_balance"], (*place, amount))
        self._balances[place] = amount

    def move_balance(self, dialect: str, currency: str, amount: int, account: str = "") -> None:
        """Add the amount (negative: take it). Nothing happens to an account without limit."""
        balance = self.balance(dialect, currency, account)
        if balance is not None:
            self.set_balance(dialect, currency, balance + amount, account)

    # -- the second opinion

    def summary(self) -> list[dict[str, Any]]:
        """Counts and sums per dialect, kind, state and currency."""
        names = ("dialect", "kind", "state", "currency", "count", "amount")
        return [dict(zip(names, row, strict=True)) for row in self.execute(_SQL["summary"])]

    def movements(self, *, after: int = 0, dialect: str = "", limit: int = 1000) -> list[dict[str, Any]]:
        """Everything that moved money, oldest first; `after` is the last `number` seen."""
        rows = self.execute(_SQL["movements"], (after, dialect, dialect, limit))
        names = ("number", "dialect", "kind", "id", "reference", "parent", "amount", "currency", "state", "created_at")
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [{**row, "created_at": from_microseconds(row["created_at"])} for row in found]


def _entry(row: tuple[Any, ...]) -> Entry:
    values: tuple[Any, ...] = (*row[:8], from_microseconds(row[8]), _decode(row[9]))
    return Entry(*values)


def _event(row: tuple[Any, ...]) -> Event:
    values: tuple[Any, ...] = (*row[:4], from_microseconds(row[4]), _decode(row[5]))
    return Event(*values)


def _times(since: datetime | None, until: datetime | None) -> dict[str, int]:
    return {
        "since": _EARLIEST if since is None else to_microseconds(since),
        "until": _LATEST if until is None else to_microseconds(until),
    }


def _places(newest_first: bool, after: tuple[int, int] | None, before: tuple[int, int] | None) -> dict[str, int]:  # noqa: FBT001
    # Newest first, "after" a row means older than it.
    low, high = (before, after) if newest_first else (after, before)
    low_time, low_number = low or (_EARLIEST, 0)
    high_time, high_number = high or (_LATEST, 0)
    return {"low_time": low_time, "low_number": low_number, "high_time": high_time, "high_number": high_number}
