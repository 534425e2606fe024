"""The idempotency layer: what a key already stands for. Each dialect's `KeyRule` says how (docs/providers.md 2.2, 3).

    unknown ──> running ──> remembered ──> forgotten after the horizon: the same key executes again
                  │             └── same fingerprint: the stored reply; another one: the mismatch
                  └── a twin meanwhile: in flight

Who is running is kept in memory only: a request that a SIGKILL ended never happened, and its key is free again.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from tallystick import queries
from tallystick.simulator.books import Books
from tallystick.simulator.dialect import Call, Dialect, KeyRule, Reply
from tallystick.simulator.records import from_microseconds, to_microseconds

_SQL: Final = queries.load(__package__, "keys.sql")
_STORE: Final = _SQL["store"]
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Reply).decode

Identity = tuple[str, str, str]


class Keys:
    """What was answered under each key."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._running: set[Identity] = set()

    def answer(self, dialect: Dialect, call: Call, now: datetime) -> Reply | None:
        """What the layer says by itself; None: the call is new and must be executed."""
        if call.key is None:
            return None
        rule = dialect.keys(self._books)
        identity = _identity(dialect, call, rule)
        if identity in self._running:
            return rule.in_flight(call)
        # One of this very turn first: most keys are new, and asking for each would write what waits for it.
        row = self._books.unwritten(_STORE, identity)
        if row is None:
            row = self._books.read_written(_SQL["find"], identity).fetchone()
        if row is None:
            return None
        *_, fingerprint, first_at, stored = row
        horizon = rule.horizon_seconds
        if horizon is not None and now >= from_microseconds(first_at) + timedelta(seconds=horizon):
            self.forget(dialect, call)
            return None
        if fingerprint != call.fingerprint and rule.mismatch is not None:
            return rule.mismatch(call)
        return rule.replay(_decode(stored))

    def remember(self, dialect: Dialect, call: Call, reply: Reply, now: datetime) -> None:
        """Keep the reply, if the dialect keeps such replies."""
        if call.key is None:
            return
        rule = dialect.keys(self._books)
        if rule.stores(reply):
            identity = _identity(dialect, call, rule)
            self._books.put(_STORE, identity, (*identity, call.fingerprint, to_microseconds(now), _encode(reply)))

    def forget(self, dialect: Dialect, call: Call) -> None:
        """As if the horizon had passed."""
        self._books.execute(_SQL["forget"], _identity(dialect, call, dialect.keys(self._books)))

    def begin(self, dialect: Dialect, call: Call) -> Identity | None:
        """From now on a twin is told that the first is in flight; until the `end` of what this returns."""
        if call.key is None:
            return None
        identity = _identity(dialect, call, dialect.keys(self._books))
        self._running.add(identity)
        return identity

    def end(self, begun: Identity | None) -> None:
        """Asks the books nothing: where a key is unique is a switch, and may be another since it began."""
        if begun is not None:
            self._running.discard(begun)

    def end_all(self) -> None:
        self._running.clear()

    def counts(self) -> dict[str, int]:
        """How many keys are remembered, per dialect."""
        return dict(self._books.execute(_SQL["count"]).fetchall())


def _identity(dialect: Dialect, call: Call, rule: KeyRule) -> Identity:
    return dialect.name, call.scope if rule.scope is None else rule.scope(call), call.key or ""
