"""Who may pay how much to whom: a tenant's policy, and what it says to a payout. Pure.

Refusals, in order of precedence:

    currency_not_permitted   the policy has ceilings, and none for this currency
    destination_unknown      nobody has made it known
    destination_waiting      made known, and not for long enough yet
    payout_above_ceiling     more than one payout may be
    day_ceiling_reached      with what was promised today, more than a day may have
    second_person_needed     it would wait for a second person, and nobody knows who the first one is

Amounts are of gross. The database holds the same rules, under a lock (`tally.settlement_authorised`).
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tallystick.audit.author import is_somebody, person_of
from tallystick.ledger.kinds import currency_fault
from tallystick.ledger.outcome import Rejected
from tallystick.money.amounts import MAX_MICROS, format_amount

# How the database says that a payout is beyond the policy: it was changed meanwhile.
OTHER_POLICY: Final = "TS007"
DAY_CEILING_REACHED: Final = "day_ceiling_reached"
# A year: who waits longer has another problem.
MAX_WAITING_SECONDS: Final = 31_536_000
# Far more currencies than there are.
MAX_CEILINGS: Final = 300


class Ceiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be paid out in one currency; null: no such bound.

    More than `second_person_micros` waits for a second person.
    """

    currency: str
    payout_micros: int | None = None
    day_micros: int | None = None
    second_person_micros: int | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant's. With ceilings, only their currencies are paid; with none, every one.

    `known_destinations`: only those are paid that were made known at least `waiting_seconds` before.
    """

    known_destinations: bool = False
    waiting_seconds: int = 0
    ceilings: tuple[Ceiling, ...] = ()


class Payout(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be judged. `known_since`: when its destination was made known; None: it was not."""

    gross_micros: int
    currency: str
    provider: str
    destination: str
    author: str
    known_since: datetime | None


class Allowed(msgspec.Struct, frozen=True):
    """It may be promised; with `needs_approval` it is held until a second person has agreed."""

    needs_approval: bool


def policy_fault(policy: Policy) -> Rejected | None:
    """What is wrong with a policy alone."""
    if not 0 <= policy.waiting_seconds <= MAX_WAITING_SECONDS:
        return _invalid(f"waiting_seconds is 0 to {MAX_WAITING_SECONDS}.")
    if len(policy.ceilings) > MAX_CEILINGS:
        return _invalid(f"Send at most {MAX_CEILINGS} ceilings.")
    currencies = [ceiling.currency for ceiling in policy.ceilings]
    if len(set(currencies)) < len(currencies):
        return _invalid("Each currency has one line.")
    for ceiling in policy.ceilings:
        fault = currency_fault(ceiling.currency)
        if fault is not None:
            return fault
        bounds = (ceiling.payout_micros, 1), (ceiling.day_micros, 1), (ceiling.second_person_micros, 0)
        if not all(value is None or least <= value <= MAX_MICROS for value, least in bounds):
            return _invalid("Ceilings are whole micros above 0; second_person_micros may be 0: every payout.")
    return None


def judge(policy: Policy, payout: Payout, used: Mapping[str, int], now: datetime) -> Allowed | Rejected:
    """Whether it may be promised. `used` is what the day has, by currency."""
    line = next((one for one in policy.ceilings if one.currency == payout.currency), None)
    if line is None and policy.ceilings:
        return _refused(
            "currency_not_permitted",
            f"The tenant's policy has no line for {payout.currency}.",
            "Pay in a currency that it has, or have an administrator add one.",
        )
    refusal = _destination_fault(policy, payout, now)
    if refusal is not None or line is None:
        return refusal or Allowed(needs_approval=False)
    gross = format_amount(payout.gross_micros, payout.currency)
    if line.payout_micros is not None and payout.gross_micros > line.payout_micros:
        return _refused(
            "payout_above_ceiling",
            f"{gross} is more than one payout may be: {format_amount(line.payout_micros, payout.currency)}.",
            "Have an administrator change the ceiling, if this is right.",
        )
    today = used.get(payout.currency, 0)
    if line.day_micros is not None and today + payout.gross_micros > line.day_micros:
        return _refused(
            DAY_CEILING_REACHED,
            f"Today (UTC) has {format_amount(today, payout.currency)} of "
            f"{format_amount(line.day_micros, payout.currency)} already, and {gross} was asked for.",
            "Send the same request tomorrow; or have an administrator change the ceiling.",
        )
    is_held = line.second_person_micros is not None and payout.gross_micros > line.second_person_micros
    if is_held and not is_somebody(person_of(payout.author)):
        return _refused(
            "second_person_needed",
            f"{gross} needs a second person, and {payout.author} is nobody's name: whoever approves may be the same.",
            "Ask with a key that was made for a person or a service: `tally keys create --for NAME`.",
        )
    return Allowed(needs_approval=is_held)


def _destination_fault(policy: Policy, payout: Payout, now: datetime) -> Rejected | None:
    if not policy.known_destinations:
        return None
    if payout.known_since is None:
        return _refused(
            "destination_unknown",
            f"{payout.destination!r:.80} at {payout.provider} was not made known before.",
            f"PUT /v1/destinations, and pay after {policy.waiting_seconds} s.",
        )
    usable_at = payout.known_since + timedelta(seconds=policy.waiting_seconds)
    if now < usable_at:
        return _refused(
            "destination_waiting",
            f"{payout.destination!r:.80} at {payout.provider} may be paid from {usable_at:%Y-%m-%d %H:%M:%S} UTC on.",
            "Send the same request then. Whoever did not expect this destination withdraws it meanwhile.",
        )
    return None


def _refused(code: str, detail: str, remedy: str) -> Rejected:
    return Rejected(code, f"{detail} Nothing was created; the money is where it was.", remedy)


def _invalid(remedy: str) -> Rejected:
    return Rejected("authority_invalid", "This is no policy that can be kept.", remedy)
