"""An order is a reservation: what may be asked for, what the gate grants, and how it ends. Pure.

    PENDING ──> PAID                    the money has come
            ──> CANCELLED               somebody gave it up
            ──> CANCELLED_BY_SWEEPER    nobody paid in time, nor in the grace after it

PENDING holds its quantity in the SKU's `reserved`, PAID in `sold`, a cancelled one nothing. Each step is taken once.

Refusals, in order of precedence:

    sku_invalid, quantity_not_integer, quantity_not_positive, quantity_too_large     the request itself
    amount_not_integer, amount_not_positive, amount_overflow, currency_unknown
    key_reused                the key belongs to another request
    sku_unknown               nobody sells it here
    quantity_above_stock      more than there ever was
    sold_out                  more than is left now
"""

import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

import msgspec

from tallystick.keys.derived import operation_id
from tallystick.ledger.claims import Claim, Known, Tenant, replay
from tallystick.ledger.kinds import Kind, Operation, currency_fault
from tallystick.ledger.outcome import Duplicate, Rejected, Transaction, encode_transaction, transaction_name
from tallystick.money.amounts import amount_fault

Status = Literal["PENDING", "PAID", "CANCELLED", "CANCELLED_BY_SWEEPER"]
STATUSES: Final[tuple[Status, ...]] = ("PENDING", "PAID", "CANCELLED", "CANCELLED_BY_SWEEPER")
# What each status may become. The same table is the trigger `transition` of tally.orders; a policy that delivers later
# what was paid late (a backorder) would add CANCELLED_BY_SWEEPER -> PAID to both.
STEPS: Final[Mapping[Status, frozenset[Status]]] = {
    "PENDING": frozenset({"PAID", "CANCELLED", "CANCELLED_BY_SWEEPER"}),
    "PAID": frozenset(),
    "CANCELLED": frozenset(),
    "CANCELLED_BY_SWEEPER": frozenset(),
}

MAX_SKU: Final = 120
# A pattern of its own: it stands in the path of calls, and unquoted inside the canonical request.
SKU_PATTERN: Final = rf"[A-Za-z0-9][A-Za-z0-9:_.@+=-]{{0,{MAX_SKU - 1}}}"
_SKU: Final = re.compile(SKU_PATTERN)
# More is a slip of the finger; and sums of it stay far from what a BIGINT holds.
MAX_QUANTITY: Final = 1_000_000
MAX_STOCK: Final = 1_000_000_000
# As for settlements: a thousand million of the major unit.
MAX_AMOUNT_MICROS: Final = 10**15

_HEXADECIMAL: Final = re.compile("[0-9a-f]{32}")

OperationName = tuple[int, bytes]
SkuName = tuple[int, str]


class OrderReserved(Operation, frozen=True, tag_field="kind", tag="order.reserved"):
    """Stock is held for a buyer. `amount_micros` is what he will pay for all of it."""

    sku: str
    quantity: int
    amount_micros: int
    currency: str


# It moves no money: no accounts, no legs. It is an operation because its key must be nobody else's.
RESERVED: Final = Kind(OrderReserved, lambda _operation, _transactions: (), lambda _operation, _reading: ())


class Stock(msgspec.Struct, frozen=True, gc=False):
    """What there is of a SKU. `stock` is all that was ever put up for sale."""

    stock: int
    reserved: int = 0
    sold: int = 0

    @property
    def available(self) -> int:
        """What may still be reserved."""
        return self.stock - self.reserved - self.sold


class Swept(msgspec.Struct, frozen=True):
    """What a sweep did: orders cancelled, pieces given back. Not `is_complete`: it ended at its bound.

    `refused` are those that the database would not let go: their SKU's counters were damaged; see `tally verify`.
    `told` were found paid at the provider, and are the saga's; `held` wait for a provider's word.
    """

    cancelled: int = 0
    released: int = 0
    refused: int = 0
    is_complete: bool = True
    told: int = 0
    held: int = 0


class Granted(msgspec.Struct, frozen=True, gc=False):
    """The gate lets it through."""


GRANTED: Final = Granted()


