"""Everybody who is connected to this server: how many may be, how long each may take, who goes first when it is full.

A connection is

    silent    nothing came yet, or its last request was answered       closed when idle, and first for want of room
    coming    a part of a request came                                 closed when late, and for want of room
    owed      all of a request came, and its answer is being made      never closed for want of room
    unread    its caller does not take what was answered               closed when late

Bytes are counted as they come, whatever was declared: a promise of a megabyte takes up nothing. Who takes more of the
connections, or of the bytes, than anybody else gives way first (`share`).
"""

import asyncio
import resource
import traceback
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

import structlog

from tallystick.http.share import shed
from tallystick.settings import LIMITS, IpNetwork, Limits

log = structlog.get_logger("tallystick.http")

NEVER: Final = float("inf")
# When there is no room for one more, room is made for so large a part of all at once: looking for the idlest takes a
# look at everybody.
_PART: Final = 32


class Member(Protocol):
    """A connection, as much of it as is looked at here."""

    # Whose share it is of.
    address: str
    # When it has taken too long over what is awaited of it; NEVER: nothing is.
    deadline: float

    @property
    def since(self) -> float: ...

    @property
    def is_owed(self) -> bool: ...

    @property
    def is_closing(self) -> bool: ...

    @property
    def held_bytes(self) -> int:
        """Of a request that is not whole."""

    def overdue(self, now: float) -> str | None:
        """Close it, if it is late indeed; the reason."""

    def cut_off(self) -> None:
        """At once, without a word."""

    def turn_away(self) -> None:
        """Tell it that there is no room, and close it."""


class Crowd:
    """All connections of one server. `closed` counts those closed by us, by reason."""

    def __init__(self, *, limits: Limits = LIMITS, proxies: tuple[IpNetwork, ...] = ()) -> None:
        """Nobody is here yet. `proxies` speak for others: each of their connections counts alone."""
        self.limits = limits
        self.proxies = proxies
        self.most = limits.connections
        self.members: set[Member] = set()
        self.closed: Counter[str] = Counter()
        self._leaving: dict[Member, float] = {}
        self._told: Counter[str] = Counter()
        self._told_at = -NEVER

    def join(self, member: Member) -> None:
        """One more. Where there is no room, others give way; where nobody can, the newcomer."""
        self.members.add(member)
        if len(self.members) <= self.most:
            return
        # Those that were closed already are on their way out.
        closable = [one for one in self.members if one is not member and not one.is_owed and not one.is_closing]
        if not closable and len(self.members) - len(self._closing()) > self.most:
            self.closed["no_room"] += 1
            member.turn_away()
            return
        for one in shed(closable, max(self.most // _PART, 1), _one):
            self.closed["crowded"] += 1
            one.cut_off()

    def leave(self, member: Member) -> None:
        """One less."""
        self.members.discard(member)
        self._leaving.pop(member, None)

    def _closing(self) -> list[Member]:
        return [one for one in self.members if one.is_closing]

    def look(self, now: float) -> None:
        """Close who is late."""
        held = 0
        for member in list(self.members):
            if member.is_closing:
                self._hurry(member, now)
            elif member.deadline != NEVER:
                if member.deadline <= now:
                    reason = member.overdue(now)
                    if reason is not None:
                        self.closed[reason] += 1
                        continue
                held += member.held_bytes
        if held > self.limits.unfinished_bytes:
            coming = [one for one in self.members if one.deadline != NEVER and not one.is_closing]
            for member in shed(coming, held - self.limits.unfinished_bytes, lambda one: one.held_bytes):
                self.closed["crowded"] += 1
                member.cut_off()
        self._tell(now)

    def _hurry(self, member: Member, now: float) -> None:
        """What was answered last is still being sent: to somebody who reads it, or for ever."""
        if now >= self._leaving.setdefault(member, now + self.limits.linger_seconds):
            member.cut_off()

    def _tell(self, now: float) -> None:
        if self.closed == self._told or now - self._told_at < self.limits.crowd_told_seconds:
            return
        fresh = self.closed - self._told
        log.warning("connections_closed", open=len(self.members), most=self.most, **fresh)
        self._told, self._told_at = self.closed.copy(), now

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look again and again, as long as the block runs."""
        watching = asyncio.create_task(self._watch(), name="crowd")
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.crowd_look_seconds)
            try:
                self.look(loop.time())
            except Exception:  # noqa: BLE001 - whatever it was: without it nobody would ever be late again
                log.error("crowd_failed", trace=traceback.format_exc())


def _one(_member: Member) -> int:
    return 1


def descriptors(limits: Limits = LIMITS) -> tuple[int, int]:
    """Have as many files as we may, up to what is of use: so many connections, and so many files left beside them.

    Left for the database, for providers and for files: without these a connection is of no use.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.descriptors if hard == resource.RLIM_INFINITY else min(limits.descriptors, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    files = limits.descriptors if soft == resource.RLIM_INFINITY else soft
    left = min(max(limits.descriptors_kept, files // 8), files // 2)
    most = min(limits.connections, files - left)
    return most, files - most
