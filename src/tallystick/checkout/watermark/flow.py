"""The watermark, read for the sweeper: `checkout.watermark.rules` says what it means."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Protocol

from tallystick.checkout.watermark import store
from tallystick.checkout.watermark.rules import Mark, is_stored, passed
from tallystick.database.pool import Database
from tallystick.providers.steady import steady
from tallystick.settings import LIMITS, Limits


class Log(Protocol):
    """Where webhooks are appended, if that is not the database itself."""

    async def ends(self) -> Mapping[int, int]:
        """The next offset of every partition. Raises LogUnreachable."""

    async def read(self) -> Mapping[int, int]:
        """How far it was stored in the database, and noted. Raises LogUnreachable and Unreachable."""


class Watermark:
    """One process's view of it. A mark that is not stored yet is kept for the next reading."""

    def __init__(
        self, database: Database, *, grace: timedelta, log: Log | None = None, limits: Limits = LIMITS
    ) -> None:
        """Without a `log` webhooks are appended to the database itself."""
        self._database = database
        self._grace = grace
        self._log = log
        self._limits = limits
        self._mark: Mark | None = None
        self._stored_at: datetime | None = None
        # Only where there is a log: without one it is read anew each time.
        self._passed: datetime | None = None

    async def read(self, *, patience_seconds: float = 0.0) -> datetime | None:
        """Up to when everything received is decided; None: nobody can tell yet.

        Raises LogUnreachable, Unreachable, InFlight and OutcomeUnknown. `patience_seconds`: how long to wait for what
        is on its way: for who sweeps once, and keeps no mark for the next time.
        """
        until = steady() + patience_seconds
        while True:
            found, is_settled = await self._look()
            if is_settled or steady() >= until:
                return found
            await asyncio.sleep(self._limits.watermark_pause_seconds)

    async def _look(self) -> tuple[datetime | None, bool]:
        """The watermark now, and whether the mark of this reading has passed."""
        mark = self._mark or await self._marked()
        self._mark = mark
        if self._stored_at is None:
            now, writing = await store.mark(self._database)
            read = {} if self._log is None else await self._log.read()
            if not is_stored(mark, writing=writing, read=read):
                return self._passed, False
            # What came by way of the log was stored by now; the rest by the mark's own moment.
            self._stored_at = mark.at if mark.ends is None else now
        enough = await self._enough(mark, self._stored_at)
        oldest = await store.oldest(self._database, enough=enough)
        found = passed(mark, stored_at=self._stored_at, oldest=oldest, before=self._passed)
        if mark.ends is None:
            self._mark = self._stored_at = None
            return found, True
        is_settled = found != self._passed
        if is_settled:
            self._passed, self._mark, self._stored_at = found, None, None
        return found, is_settled

    async def _marked(self) -> Mark:
        at, writing = await store.mark(self._database)
        # After the moment: whatever was appended by then lies before these ends.
        return Mark(at=at, writing=writing, ends=None if self._log is None else await self._log.ends())

    async def _enough(self, mark: Mark, stored_at: datetime) -> datetime | None:
        """An event that was received by then holds every order there is: how old the oldest is need not be known."""
        if mark.ends is not None:
            return stored_at
        first = await store.deadline(self._database)
        return None if first is None else first + self._grace
