"""Recovery: after a restore from backup nothing is sent until everything unfinished was asked about.

    distrust   nothing is sent from this database any more
    mark       unfinished payouts, charges and refunds: recompute the key, ask first
    wait       until nothing that the lost life sent can still be on its way
    ask        the provider's books: found is recorded; proven absent may be sent; what nobody can tell is a person's
    orphans    movements at the provider that no row explains: kept, so that what is created again is not sent again
    confirm    sending goes on

Safe to run twice, to kill at any moment, and to run where nothing was restored. Each flow asks by itself, in the way in
which it asks about whatever nobody answered for (`ask`), and sends nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tallystick.checkout.payment.flow import Payments
from tallystick.checkout.refund.flow import Refunds
from tallystick.database.pool import Database
from tallystick.errors import InFlight, Misconfigured, PartlyUnreadable, ProviderUnreachable
from tallystick.movement import asking
from tallystick.movement.asking import MOVES_MONEY_OUT, AskedAbout
from tallystick.movement.life import orphans
from tallystick.movement.life import store as life
from tallystick.movement.life.rules import LONGEST_BACK, OVERLAP, read_from
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.recovery import payment_store as log
from tallystick.recovery import store
from tallystick.recovery.payment_store import Kind, Unfinished
from tallystick.settings import LIMITS, Limits
from tallystick.settlement.review import store as review
from tallystick.settlement.tick.flow import Settler

_MARKED_AT_ONCE: Final = 1_000
# Of a provider that is not configured here.
_LONGEST_IN_FLIGHT: Final = timedelta(minutes=10)
# Two clocks that tick beside each other differ by less in a wait of minutes.
_A_MOMENT: Final = 0.1
_KINDS: Final[tuple[Kind, ...]] = ("CHARGE", "REFUND")


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What was found about charges, or about refunds.

    `absent`: proven not to be there; it may be sent, or is closed where its order ended. `waiting_for_person`: nobody
    can tell, now or since an earlier run. `undecided`: not asked about yet, or without an answer.
    """

    marked: int
    looked_up: int
    found: int
    absent: int
    waiting_for_person: int
    undecided: int
    orphans: int
    keys_differ: int


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; of payouts, where nothing else is said.

    Not `is_confirmed`: sending stays stopped; run it again, after `wait_seconds` where they are given.

    `elsewhere`: providers that are not configured here, with all that is unfinished there. While one is missing and not
    left out on purpose, sending stays stopped: what it moved since the backup is not known.
    """

    marked: int
    looked_up: int
    transferred: int
    cleared: int
    disputed: int
    undecided: int
    orphans: int
    keys_differ: int
    charges: Checked
    refunds: Checked
    is_confirmed: bool
    wait_seconds: float = 0.0
    elsewhere: Mapping[str, int] = {}
    unreachable: tuple[str, ...] = ()


async def recover(
    database: Database,
    providers: Mapping[str, Provider],
    settler: Settler,
    payments: Payments,
    refunds: Refunds,
    *,
    by: str,
    wait: bool = True,
    without: Collection[str] = (),
    limits: Limits = LIMITS,
    tell: Callable[[str], None] = lambda _line: None,
) -> Recovered:
    """Ask the providers about everything unfinished; let sending go on once all of it is known.

    `without`: providers that are not configured here any more and need not be asked. Raises Misconfigured, before
    anything is stopped, where one of them was never used here either: it is another's name, mistyped.
    """
    await _require_known(database, providers, without)
    await _distrust(database, limits)
    tell(
        "Nothing is sent from this database until this has run to its end. It may be broken off (Ctrl-C) and run "
        "again: it goes on with the wait that began."
    )
    known_until, now = await store.last_known(database)
    # Before anything is listed: a life that begins, or is proven, after that is nobody's here to call read.
    unread = {name: await life.unread(database, name) for name in {*providers, *without}}
    # Before anything is asked: a generation that was lost with the backup is seen by its movement alone.
    await _orphans(database, providers, known_until, now, unread, limits=limits, only_keep=True)
    marked, wrong = await _mark(database, providers, now, by=by, limits=limits)
    tell(
        f"{marked['PAYOUT']} unfinished payouts, {marked['CHARGE']} charges and {marked['REFUND']} refunds are to be "
        "asked about"
    )
    left = await _seconds_left(database, providers, limits)
    if left > 0 and wait:
        tell(f"waiting {left:.0f} s: what was sent before the restore may still be on its way")
        await _wait(left + _A_MOMENT, limits, tell)
        # The database's clock decides: ours may have gone faster, or its own was set back meanwhile.
        left = await _seconds_left(database, providers, limits)
    tell("asking the providers")
    asked = await settler.ask()
    about: dict[Kind, AskedAbout] = {"CHARGE": await payments.ask(), "REFUND": await refunds.ask()}
    orphans, unreachable = await _orphans(database, providers, known_until, now, unread, limits=limits)
    open_ = sum(one.rows for one in await store.open_rows(database) if one.provider in providers)
    standing = [one for one in await log.standing(database) if one.provider in providers]
    elsewhere = await store.elsewhere(database, list(providers))
    is_decided = open_ == 0 and not any(one.undecided for one in standing)
    # What is on its way is in no list: one that was read before it came has shown nothing.
    is_settled = left <= 0
    is_confirmed = is_decided and is_settled and not unreachable and not (elsewhere.keys() - set(without))
    if is_confirmed:
        await _confirm(database, providers, unread)

    def checked(kind: Kind) -> Checked:
        return _checked(
            about[kind], [one for one in standing if one.kind == kind], marked[kind], wrong[kind], orphans[kind]
        )

    return Recovered(
        marked=marked["PAYOUT"],
        looked_up=asked.looked_up,
        transferred=asked.transferred,
        cleared=asked.cleared,
        disputed=asked.disputed + wrong["PAYOUT"],
        undecided=open_,
        orphans=orphans["PAYOUT"],
        keys_differ=wrong["PAYOUT"],
        charges=checked("CHARGE"),
        refunds=checked("REFUND"),
        is_confirmed=is_confirmed,
        wait_seconds=left,
        elsewhere=elsewhere,
        unreachable=unreachable,
    )


def _checked(asked: AskedAbout, standing: list[Unfinished], marked: int, wrong: int, orphans: int) -> Checked:
    return Checked(
        marked=marked,
        looked_up=asked.looked_up,
        found=asked.found,
        absent=asked.absent,
        waiting_for_person=sum(one.waiting_for_person for one in standing),
        undecided=sum(one.undecided for one in standing),
        orphans=orphans,
        keys_differ=wrong,
    )


async def _require_known(database: Database, providers: Mapping[str, Provider], names: Collection[str]) -> None:
    used = await store.elsewhere(database, []) if names else {}
    strange = sorted(set(names) - providers.keys() - used.keys())
    if strange:
        known = ", ".join(sorted(providers.keys() | used.keys())) or "none"
        raise Misconfigured(
            f"--without {strange[0]}: no provider of that name is configured here, nor was one ever used. "
            f"Known: {known}. Nothing was changed."
        )


async def _distrust(database: Database, limits: Limits) -> None:
    """Behind everybody who is letting something be sent at this moment: no transaction of ours is longer than this."""
    give_up_at = steady() + limits.transaction_seconds
    while True:
        try:
            return await store.distrust(database)
        except InFlight:
            if steady() > give_up_at:
                raise
            # Those who queued up behind us pass.
            await asyncio.sleep(limits.deferral_seconds)


async def _wait(seconds: float, limits: Limits, tell: Callable[[str], None]) -> None:
    """Somebody watches, who must be able to tell a wait from a standstill."""
    ends = steady() + seconds
    while (left := ends - steady()) > 0:
        await asyncio.sleep(min(left, limits.recovery_told_seconds))
        if (left := ends - steady()) > limits.recovery_told_seconds / 10:
            tell(f"{left:.0f} s left")


async def _confirm(
    database: Database, providers: Mapping[str, Provider], unread: Mapping[str, life.Unread | None]
) -> None:
    await store.confirm(database)
    for name, one in unread.items():
        if one is not None:
            await life.read(database, name, one.life, "recovered" if name in providers else "left out")


async def _mark(
    database: Database, providers: Mapping[str, Provider], now: datetime, *, by: str, limits: Limits
) -> tuple[Counter[str], Counter[str]]:
    """How many were marked, and how many of them have a wrong key, of each kind."""
    marked: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for name in (*providers, *await store.elsewhere(database, list(providers))):
        settles_in = providers[name].facts.settles_in if name in providers else _LONGEST_IN_FLIGHT
        due_at = now + timedelta(seconds=limits.send_seconds) + settles_in
        await store.ask_again(database, name, due_at=due_at)
        while True:
            some, of_them = await store.mark(database, name, due_at=due_at, by=by, most=_MARKED_AT_ONCE)
            if not some:
                break
            marked["PAYOUT"], wrong["PAYOUT"] = marked["PAYOUT"] + some, wrong["PAYOUT"] + of_them
        await log.ask_again(database, name, due_at=due_at)
        for kind in _KINDS:
            while True:
                some, of_them = await log.mark(
                    database, kind, name, due_at=due_at, can_be_asked=name in providers, most=_MARKED_AT_ONCE
                )
                if not some:
                    break
                marked[kind], wrong[kind] = marked[kind] + some, wrong[kind] + of_them
    return marked, wrong


async def _seconds_left(database: Database, providers: Mapping[str, Provider], limits: Limits) -> float:
    """Until the last of them may be asked about, and the lists show what was sent, also of rows that were lost."""
    payouts, others = await store.open_rows(database), await log.standing(database)
    waits = [(one.last - one.now).total_seconds() for one in payouts if one.provider in providers]
    waits += [(one.last - one.now).total_seconds() for one in others if one.provider in providers]
    permit = timedelta(seconds=limits.send_seconds)
    for name, provider in providers.items():
        one = await life.unread(database, name)
        if one is not None:
            waits.append((one.began_at + permit + provider.facts.settles_in - one.now).total_seconds())
    return max(0.0, *waits) if waits else 0.0


async def _orphans(
    database: Database,
    providers: Mapping[str, Provider],
    known_until: datetime | None,
    now: datetime,
    unread: Mapping[str, life.Unread | None],
    *,
    limits: Limits,
    only_keep: bool = False,
) -> tuple[Counter[str], tuple[str, ...]]:
    """Movements since the backup that no row here explains, by kind; and the providers whose list could not be read."""
    found: Counter[str] = Counter()
    unreachable = []
    since = now - LONGEST_BACK if known_until is None else read_from(known_until, now)
    until = now + timedelta(seconds=limits.send_seconds) + OVERLAP
    for name, provider in providers.items():
        one = unread.get(name)
        # As far back as the oldest life that nobody has read: what was sent since hides it.
        start = since if one is None else min(since, read_from(one.known_until, one.began_at))
        try:
            async for movement in asking.made(provider, since=start, until=until, now=now):
                is_orphan = await orphans.keep_if_orphan(database, name, movement)
                if movement.purpose not in MOVES_MONEY_OUT:
                    # What was declined took nothing: it is kept like the others, and tells nobody anything.
                    found[movement.purpose.upper()] += is_orphan and movement.state != "failed"
                elif is_orphan:
                    found["PAYOUT"] += 1
                elif not only_keep:
                    # What the backup calls failed, or paid otherwise, the lost life may have paid.
                    await review.observe(database, name, movement)
        except PartlyUnreadable:
            # All else was listed; what we make can be read.
            continue
        except ProviderUnreachable:
            unreachable.append(name)
    return found, tuple(unreachable)
