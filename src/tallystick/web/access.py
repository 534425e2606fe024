"""Who is asking: API keys, looked up once and remembered for a few seconds.

A revoked key works at most `key_memory_seconds` longer. Unknown keys are remembered apart from known ones, so
that guessing cannot push the known ones out.
"""

import asyncio
from enum import Enum
from typing import NamedTuple, TypeVar

from tallystick.core.outcome import Rejected
from tallystick.settings import LIMITS, Limits
from tallystick.store import tenant
from tallystick.store.database import Database
from tallystick.store.tenant import Access

Value = TypeVar("Value")

_SCHEME = b"bearer "
# Far longer than any key of ours: what is longer is not worth a look.
_LONGEST_HEADER = 200


class Need(Enum):
    """What a call asks of its key."""

    NOTHING = "no key"
    READ = "any key"
    WRITE = "a key of the role admin or operator"
    APPROVE = "a key of the role admin or approver"
    ADMIN = "a key of the role admin"


# An operator asks and an approver decides; an admin may do either, but never both about one thing.
_ROLES = {
    Need.WRITE: frozenset({"admin", "operator"}),
    Need.APPROVE: frozenset({"admin", "approver"}),
    Need.ADMIN: frozenset({"admin"}),
}


class _Known(NamedTuple):
    access: Access
    until: float


class Doorkeeper:
    """Tells whom an Authorization header speaks for."""

    def __init__(self, database: Database, *, limits: Limits = LIMITS) -> None:
        """Remembers nobody yet."""
        self._database = database
        self._limits = limits
        self._known: dict[bytes, _Known] = {}
        self._unknown: dict[bytes, float] = {}
        self._lookups: dict[bytes, asyncio.Task[Access | None]] = {}

    async def admit(self, headers: list[bytes], need: Need) -> Access | Rejected:
        """The access behind the header, if it suffices for what is needed."""
        if len(headers) != 1 or len(headers[0]) > _LONGEST_HEADER or headers[0][:7].lower() != _SCHEME:
            return _unauthenticated("There is no `Authorization: Bearer KEY` header, or not exactly one.")
        key = headers[0][7:].strip()
        now = asyncio.get_running_loop().time()
        known = self._known.get(key)
        access = known.access if known is not None and now < known.until else await self._look_up(key, now)
        if access is None:
            return _unauthenticated("This API key is not known, or was revoked.")
        if need in _ROLES and access.role not in _ROLES[need]:
            return Rejected("forbidden", f"This call needs {need.value}; this one is {access.role}.", "Use such a key.")
        return access

    async def _look_up(self, key: bytes, now: float) -> Access | None:
        if now < self._unknown.get(key, 0.0):
            return None
        task = self._lookups.get(key)
        if task is None:
            # One question for all who ask at once: a busy key's memory runs out for everybody together.
            task = asyncio.create_task(tenant.access(self._database, key.decode("latin-1")))
            self._lookups[key] = task
            task.add_done_callback(lambda _done: self._lookups.pop(key, None))
        access = await asyncio.shield(task)
        until = now + self._limits.key_memory_seconds
        self._known.pop(key, None)
        self._unknown.pop(key, None)
        if access is None:
            _remember(self._unknown, key, until, self._limits.key_memory)
        else:
            _remember(self._known, key, _Known(access, until), self._limits.key_memory)
        return access


def _remember(memory: dict[bytes, Value], key: bytes, value: Value, most: int) -> None:
    if len(memory) >= most:
        del memory[next(iter(memory))]
    memory[key] = value


def _unauthenticated(why: str) -> Rejected:
    return Rejected("unauthenticated", why, "Send a key that `tally keys create` made.")
