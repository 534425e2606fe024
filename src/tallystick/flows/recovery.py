"""Recovery: after a restore from backup nothing is sent until every unfinished payout was asked about.

    distrust   no tick sends from this database any more
    mark       pending and processing payouts: recompute the key, ask first
    wait       until nothing that the lost life sent can still be on its way
    ask        the provider's books: found is recorded; proven absent may be sent; what nobody can tell is disputed
    orphans    movements at the provider that no row explains: kept, so that a payout created again is not sent again
    confirm    ticks may send

Safe to run twice, to kill at any moment, and to run where nothing was restored.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tallystick.errors import ProviderUnreachable
from tallystick.flows.settling import Settler
from tallystick.providers.port import Provider
from tallystick.settings import LIMITS, Limits
from tallystick.store import recovery as store
from tallystick.store import settlement_review as review
from tallystick.store.database import Database

_MARKED_AT_ONCE: Final = 1_000
# Before the newest step the backup knows: steps that were being committed, clocks that differ.
_OVERLAP: Final = timedelta(hours=1)
# Of a backup without any step.
_LONGEST_BACK: Final = timedelta(days=30)
# Of a provider that is not configured here.
_LONGEST_IN_FLIGHT: Final = timedelta(minutes=10)
_MOVES_MONEY_OUT: Final = ("transfer", "payout")


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. Not `is_confirmed`: ticks stay stopped; run it again, after `wait_seconds` where they are given.

    `elsewhere`: providers that are not configured here, with their unfinished payouts. While one is missing and not
    left out on purpose, ticks stay stopped: what it paid since the backup is not known.
    """

    marked: int
    looked_up: int
    transferred: int
    cleared: int
    disputed: int
    undecided: int
    orphans: int
    keys_differ: int
    is_confirmed: bool
    wait_seconds: float = 0.0
    elsewhere: Mapping[str, int] = {}
    unreachable: tuple[str, ...] = ()


async def recover(
    database: Database,
    providers: Mapping[str, Provider],
    settler: Settler,
    *,
    by: str,
    wait: bool = True,
    without: Collection[str] = (),
    limits: Limits = LIMITS,
    tell: Callable[[str], None] = lambda _line: None,
) -> Recovered:
    """Ask the providers about everything unfinished; let ticks send once all of it is known.

    `without`: providers that are not configured here any more and need not be asked.
    """
    await store.distrust(database)
    known_until, now = await store.last_known(database)
    # Before anything is asked: a generation that was lost with the backup is seen by its movement alone.
    await _orphans(database, providers, known_until, now, limits=limits, only_keep=True)
    marked, wrong = await _mark(database, providers, now, by=by, limits=limits)
    tell(f"{marked} unfinished payouts are to be asked about")
    left = await _seconds_left(database, providers)
    if left > 0 and wait:
        tell(f"waiting {left:.0f} s: what was sent before the restore may still be on its way")
        await asyncio.sleep(left)
        left = 0.0
    asked = await settler.ask()
    orphans, unreachable = await _orphans(database, providers, known_until, now, limits=limits)
    open_ = sum(one.rows for one in await store.open_rows(database) if one.provider in providers)
    elsewhere = await store.elsewhere(database, list(providers))
    is_confirmed = open_ == 0 and not unreachable and not (elsewhere.keys() - set(without))
    if is_confirmed:
        await store.confirm(database)
    return Recovered(
        marked=marked,
        looked_up=asked.looked_up,
        transferred=asked.transferred,
        cleared=asked.cleared,
        disputed=asked.disputed + wrong,
        undecided=open_,
        orphans=orphans,
        keys_differ=wrong,
        is_confirmed=is_confirmed,
        wait_seconds=left,
        elsewhere=elsewhere,
        unreachable=unreachable,
    )


async def _mark(
    database: Database, providers: Mapping[str, Provider], now: datetime, *, by: str, limits: Limits
) -> tuple[int, int]:
    marked = wrong = 0
    for name in (*providers, *await store.elsewhere(database, list(providers))):
        in_flight = providers[name].facts.longest_in_flight if name in providers else _LONGEST_IN_FLIGHT
        due_at = now + timedelta(seconds=limits.send_seconds) + in_flight
        while True:
            some, of_them = await store.mark(database, name, due_at=due_at, by=by, most=_MARKED_AT_ONCE)
            if not some:
                break
            marked, wrong = marked + some, wrong + of_them
    return marked, wrong


async def _seconds_left(database: Database, providers: Mapping[str, Provider]) -> float:
    """Until the last of them may be asked about."""
    open_ = [one for one in await store.open_rows(database) if one.provider in providers]
    waits = [(one.last - one.now).total_seconds() for one in open_]
    return max(0.0, *waits) if waits else 0.0


async def _orphans(
    database: Database,
    providers: Mapping[str, Provider],
    known_until: datetime | None,
    now: datetime,
    *,
    limits: Limits,
    only_keep: bool = False,
) -> tuple[int, tuple[str, ...]]:
    """Movements since the backup that no row here explains; and the providers whose list could not be read."""
    found = 0
    unreachable = []
    since = now - _LONGEST_BACK if known_until is None else known_until - _OVERLAP
    until = now + timedelta(seconds=limits.send_seconds) + _OVERLAP
    for name, provider in providers.items():
        try:
            async for movement in provider.movements(since=since, until=until):
                if movement.purpose not in _MOVES_MONEY_OUT:
                    continue
                if await store.keep_if_orphan(database, name, movement):
                    found += 1
                elif not only_keep:
                    # What the backup calls failed, or paid otherwise, the lost life may have paid.
                    await review.observe(database, name, movement)
        except ProviderUnreachable:
            unreachable.append(name)
    return found, tuple(unreachable)
