"""Where a settlement's money is, as ledger postings. Pure.

    created       the source  ──> payable of the squad (net), fees (fee)
    claimed       payable     ──> in transit
    transferred   in transit  ──> paid out
    failed        in transit  ──> payable
    disputed      stays in transit; from transferred, failed or pending it goes (back) there
    residue       what the provider cannot write stays on payable

A posting covers up to `MOST_ITEMS` settlements of one tenant, provider and currency: a tick of a thousand rows is a few
ledger operations, and each of them names every settlement in it. Only these kinds may touch the reserved accounts.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from tallystick.keys.derived import operation_id
from tallystick.ledger.claims import Claim, Tenant
from tallystick.ledger.kinds import Kind, Operation, Reading
from tallystick.ledger.outcome import Transaction
from tallystick.ledger.rules import MAX_LEGS, Leg

Move = Literal["claimed", "transferred", "failed", "disputed_again", "disputed_after_all"]
PayoutAccount = Literal["payable", "in_transit", "paid_out"]

# From where to where each move goes.
MOVES: Final[Mapping[Move, tuple[PayoutAccount, PayoutAccount]]] = {
    "claimed": ("payable", "in_transit"),
    "transferred": ("in_transit", "paid_out"),
    "failed": ("in_transit", "payable"),
    "disputed_again": ("paid_out", "in_transit"),
    "disputed_after_all": ("payable", "in_transit"),
}
# One leg is for the account they all share.
MOST_ITEMS: Final = MAX_LEGS - 1


def clearing(currency: str) -> str:
    """Where a tenant's settlements are paid from, unless they name a source of their own."""
    return f"settlement:clearing:{currency}"


def fees(currency: str) -> str:
    """What the platform has earned."""
    return f"settlement:fees:{currency}"


def payable(squad_id: str, currency: str) -> str:
    """What is owed to a squad and not on its way."""
    return f"settlement:payable:{currency}:{squad_id}"


def in_transit(provider: str, currency: str) -> str:
    """What was claimed and is not known to have arrived, nor to have failed."""
    return f"settlement:in_transit:{currency}:{provider}"


def paid_out(provider: str, currency: str) -> str:
    """What the provider has paid."""
    return f"settlement:paid_out:{currency}:{provider}"


class PayoutItem(msgspec.Struct, frozen=True, array_like=True):
    """One settlement in a posting."""

    settlement: str
    squad_id: str
    amount_micros: int


class SettlementCreated(Operation, frozen=True, tag_field="kind", tag="settlement.created"):
    """A payout is promised. The fee is the tenant's policy's, so it is no part of what the caller asked.

    `source` is whose money it is; without one, the clearing account's.
    """

    attribution_id: str
    squad_id: str
    gross_micros: int
    currency: str
    destination: str
    provider: str
    source: str | None = None


def source_of(operation: SettlementCreated) -> str:
    """The account that is debited."""
    return clearing(operation.currency) if operation.source is None else operation.source


class SettlementMoved(Operation, frozen=True, tag_field="kind", tag="settlement.moved"):
    """Several settlements went the same way."""

    move: Move
    provider: str
    currency: str
    items: tuple[PayoutItem, ...]


def _no_transactions_accounts(operation: SettlementMoved, _transactions: Mapping[str, Transaction]) -> Iterable[str]:
    return [leg.account for leg in _moved_legs(operation)]


def _moved_legs(operation: SettlementMoved) -> list[Leg]:
    amounts: dict[str, int] = {}
    source, target = MOVES[operation.move]
    for item in operation.items:
        for place, sign in ((source, -1), (target, 1)):
            account = _account(place, operation, item)
            amounts[account] = amounts.get(account, 0) + sign * item.amount_micros
    return [Leg(account, amount, operation.currency) for account, amount in amounts.items()]


def _account(place: PayoutAccount, operation: SettlementMoved, item: PayoutItem) -> str:
    match place:
        case "payable":
            return payable(item.squad_id, operation.currency)
        case "in_transit":
            return in_transit(operation.provider, operation.currency)
        case "paid_out":
            return paid_out(operation.provider, operation.currency)


def _decide_moved(operation: SettlementMoved, _reading: Reading) -> Iterable[Leg]:
    return _moved_legs(operation)


MOVED: Final = Kind(SettlementMoved, _no_transactions_accounts, _decide_moved, checks_accounts=True, internal=True)


def created_kind(fee: int) -> Kind:
    """The kind that posts one creation, with the fee the tenant's policy gives it."""

    def legs(operation: SettlementCreated) -> list[Leg]:
        found = [
            Leg(source_of(operation), -operation.gross_micros, operation.currency),
            Leg(payable(operation.squad_id, operation.currency), operation.gross_micros - fee, operation.currency),
        ]
        if fee:
            found.append(Leg(fees(operation.currency), fee, operation.currency))
        return found

    return Kind(
        SettlementCreated,
        lambda operation, _transactions: [leg.account for leg in legs(operation)],
        lambda operation, _reading: legs(operation),
        checks_accounts=True,
        internal=True,
    )


_encode = msgspec.json.Encoder(order="deterministic").encode


def created_request(operation: SettlementCreated) -> bytes:
    """The canonical form that a caller's key is bound to."""
    return _encode(operation)


def claim_of(tenant: Tenant, kind: Kind, operation: Operation, key: str) -> Claim:
    """The claim of an internal operation, for `ledger.batch.run`."""
    accounts = tuple((tenant.number, name) for name in kind.locks(operation, {}))
    return Claim(tenant, operation_id(tenant.name, key), key, kind, operation, _encode(operation), accounts)


def moved_key(token: str, number: int) -> str:
    """The key of a posting: `token` is that of the transaction it belongs to, `number` counts within its tenant."""
    return f"settlement/{token}/{number}"


class PayoutMoved(msgspec.Struct, frozen=True):
    """A settlement that goes a way, before it is grouped with others."""

    tenant: Tenant
    move: Move
    provider: str
    currency: str
    item: PayoutItem


def postings(moves: Sequence[PayoutMoved], token: str) -> list[Claim]:
    """As few ledger operations as hold them all. The same moves under the same token give the same operations."""
    groups: dict[tuple[Tenant, Move, str, str], list[PayoutItem]] = {}
    for moved in moves:
        groups.setdefault((moved.tenant, moved.move, moved.provider, moved.currency), []).append(moved.item)
    numbers: dict[Tenant, int] = {}
    claims = []
    for (tenant, move, provider, currency), items in groups.items():
        for start in range(0, len(items), MOST_ITEMS):
            number = numbers[tenant] = numbers.get(tenant, -1) + 1
            part = tuple(items[start : start + MOST_ITEMS])
            operation = SettlementMoved(move=move, provider=provider, currency=currency, items=part)
            claims.append(claim_of(tenant, MOVED, operation, moved_key(token, number)))
    return claims
