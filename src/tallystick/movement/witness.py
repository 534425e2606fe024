"""The witness: what a provider's books show of movements that this database did not make (`movement.mark`).

    saw     a listing or a look-up showed them, with their marks
    heard   a webhook told of them: their marks are read at the provider, one question each, and only for those that
            nothing here explains

What proves that a life was lost is kept, and stops sending to that provider, in one commit. Nothing is sent here.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from tallystick.database.pool import Database
from tallystick.movement import asking
from tallystick.movement.life import orphans
from tallystick.movement.mark import is_ours, proof
from tallystick.movement.steps import History
from tallystick.providers.port import Provider
from tallystick.providers.words import Done, Found, Looked, Movement, Undecided

log = structlog.get_logger("tallystick.witness")

# Questions for one batch of news: one proof is enough, and what is not asked about here is a break all the same.
_MOST_ASKED: Final = 16
# Movements of other installations on the same account, which are told of again and again.
_MOST_REMEMBERED: Final = 10_000


class Witness:
    """Of every configured provider. Shared by all flows of a process."""

    def __init__(self, database: Database, providers: Mapping[str, Provider]) -> None:
        """The providers stay the caller's to close."""
        self._database = database
        self._providers = providers
        self._not_ours: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def saw(self, provider: str, movements: Sequence[Movement], *, by_our_key: bool = False) -> int:
        """Movements as the provider shows them; how many proved that a life was lost.

        `by_our_key`: they were asked for by a key of something here of which nothing was sent.
        """
        if not movements:
            return 0
        installation = await orphans.installation(self._database)
        proved = 0
        for movement in await orphans.unexplained(self._database, provider, movements):
            why = proof(movement, installation=installation, by_our_key=by_our_key)
            if why is not None:
                await orphans.lost_life(self._database, provider, movement, why)
                proved += 1
        return proved

    async def asked(self, provider: str, history: History, looked: Looked) -> None:
        """What the books said of something that a flow asked about: its own attempts may have made it."""
        if isinstance(looked, Found) and history.first_sent_at is None:
            await self.saw(provider, looked.movements, by_our_key=True)

    async def heard(self, provider: str, movements: Sequence[Movement]) -> int:
        """Movements that news tell of; how many proved that a life was lost. Never raises for the provider's sake."""
        wanted = [one for one in movements if (provider, one.id) not in self._not_ours]
        adapter = self._providers.get(provider)
        if adapter is None or not wanted:
            return 0
        unexplained = (await orphans.unexplained(self._database, provider, wanted))[:_MOST_ASKED]
        if not unexplained:
            return 0
        installation = await orphans.installation(self._database)
        shown = [one for one in await asyncio.gather(*(_fetched(adapter, one) for one in unexplained)) if one]
        for one in shown:
            if not is_ours(one.mark, installation):
                self._remember(provider, one.id)
        return await self.saw(provider, shown)

    def _remember(self, provider: str, movement_id: str) -> None:
        self._not_ours[provider, movement_id] = None
        while len(self._not_ours) > _MOST_REMEMBERED:
            self._not_ours.popitem(last=False)


async def _fetched(adapter: Provider, movement: Movement) -> Movement | None:
    shown = await asking.fetch(adapter, movement.purpose, movement.id)
    if isinstance(shown, Undecided):
        log.warning("movement_not_shown", provider=movement.provider, id=movement.id, reason=shown.message)
    return shown.movement if isinstance(shown, Done) else None