def sku_fault(sku: object) -> Rejected | None:
    """Refuses what cannot be a SKU."""
    if type(sku) is str and _SKU.fullmatch(sku):
        return None
    return Rejected(
        "sku_invalid",
        f"{sku!r:.80} is not a SKU.",
        f"Use 1 to {MAX_SKU} letters, digits and : _ . @ + = - and begin with a letter or digit.",
    )


def wish_fault(wish: OrderReserved) -> Rejected | None:
    """What is wrong with the request alone."""
    quantity = wish.quantity
    if type(quantity) is not int:
        fault: str | None = "quantity_not_integer"
    elif quantity <= 0:
        fault = "quantity_not_positive"
    else:
        fault = "quantity_too_large" if quantity > MAX_QUANTITY else None
    refusal = sku_fault(wish.sku)
    if refusal is not None:
        return refusal
    if fault is not None:
        return Rejected(
            fault, f"quantity is {_shown(quantity)}.", f"Ask for a whole number of pieces from 1 to {MAX_QUANTITY}."
        )
    fault = amount_fault(wish.amount_micros)
    if fault is None and wish.amount_micros > MAX_AMOUNT_MICROS:
        fault = "amount_overflow"
    if fault is not None:
        return Rejected(
            fault,
            f"amount_micros is {_shown(wish.amount_micros)}, which is not an amount.",
            "Send a whole number of micros (millionths of the major unit) from 1 to 10^15, for the whole order.",
        )
    return currency_fault(wish.currency)


def stock_fault(stock: object) -> Rejected | None:
    """Refuses what cannot be a stock."""
    if type(stock) is int and 0 <= stock <= MAX_STOCK:
        return None
    return Rejected(
        "stock_invalid",
        f"stock is {_shown(stock)}.",
        f"Send the whole number of pieces ever put up for sale, from 0 to {MAX_STOCK}.",
    )


def restock_fault(sku: str, wanted: int, now: Stock) -> Rejected | None:
    """Refuses a stock below what was promised already."""
    promised = now.reserved + now.sold
    if wanted >= promised:
        return None
    return Rejected(
        "stock_too_low",
        f"{sku} has {now.reserved} reserved and {now.sold} sold: its stock cannot be {wanted}. It stays {now.stock}.",
        f"Send {promised} or more; or cancel orders first.",
    )


_encode = msgspec.json.Encoder(order="deterministic").encode


def claim_of(tenant: Tenant, wish: OrderReserved, key: str) -> Claim:
    """A caller's wish under his key. The request is what the key is bound to."""
    return Claim(tenant, operation_id(tenant.name, key), key, RESERVED, wish, _encode(wish))


def place_of(claim: Claim) -> SkuName:
    """Tenant and SKU."""
    return claim.tenant.number, claim.operation.sku  # type: ignore[attr-defined]


def quantity_of(claim: Claim) -> int:
    """How many pieces it asks for."""
    return claim.operation.quantity  # type: ignore[attr-defined, no-any-return]


def hopeful(claims: Sequence[Claim], stocks: Mapping[SkuName, Stock]) -> set[SkuName]:
    """SKUs that have enough for at least one of them: only these are worth a lock."""
    return {
        place
        for claim in claims
        if (stock := stocks.get(place := place_of(claim))) is not None and quantity_of(claim) <= stock.available
    }


def admit(
    claims: Sequence[Claim], stocks: Mapping[SkuName, Stock], known: Mapping[OperationName, Known]
) -> list[Granted | Duplicate | Rejected]:
    """First come, first served: an answer for each claim, in order, each seeing the effect of those before it.

    `stocks` was read before `known`: a key that is unknown then has held nothing when the stock was read.
    """
    left = {place: stock.available for place, stock in stocks.items()}
    seen = dict(known)
    answers: list[Granted | Duplicate | Rejected] = []
    for claim in claims:
        name = (claim.tenant.number, claim.id)
        used = seen.get(name)
        if used is not None:
            answers.append(replay(claim, used))
            continue
        place, quantity = place_of(claim), quantity_of(claim)
        available = left.get(place)
        if available is None or quantity > available:
            answers.append(_refusal(place[1], quantity, stocks.get(place), available or 0))
            continue
        left[place] = available - quantity
        seen[name] = Known(claim.key, claim.request, b"")
        answers.append(GRANTED)
    return answers


