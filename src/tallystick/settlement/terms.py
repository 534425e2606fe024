"""What a settlement is worth, and whether it may be created. Pure.

Refusals, in order of precedence:

    attribution_invalid, squad_invalid, destination_invalid     the request itself
    amount_not_integer, amount_not_positive, amount_overflow, currency_unknown
    account_invalid, account_reserved                           the source
    net_not_positive          the fee takes everything
    net_not_payable           less than the smallest amount the provider can pay
"""

import re
from typing import Final
from uuid import UUID

import msgspec

from tallystick.keys.derived import digest, settlement_key
from tallystick.ledger.kinds import RESERVED, account_fault, account_reserved, currency_fault
from tallystick.ledger.outcome import Rejected
from tallystick.money.amounts import amount_fault, format_amount
from tallystick.settlement.postings import SettlementCreated
from tallystick.settlement.rules import fee_micros

# A thousand million of the major unit: more is a slip of the finger, and a few of them would overflow an account.
MAX_GROSS_MICROS: Final = 10**15
MAX_ATTRIBUTION: Final = 200
MAX_SQUAD: Final = 120
MAX_DESTINATION: Final = 1_000

_ATTRIBUTION: Final = re.compile(rf"[!-~]{{1,{MAX_ATTRIBUTION}}}")
# A part of an account's id.
_SQUAD: Final = re.compile(rf"[A-Za-z0-9:_.@+=-]{{1,{MAX_SQUAD}}}")


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The platform's part of a payout: a share in parts per million and a fixed amount, and at least a minimum."""

    percent_ppm: int = 0
    fixed_micros: int = 0
    minimum_micros: int = 0


NO_FEE: Final = Policy()


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the gross amount. `amount_micros` is sent; the rest of net stays payable."""

    fee_micros: int
    net_micros: int
    amount_micros: int


def wish_fault(wish: SettlementCreated) -> Rejected | None:
    """What is wrong with the request alone."""
    for code, value, pattern, allowed in (
        ("attribution_invalid", wish.attribution_id, _ATTRIBUTION, f"1 to {MAX_ATTRIBUTION} visible ASCII characters"),
        ("squad_invalid", wish.squad_id, _SQUAD, f"1 to {MAX_SQUAD} letters, digits and : _ . @ + = -"),
    ):
        if type(value) is not str or not pattern.fullmatch(value):
            name = code.removesuffix("_invalid")
            return Rejected(code, f"{value!r:.80} is not a {name}.", f"Use {allowed}.")
    refusal = destination_fault(wish.destination)
    if refusal is not None:
        return refusal
    fault = amount_fault(wish.gross_micros)
    if fault is None and wish.gross_micros > MAX_GROSS_MICROS:
        fault = "amount_overflow"
    if fault is not None:
        return Rejected(
            fault,
            f"gross_micros is {wish.gross_micros!r:.80}, which is not an amount.",
            "Send a whole number of micros (millionths of the major unit) from 1 to 10^15.",
        )
    return currency_fault(wish.currency) or _source_fault(wish)


def destination_fault(destination: object) -> Rejected | None:
    """What cannot be anybody's destination."""
    # What it must look like is the provider's; a bank account is often a small JSON object with a person's name.
    if type(destination) is str and 0 < len(destination) <= MAX_DESTINATION and destination.isprintable():
        return None
    return Rejected(
        "destination_invalid",
        f"{destination!r:.80} is not a destination.",
        f"Use 1 to {MAX_DESTINATION} printable characters, as the provider wants them.",
    )


def _source_fault(wish: SettlementCreated) -> Rejected | None:
    if wish.source is None:
        return None
    fault = account_fault(wish.source)
    if fault is not None:
        return fault
    # What a flow has promised cannot be promised again.
    return account_reserved(wish.source) if wish.source.startswith(RESERVED) else None


def terms(wish: SettlementCreated, policy: Policy, *, step_micros: int) -> Terms | Rejected:
    """What is paid, and what stays. `step_micros` is the smallest amount the provider can write."""
    fee = fee_micros(
        wish.gross_micros,
        percent_ppm=policy.percent_ppm,
        fixed_micros=policy.fixed_micros,
        minimum_micros=policy.minimum_micros,
    )
    net = wish.gross_micros - fee
    if net <= 0:
        gross, taken = format_amount(wish.gross_micros, wish.currency), format_amount(fee, wish.currency)
        return Rejected(
            "net_not_positive",
            f"Of {gross} the platform's fee takes {taken}: nothing would be left to pay.",
            "Settle a larger amount, or have an administrator change the tenant's fee.",
        )
    amount = net - net % step_micros
    if amount == 0:
        return Rejected(
            "net_not_payable",
            f"{format_amount(net, wish.currency)} after the fee is less than {wish.provider} can pay, which is "
            f"{format_amount(step_micros, wish.currency)}.",
            "Settle it together with other amounts.",
        )
    return Terms(fee_micros=fee, net_micros=net, amount_micros=amount)


def identity(tenant: str, attribution_id: str, squad_id: str) -> UUID:
    """A settlement's id: the same attribution and squad are the same payout, on every host."""
    return UUID(bytes=digest("settlement_id", tenant=tenant, attribution_id=attribution_id, squad_id=squad_id)[:16])


def payout_approval(settlement: UUID) -> UUID:
    """The id of the approval that a payout waits for: of each there is one."""
    return UUID(bytes=digest("payout_approval", settlement=settlement.hex)[:16])


def first_key(tenant: str, wish: SettlementCreated, net_micros: int) -> bytes:
    """The provider's key of the first generation."""
    return settlement_key(
        tenant=tenant,
        currency=wish.currency,
        provider=wish.provider,
        attribution_id=wish.attribution_id,
        squad_id=wish.squad_id,
        net_micros=net_micros,
    )


def conflict(wish: SettlementCreated, existing: SettlementCreated, name: str) -> Rejected | None:
    """Why the settlement that exists is not the one that is wished for; names both."""
    asked, stored = msgspec.structs.asdict(wish), msgspec.structs.asdict(existing)
    fields = tuple(sorted(field for field, value in asked.items() if stored[field] != value))
    if not fields:
        return None
    told = "; ".join(f"{field} is {_told(existing, field)} and {_told(wish, field)} was asked for" for field in fields)
    return Rejected(
        "settlement_conflict",
        f"{name} settles attribution {wish.attribution_id} for squad {wish.squad_id} already: {told}. "
        "Nothing was created.",
        "Compare the two. What is owed in addition is a settlement of its own, under an attribution of its own.",
        fields,
    )


def _told(wish: SettlementCreated, field: str) -> str:
    return format_amount(wish.gross_micros, wish.currency) if field == "gross_micros" else str(getattr(wish, field))
