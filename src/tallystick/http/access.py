"""Who is asking: API keys, looked up once and remembered for a few seconds.

A revoked key works at most `key_memory_seconds` longer. Unknown keys are remembered apart from known ones, so
that guessing cannot push the known ones out. A key is looked up

    never               its checksum is wrong
    among the known     it was known a moment ago: nobody's guesses are ahead of it
    among the new       it has a checksum, and was not seen before      ── at most so many unknown ones
    among the others    it has none: made before, or chosen             ── for each address

each of them over a connection of its own, beside those of reads.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from tallystick.access import store as tenant
from tallystick.access.api_key import Form, form
from tallystick.access.store import Access
from tallystick.database.pool import Database
from tallystick.errors import Busy, TooManyGuesses
from tallystick.http.address import caller_address
from tallystick.http.call import Scope
from tallystick.http.guesses import Guesses
from tallystick.http.tenant_rate import TenantRate
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS, IpNetwork, Limits

Value = TypeVar("Value")

_NOWHERE: Scope = {"headers": []}
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

    def __init__(
        self,
        database: Database,
        *,
        limits: Limits = LIMITS,
        proxies: tuple[IpNetwork, ...] = (),
        rate: TenantRate | None = None,
    ) -> None:
        """Remembers nobody yet. `proxies` are believed whom they speak for. `rate`: how often a tenant may ask."""
        self._database = database
        self._limits = limits
        self._known: dict[bytes, _Known] = {}
        self._unknown: dict[bytes, float] = {}
        self._lookups: dict[bytes, asyncio.Task[Access | None]] = {}
        self._waiting: Counter[str] = Counter()
        self._proxies = proxies
        self._guesses = Guesses(limits=limits)
        self.rate = TenantRate(None) if rate is None else rate

    async def admit(self, headers: list[bytes], need: Need, scope: Scope = _NOWHERE) -> Access | Rejected:
        """The access behind the header, if it suffices for what is needed. `scope` tells where it comes from.

        Raises TooManyGuesses; RateExceeded; and Busy when too many new keys wait to be looked up.
        """
        if len(headers) != 1 or len(headers[0]) > _LONGEST_HEADER or headers[0][:7].lower() != _SCHEME:
            return _unauthenticated("There is no `Authorization: Bearer KEY` header, or not exactly one.")
        key = headers[0][7:].strip()
        now = asyncio.get_running_loop().time()
        known = self._known.get(key)
        access = known.access if known is not None and now < known.until else await self._look_up(key, now, scope)
        if access is None:
            return _unauthenticated("This API key is not known, or was revoked.")
        # Before the role is looked at: what a key may not do, it may not ask for without end either.
        self.rate.admit(access.tenant)
        if need in _ROLES and access.role not in _ROLES[need]:
            return Rejected("forbidden", f"This call needs {need.value}; this one is {access.role}.", "Use such a key.")
        return access

    async def _look_up(self, key: bytes, now: float, scope: Scope) -> Access | None:
        if now < self._unknown.get(key, 0.0):
            return None
        task = self._lookups.get(key)
        if task is None:
            text = key.decode("latin-1")
            written = form(text)
            if written is Form.WRONG:
                return None
            # One question for all who ask at once: a busy key's memory runs out for everybody together.
            task = asyncio.create_task(
                self._found(text, "known") if key in self._known else self._guess(text, written, now, scope)
            )
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

    def _guess(self, key: str, written: Form, now: float, scope: Scope) -> Coroutine[Any, Any, Access | None]:
        """Refused before anything else is done for it: a refusal must cost less than a guess."""
        address = caller_address(scope, self._proxies)
        wait_seconds = self._guesses.wait_seconds(address, now)
        if wait_seconds:
            raise TooManyGuesses(wait_seconds)
        self._guesses.spend(address, now)
        return self._tried(key, written, address)

    async def _tried(self, key: str, written: Form, address: str) -> Access | None:
        found = await self._found(key, "new" if written is Form.CHECKED else "others")
        if found is not None:
            self._guesses.give_back(address)
        return found

    async def _found(self, key: str, lane: str) -> Access | None:
        if self._waiting[lane] >= self._limits.key_queue:
            raise Busy(self._limits.retry_after_seconds)
        self._waiting[lane] += 1
        try:
            return await tenant.access(self._database, key, aside=f"keys, {lane}")
        finally:
            self._waiting[lane] -= 1


def _remember(memory: dict[bytes, Value], key: bytes, value: Value, most: int) -> None:
    if len(memory) >= most:
        del memory[next(iter(memory))]
    memory[key] = value


def _unauthenticated(why: str) -> Rejected:
    return Rejected("unauthenticated", why, "Send a key that `tally keys create` made.")
