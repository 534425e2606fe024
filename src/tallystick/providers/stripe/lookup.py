"""Did it happen? Stripe's books, asked by our own key (docs/providers.md 2.9).

transfer   list filtered by transfer_group         exact
refund     list of the payment's refunds           exact
charge     list of a span of time, matched by us   scan
payout     the same                                scan
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from tallystick.core.currencies import Purpose
from tallystick.core.keys import hex64
from tallystick.core.provider import Absent, Exchange, Found, Instruction, Looked, Movement, Refund, Undecided
from tallystick.providers.line import Line
from tallystick.providers.paging import BrokenOff
from tallystick.providers.stripe.facts import FACTS
from tallystick.providers.stripe.objects import PATHS, Unreadable, read_object
from tallystick.providers.stripe.pages import pages
from tallystick.providers.stripe.request import Pairs, account_of, payment_filter, purpose_of

# Stripe's clock against the database's: what was made at our first send may bear a time before it.
SKEW: Final = timedelta(minutes=10)
MOST_PAGES: Final = 100
# Enough to see how the question ended; a scan of a hundred pages is no evidence a person reads.
_KEPT_EXCHANGES: Final = 3


async def look_up(line: Line, instruction: Instruction, *, first_sent_at: datetime, now: datetime) -> Looked:
    """Ask for everything that bears our key. Two or more are told as such: the caller must know."""
    purpose = purpose_of(instruction)
    key = hex64(instruction.key)
    question = _question(purpose, instruction, key, first_sent_at=first_sent_at, now=now)
    if question is None:
        return Undecided(code="payment_id_invalid", message="The payment is no id of Stripe's: it cannot be asked for.")
    account = account_of(instruction)
    found: list[Movement] = []
    evidence: list[Exchange] = []
    try:
        async for page, exchange in pages(line, PATHS[purpose], question, account=account, most=MOST_PAGES):
            evidence.append(exchange)
            for item in page.data:
                kept = read_object(purpose, item)
                if kept.reference == key:
                    found.append(kept.movement(account))
    except BrokenOff as error:
        return _undecided(str(error), [*evidence, error.exchange])
    except Unreadable as error:
        return _undecided(f"an item of the list cannot be read: {error}", evidence)
    if found:
        return Found(movements=tuple(found), evidence=tuple(evidence[-_KEPT_EXCHANGES:]))
    return Absent(lookup=FACTS.lookup[purpose], evidence=tuple(evidence[-_KEPT_EXCHANGES:]))


def _question(
    purpose: Purpose, instruction: Instruction, key: str, *, first_sent_at: datetime, now: datetime
) -> Pairs | None:
    if purpose == "transfer":
        return (("transfer_group", key),)
    if isinstance(instruction, Refund):
        payment = payment_filter(instruction.payment_id)
        return None if payment is None else (payment,)
    return (
        ("created[gte]", str(int((first_sent_at - SKEW).timestamp()))),
        ("created[lte]", str(int((now + SKEW).timestamp()))),
    )


def _undecided(reason: str, evidence: Sequence[Exchange]) -> Undecided:
    return Undecided(
        code="lookup_broken_off",
        message=f"Stripe's books were not read to the end: {reason}.",
        evidence=tuple(evidence[-_KEPT_EXCHANGES:]),
    )