def _refusal(sku: str, quantity: int, stock: Stock | None, available: int) -> Rejected:
    if stock is None:
        return Rejected("sku_unknown", f"There is no SKU {sku!r}.", "Put it up for sale first: PUT /v1/skus/{sku}.")
    if quantity > stock.stock:
        return Rejected(
            "quantity_above_stock",
            f"{quantity} of {sku} were asked for, and there are {stock.stock} in all.",
            f"Ask for at most {stock.stock}.",
        )
    return Rejected(
        "sold_out",
        f"{quantity} of {sku} were asked for, and {available} of {stock.stock} are left.",
        "Nothing is held for you, and the key is unused. What others reserve and do not pay comes back: the same "
        "request with the same key may be sent again.",
    )


def recorded(claim: Claim, at: datetime) -> bytes:
    """What stands under the key: an operation without entries. The order itself is a row of its own."""
    return encode_transaction(
        Transaction(transaction_name(claim.id), claim.key, RESERVED.name, at, (), author=claim.author)
    )


def cancel(name: str, status: Status) -> Literal["CANCELLED"] | Rejected | None:
    """What a wish to cancel comes to; None: it holds nothing any more, and stays as it is."""
    match status:
        case "PENDING":
            return "CANCELLED"
        case "CANCELLED" | "CANCELLED_BY_SWEEPER":
            return None
        case "PAID":
            return Rejected(
                "order_paid",
                f"{name} is paid: it can no longer be cancelled. The goods are its buyer's.",
                "Give the money back instead, all or in parts: POST /v1/orders/{id}/refund, with restock to sell its "
                "pieces again.",
            )


def is_overdue(expires_at: datetime, *, now: datetime, grace: timedelta) -> bool:
    """Whether its time is over. The grace is for a payment that is being confirmed; `now` is the database's."""
    return now >= expires_at + grace


def may_be_swept(
    expires_at: datetime,
    *,
    now: datetime,
    grace: timedelta,
    is_charged: bool,
    is_live: bool,
    is_released: bool,
    watermark: datetime | None,
) -> bool:
    """Whether the sweeper may cancel: what was received in time (by the deadline and the grace) must be decided first.

    `watermark`: up to when it is (`checkout.watermark.rules`). An order that was never charged has no payment to wait
    for. `is_live`: a charge of it may still be paid at the provider; then it must be released first
    (`checkout.release.rules`).
    """
    if not is_overdue(expires_at, now=now, grace=grace):
        return False
    if not is_charged:
        return True
    return watermark is not None and expires_at + grace < watermark and (is_released or not is_live)


def order_name(id_: bytes) -> str:
    """How an order's 16-byte id is written. It is that of the operation under whose key it was reserved."""
    return "or_" + id_.hex()


def order_id(name: str) -> UUID | None:
    """The id behind a written one; None when it is not one of ours. One spelling only."""
    text = name.removeprefix("or_")
    return UUID(hex=text) if text != name and _HEXADECIMAL.fullmatch(text) else None


def reservation_token(secret: bytes, order_id: bytes) -> UUID:
    """The token of an order: the same whenever it is made again, so that its charges have the same keys.

    `secret` is the tenant's: who does not have it cannot guess the token.
    """
    return UUID(bytes=hmac.digest(secret, b"tallystick/reservation/1" + order_id, "sha256")[:16])


def token_name(token: UUID) -> str:
    """How a reservation's token is written."""
    return "rt_" + token.hex


def order_unknown(name: str) -> Rejected:
    """The refusal for an order this tenant does not have."""
    return Rejected(
        "order_unknown",
        f"There is no order {name!r:.80}.",
        "Use the id that reserving it returned (or_ and 32 hexadecimal digits).",
    )


def sku_unknown(sku: str) -> Rejected:
    """The refusal for a SKU this tenant does not have."""
    return _refusal(sku, 1, None, 0)


def _shown(value: object) -> str:
    """Cut short. Python refuses to write out an integer of thousands of digits."""
    if type(value) is int and value.bit_length() > 64:  # noqa: PLR2004 - more than the database could hold
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.80}"
