"""Adyen's wire: how it writes answers and refusals, and reads bodies.

Checkout and the balance platform are two houses with two envelopes; both carry `status` and `errorCode`, and both
say in the header `transient-error` whether the same request may be sent again (docs/providers.md 3, Retry rule).
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec

from tallystick.simulator.amounts import is_currency
from tallystick.simulator.dialect import Reply

DIALECT: Final = "adyen"
# docs/providers.md 3, Idempotency: 64 characters.
MAX_KEY_CHARACTERS: Final = 64
# docs/providers.md 3, Outbound transfer, Payments, Refund: our own reference has 80 characters at most.
MAX_REFERENCE_CHARACTERS: Final = 80
# What a JSON number holds exactly everywhere.
LARGEST_AMOUNT: Final = 2**53

_JSON: Final = ("content-type", "application/json")
Asked = TypeVar("Asked")


class Amount(msgspec.Struct, frozen=True):
    """Minor units by Adyen's own table (docs/providers.md 3, Minor units)."""

    currency: str
    value: Annotated[int, msgspec.Meta(le=LARGEST_AMOUNT)]


def answer(status: int, body: object, *headers: tuple[str, str]) -> Reply:
    return Reply(status, msgspec.json.encode(body), (_JSON, *headers))


def checkout_problem(
    status: int, code: str, message: str, kind: str = "validation", *, transient: bool = False
) -> Reply:
    """Refusal by the Checkout API."""
    body = {"status": status, "errorCode": code, "message": message, "errorType": kind}
    return answer(status, body, *_transient(transient))


def platform_problem(status: int, code: str, detail: str, *, transient: bool = False) -> Reply:
    """Refusal by the balance platform (transfers, transactions)."""
    body = {
        "type": "https://docs.adyen.com/errors/general",
        "title": "Request refused",
        "status": status,
        "detail": detail,
        "errorCode": code,
    }
    return answer(status, body, *_transient(transient))


def read(body: bytes, wanted: type[Asked]) -> Asked | str:
    """The body as the operation wants it, or what is wrong with it."""
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.DecodeError, RecursionError) as error:
        return str(error)


def amount_fault(amount: Amount) -> str | None:
    """Why Adyen would not take the amount; None if it would."""
    if not is_currency(amount.currency):
        return f"Unsupported currency specified: {amount.currency}"
    return None if amount.value > 0 else "Invalid amount specified"


def canonical(path: str, body: bytes) -> bytes:
    """What must be equal for a replay: the endpoint and the meaning of the body, not its spelling."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return path.encode() + b"\n" + body
    return path.encode() + b"\n" + msgspec.json.encode(value, order="sorted")


def shown(at: datetime) -> datetime:
    """The time as it is written: an object must be found by the very time it shows."""
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def text_of(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_of(text: str) -> datetime | None:
    """None for text that is no time. The official package sends parameters unescaped, so a `+` arrives as a space."""
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def money(value: int, currency: str) -> dict[str, Any]:
    return {"value": value, "currency": currency}


def _transient(yes: bool) -> tuple[tuple[str, str], ...]:  # noqa: FBT001
    return (("transient-error", "true"),) if yes else ()
