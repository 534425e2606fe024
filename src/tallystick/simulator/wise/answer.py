"""Wise's wire: decimals in major units, two kinds of errors, times.

docs/providers.md 5, Amounts: JSON decimals, never floats. The books hold micros; bodies hold the decimal's text
under the names in DECIMALS, and only here it becomes a number on the wire.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, TypeVar

import msgspec

from tallystick.simulator.amounts import decimal_text, is_currency, micros
from tallystick.simulator.dialect import Reply

DIALECT: Final = "wise"
# The fields whose text is a number on the wire.
DECIMALS: Final = frozenset(
    {
        "rate",
        "value",
        "sourceAmount",
        "targetAmount",
        "sourceValue",
        "targetValue",
        "transferwise",
        "total",
        "discount",
        "partner",
    }
)
_JSON: Final = ("content-type", "application/json")
Asked = TypeVar("Asked")
# The id of a profile or a recipient.
Number = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]


def answer(body: object, status: int = 200, *headers: tuple[str, str]) -> Reply:
    return Reply(status, msgspec.json.encode(_numbers(body)), (_JSON, *headers))


def problem(status: int, code: str, message: str, path: str = "") -> Reply:
    return answer({"errors": [{"code": code, "message": message, "path": path, "arguments": []}]}, status)


def plain_problem(status: int, text: str, *headers: tuple[str, str]) -> Reply:
    """docs/providers.md 5, Trap: the errors of funding are text/plain."""
    return Reply(status, text.encode(), (("content-type", "text/plain;charset=utf-8"), *headers))


def read(body: bytes, wanted: type[Asked]) -> Asked | Reply:
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.DecodeError, RecursionError) as fault:
        return problem(422, "NOT_VALID", str(fault))


def micros_of(amount: Decimal, currency: str, path: str) -> int | Reply:
    """The amount in micros, or why Wise would not take it: too many decimals for the currency, or not positive."""
    if not is_currency(currency):
        return problem(422, "error.currency.unsupported", f"{currency} is not supported", path)
    try:
        exact = micros(amount, currency)
    except ValueError:
        return problem(422, "NOT_VALID", "not an amount", path)
    if exact is None:
        return problem(422, "error.amount.scale", f"{currency} has fewer decimals than the amount", path)
    return exact if exact > 0 else problem(422, "error.amount.positive", "The amount must be positive", path)


def micros_of_text(text: str, currency: str) -> int:
    """Back from `decimal_text`."""
    exact = micros(Decimal(text), currency)
    if exact is None:
        raise ValueError(f"{text} is no amount of {currency}")
    return exact


def money(amount_micros: int, currency: str) -> dict[str, str]:
    return {"value": decimal_text(amount_micros, currency), "currency": currency}


def shown(at: datetime) -> datetime:
    """The time as it is written: an object must be found by the very time it shows."""
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def text_of(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_of(text: str) -> datetime | None:
    """None for text that is no time. A day alone is its midnight, UTC."""
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def echoing(correlation: str, execute: Callable[..., Reply], *arguments: Any) -> Reply:  # noqa: ANN401
    """docs/providers.md 5, Trace: X-External-Correlation-Id comes back."""
    reply = execute(*arguments)
    return msgspec.structs.replace(reply, headers=(*reply.headers, ("x-external-correlation-id", correlation)))


def _numbers(value: object, name: str = "") -> object:
    # What the client wrote is his.
    if name == "details":
        return value
    if isinstance(value, dict):
        return {key: _numbers(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_numbers(inner) for inner in value]
    if isinstance(value, str) and name in DECIMALS:
        return msgspec.Raw(value.encode())
    return value
