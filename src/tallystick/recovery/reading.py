"""Reading a provider's books after what may have been a restore, for what a life that was lost made there.

    wait    until nothing that such a life began to send can still be on its way, or be missing from the books
    read    everything since an hour before the newest step that this database remembers
    keep    movements of ours that no attempt recorded here explains: who has their key or name is asked about, not sent
    tell    what they gave back of payments that are recorded here: a break, and a person's
    end     the provider's keys count as before; a life that began meanwhile is read in its turn, and holds up none

Sending goes on meanwhile, by the rules of `movement.rules`. A provider that does not answer is asked again later.
"""

from collections.abc import Mapping
from datetime import timedelta

import msgspec
import structlog

from tallystick.database.pool import Database
from tallystick.errors import PartlyUnreadable, TallystickError
from tallystick.movement import asking
from tallystick.movement.life import orphans, store
from tallystick.movement.life.rules import OVERLAP, is_dated_ahead, read_from
from tallystick.providers.port import Provider
from tallystick.settings import LIMITS, Limits

log = structlog.get_logger("tallystick.reading")


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run over the unread books did. `waiting`: too early, or the provider does not answer."""

    complete: int = 0
    waiting: int = 0
    orphans: int = 0
    given_back: int = 0


class Reader:
    """Reads for every configured provider. Holds no state: any number may run side by side, and be killed anywhere."""

    def __init__(self, database: Database, providers: Mapping[str, Provider], *, limits: Limits = LIMITS) -> None:
        """The providers stay the caller's to close."""
        self._database = database
        self._providers = providers
        self._limits = limits

    async def run_once(self) -> Readings:
        """Read whatever is unread and may be read now."""
        complete = waiting = kept = 0
        for name, provider in self._providers.items():
            found = await self._read(name, provider)
            if found is None:
                continue
            is_complete, some = found
            complete, waiting, kept = complete + is_complete, waiting + (not is_complete), kept + some
        # Also of what was read before: an order may have been made again, and paid, since.
        told = await orphans.report_given_back(self._database)
        if told:
            log.warning("given_back_by_a_lost_life", refunds=told, next="tally breaks list")
        return Readings(complete=complete, waiting=waiting, orphans=kept, given_back=told)

    async def _read(self, name: str, provider: Provider) -> tuple[bool, int] | None:
        unread = await store.unread(self._database, name)
        if unread is None:
            return None
        if is_dated_ahead(unread.began_at, unread.now):
            # It began before now. Another one does at this moment, from which on can be counted.
            await store.begin(self._database, "dated by a clock that was ahead")
            return False, 0
        settles_in = timedelta(seconds=self._limits.send_seconds) + provider.facts.settles_in
        settled = await store.settled(self._database, name, settles_in)
        if settled is None:
            return False, 0
        kept, since = 0, read_from(unread.known_until, unread.began_at)
        try:
            async for movement in asking.made(provider, since=since, until=unread.now + OVERLAP, now=unread.now):
                kept += await orphans.keep_if_orphan(self._database, name, movement)
        except PartlyUnreadable as error:
            # A stranger's odd object must not stop everybody for ever: what we make can be read.
            log.warning("books_partly_unreadable", provider=name, reason=str(error))
        except TallystickError as error:
            log.warning("books_not_read", provider=name, reason=str(error))
            return False, kept
        await store.read(self._database, name, settled, "read")
        log.info("books_read", provider=name, since=since.isoformat(), unexplained=kept)
        return settled == unread.life, kept
