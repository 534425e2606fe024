"""Where the money of checkout is, as ledger postings. Pure.

    paid            taken  ──> sales     an order is paid
    held            taken  ──> owed      it came too late, twice, or with another amount
    refunded        owed   ──> taken     the provider has the refund
    refund_failed   taken  ──> owed      it came back, or failed after all: still owed
    kept            owed   ──> sales     a person has decided that it may stay
    giving_back     sales  ──> owed      a part of what was paid is to be given back, because its tenant asked for it
    not_given_back  owed   ──> sales     the provider refused that part for good
    came_back       taken  ──> sales     that part failed after all, or came back

`taken` is what the provider has taken from customers and not given back, with a minus: its half of the tally. A posting
covers up to `MOST_ITEMS` payments of one tenant, provider and currency, and names each of them. Only these kinds may
touch `taken` and `owed`; what is in `sales` is the tenant's to use.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from tallystick.ledger.claims import Claim, Tenant
from tallystick.ledger.kinds import Kind, Operation, Reading
from tallystick.ledger.outcome import Transaction
from tallystick.ledger.rules import Leg
from tallystick.settlement.postings import claim_of

Move = Literal["paid", "held", "refunded", "refund_failed", "kept", "giving_back", "not_given_back", "came_back"]
PaymentAccount = Literal["taken", "sales", "owed"]

MOVES: Final[Mapping[Move, tuple[PaymentAccount, PaymentAccount]]] = {
    "paid": ("taken", "sales"),
    "held": ("taken", "owed"),
    "refunded": ("owed", "taken"),
    "refund_failed": ("taken", "owed"),
    "kept": ("owed", "sales"),
    "giving_back": ("sales", "owed"),
    "not_given_back": ("owed", "sales"),
    "came_back": ("taken", "sales"),
}
# A posting is one row of evidence: of this many payments it is still small enough to be read.
MOST_ITEMS: Final = 1_000
FLOORS: Final[Mapping[PaymentAccount, int | None]] = {"taken": None, "sales": 0, "owed": 0}


def account(place: PaymentAccount, provider: str, currency: str) -> str:
    """The account of a place."""
    return f"checkout:taken:{currency}:{provider}" if place == "taken" else f"checkout:{place}:{currency}"


class PaymentItem(msgspec.Struct, frozen=True, array_like=True):
    """One payment in a posting."""

    order: str
    payment_intent_id: str
    amount_micros: int


class CheckoutMoved(Operation, frozen=True, tag_field="kind", tag="checkout.moved"):
    """Several payments went the same way."""

    move: Move
    provider: str
    currency: str
    items: tuple[PaymentItem, ...]


def _legs(operation: CheckoutMoved) -> list[Leg]:
    total = sum(item.amount_micros for item in operation.items)
    source, target = (account(place, operation.provider, operation.currency) for place in MOVES[operation.move])
    return [Leg(source, -total, operation.currency), Leg(target, total, operation.currency)]


def _accounts(operation: CheckoutMoved, _transactions: Mapping[str, Transaction]) -> Iterable[str]:
    return [leg.account for leg in _legs(operation)]


def _decide(operation: CheckoutMoved, _reading: Reading) -> Iterable[Leg]:
    return _legs(operation)


MOVED: Final = Kind(CheckoutMoved, _accounts, _decide, checks_accounts=True, internal=True)


class PaymentMoved(msgspec.Struct, frozen=True):
    """A payment that goes a way, before it is grouped with others.

    A refund can fail and be made again: `occasion` tells the times apart that one payment goes the same way.
    """

    tenant: Tenant
    move: Move
    provider: str
    currency: str
    item: PaymentItem
    occasion: str = ""


def postings(moves: Sequence[PaymentMoved], token: str) -> list[Claim]:
    """As few ledger operations as hold them all. The same moves under the same token give the same operations."""
    groups: dict[tuple[Tenant, Move, str, str], list[PaymentItem]] = {}
    for moved in moves:
        groups.setdefault((moved.tenant, moved.move, moved.provider, moved.currency), []).append(moved.item)
    numbers: dict[Tenant, int] = {}
    claims = []
    for (tenant, move, provider, currency), items in groups.items():
        for start in range(0, len(items), MOST_ITEMS):
            number = numbers[tenant] = numbers.get(tenant, -1) + 1
            part = tuple(items[start : start + MOST_ITEMS])
            operation = CheckoutMoved(move=move, provider=provider, currency=currency, items=part)
            claims.append(claim_of(tenant, MOVED, operation, f"checkout/{token}/{number}"))
    return claims


def accounts_of(moves: Sequence[PaymentMoved]) -> dict[tuple[int, str], tuple[str, int | None]]:
    """What must exist for them: by tenant's number and account, its currency and floor."""
    ways = {(moved.tenant.number, moved.move, moved.provider, moved.currency) for moved in moves}
    return {
        (number, account(place, provider, currency)): (currency, FLOORS[place])
        for number, move, provider, currency in ways
        for place in MOVES[move]
    }
