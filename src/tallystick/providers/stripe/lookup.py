"""Did it happen? Stripe's books, asked by our own key (docs/providers.md 2.9).

transfer   list filtered by transfer_group         exact
refund     list of the payment's refunds           exact
charge     list of a span of time, matched by us   scan
payout     the same                                scan
"""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Final

from tallystick.keys.derived import hex64
from tallystick.money.currencies import Purpose
from tallystick.providers.line import Line
from tallystick.providers.paging import BrokenOff
from tallystick.providers.scanning import KEPT_EXCHANGES, Scanned, Scanner, Unfinished, window
from tallystick.providers.stripe.facts import FACTS
from tallystick.providers.stripe.objects import PATHS, Kept, Unreadable, read_object
from tallystick.providers.stripe.pages import pages
from tallystick.providers.stripe.request import Pairs, account_of, payment_filter, purpose_of
from tallystick.providers.words import Absent, Exchange, Found, Instruction, Looked, Refund, Undecided

# Of what is asked for by our key, or by a payment: ten thousand of those are none.
MOST_PAGES: Final = 100
# A scan is bounded by its time. This stops a list that goes in a circle.
_MOST_PAGES_OF_A_SCAN: Final = 100_000


async def look_up(
    line: Line,
    scanner: Scanner,
    instruction: Instruction,
    *,
    first_sent_at: datetime,
    now: datetime,
    until: datetime | None,
) -> Looked:
    """Ask for everything that bears our key. Two or more are told as such: the caller must know."""
    purpose = purpose_of(instruction)
    key, account = hex64(instruction.key), account_of(instruction)
    exact = _exact(purpose, instruction, key)
    try:
        if exact == ():
            return Undecided(
                code="payment_id_invalid", message="The payment is no id of Stripe's: it cannot be asked for."
            )
        if exact is not None:
            scanned = await _asked(line, purpose, exact, key, account)
        else:
            since, end = window(first_sent_at, now=now, until=until)
            scanned = await scanner.find(
                f"{purpose} {account}",
                key,
                lambda first, last: _listed(line, purpose, _span(first, last), account, _MOST_PAGES_OF_A_SCAN),
                since=since,
                until=end,
                now=now,
            )
        movements = tuple(kept.movement(account) for kept in scanned.found)
    except Unfinished as error:
        return Undecided(
            code="lookup_unfinished",
            message=f"Stripe's books are being read: {error}.",
            evidence=error.exchanges,
        )
    except BrokenOff as error:
        return _undecided(str(error), [error.exchange])
    except Unreadable as error:
        return _undecided(f"an item of the list cannot be read: {error}", [])
    if movements:
        return Found(movements=movements, evidence=scanned.exchanges)
    return Absent(lookup=FACTS.lookup[purpose], evidence=scanned.exchanges)


def _exact(purpose: Purpose, instruction: Instruction, key: str) -> Pairs | None:
    """How it is asked for by something of ours. None: by a span of time; nothing in it: not at all."""
    if purpose == "transfer":
        return (("transfer_group", key),)
    if isinstance(instruction, Refund):
        payment = payment_filter(instruction.payment_id)
        return () if payment is None else (payment,)
    return None


async def _asked(line: Line, purpose: Purpose, question: Pairs, key: str, account: str) -> Scanned[Kept]:
    found: dict[str, Kept] = {}
    evidence: list[Exchange] = []
    async for items, exchange in _listed(line, purpose, question, account, MOST_PAGES):
        evidence.append(exchange)
        found |= {kept.id: kept for kept in items if kept.reference == key}
    return Scanned(tuple(found.values()), tuple(evidence[-KEPT_EXCHANGES:]))


async def _listed(
    line: Line, purpose: Purpose, question: Pairs, account: str, most: int
) -> AsyncGenerator[tuple[Sequence[Kept], Exchange], None]:
    async for page, exchange in pages(line, PATHS[purpose], question, account=account, most=most):
        yield [read_object(purpose, item) for item in page.data], exchange


def _span(first: int, end: int) -> Pairs:
    return (("created[gte]", str(first)), ("created[lte]", str(end - 1)))


def _undecided(reason: str, evidence: Sequence[Exchange]) -> Undecided:
    return Undecided(
        code="lookup_broken_off",
        message=f"Stripe's books were not read to the end: {reason}.",
        evidence=tuple(evidence),
    )
