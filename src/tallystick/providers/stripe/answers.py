"""What Stripe's errors mean for the money. Data, and the taking apart of an error reply. Pure.

Only statuses that a source gives to a refusal can refuse: the same code on a 5xx stays Unknown.
"""

from typing import Final

import msgspec

from tallystick.core.provider import Busy, Exchange, Refused, Unknown
from tallystick.providers.classification import Row, Trouble, classify
from tallystick.providers.http import Reply
from tallystick.providers.stripe.objects import UNDECODABLE

# 2.4 leaves the status of some codes open (balance_insufficient): these are the ones a refusal comes with.
_REFUSING_STATUSES: Final = (400, 402, 404)

# 2.4: needs other data, another account or a person at Stripe; this request is over.
_DESTINATION_CODES: Final = (
    "account_closed",
    "no_account",
    "account_number_invalid",
    "bank_account_unusable",
    "account_invalid",
    "not_allowed_on_standard_account",
    "payouts_not_allowed",
    "transfers_not_allowed",
)
# 2.4: the request is wrong. `parameter_*` is spelled out: a row matches whole codes only.
_REQUEST_CODES: Final = (
    "amount_too_small",
    "amount_too_large",
    "parameter_invalid_empty",
    "parameter_invalid_integer",
    "parameter_invalid_string_blank",
    "parameter_invalid_string_empty",
    "parameter_missing",
    "parameter_unknown",
    "resource_missing",
)
_REFUND_CODES: Final = ("charge_already_refunded", "charge_disputed")


def _refusing(codes: tuple[str, ...], source: str) -> tuple[Row, ...]:
    return tuple(
        Row(status=status, code=code, verdict="refused", source=source)
        for code in codes
        for status in _REFUSING_STATUSES
    )


TABLE: Final[tuple[Row, ...]] = (
    # Whatever the status: the first request under the key runs or has run.
    Row(code="idempotency_key_in_use", verdict="unknown", source="docs/providers.md 2.2, in flight"),
    # Our key with other parameters: a bug of ours or a collision, and the first request may have paid.
    Row(type="idempotency_error", verdict="unknown", source="docs/providers.md 2.2, other endpoint or params"),
    Row(status=401, verdict="needs_person", source="docs/providers.md 2.4, 401 / 403"),
    Row(status=403, verdict="needs_person", source="docs/providers.md 2.4, 401 / 403"),
    Row(status=429, code="rate_limit", verdict="busy", source="docs/providers.md 2.4, limiter before the key layer"),
    Row(status=429, code="lock_timeout", verdict="busy", source="docs/providers.md 2.4, lock_timeout"),
    Row(status=429, verdict="busy", source="docs/providers.md 2.2, rejected before execution"),
    # It may be rolled forward later, and told by webhook only.
    Row(status=500, verdict="unknown", source="docs/providers.md 2.2, ended 500"),
    Row(status=502, verdict="unknown", source="docs/providers.md 2.4, 502/503/504/424"),
    Row(status=503, verdict="unknown", source="docs/providers.md 2.4, 502/503/504/424"),
    Row(status=504, verdict="unknown", source="docs/providers.md 2.4, 502/503/504/424"),
    Row(status=424, verdict="unknown", source="docs/providers.md 2.4, 502/503/504/424"),
    Row(status=402, type="card_error", verdict="refused", source="docs/providers.md 2.4, 402 card_declined"),
    *_refusing(("balance_insufficient",), "docs/providers.md 2.4, balance_insufficient"),
    *_refusing(_DESTINATION_CODES, "docs/providers.md 2.4, account_closed and its likes"),
    *_refusing(_REQUEST_CODES, "docs/providers.md 2.4, the request is wrong"),
    *_refusing(_REFUND_CODES, "docs/providers.md 2.4, refund not possible"),
)


class _Detail(msgspec.Struct, frozen=True):
    type: str | None = None
    code: str | None = None
    message: str | None = None
    decline_code: str | None = None


class _Envelope(msgspec.Struct, frozen=True):
    error: _Detail


_DECODER: Final = msgspec.json.Decoder(_Envelope)
MOST_MESSAGE_CHARACTERS: Final = 500


def trouble(reply: Reply) -> Trouble:
    """An error reply, taken apart. A body that cannot be read leaves the status alone to speak."""
    replayed = is_replayed(reply)
    try:
        detail = _DECODER.decode(reply.body).error
    except UNDECODABLE:
        return Trouble(reply=reply, message=f"Stripe answered {reply.status} without words.", replayed=replayed)
    words = detail.message or f"Stripe answered {reply.status}."
    if detail.decline_code:
        words = f"{words} ({detail.decline_code})"
    return Trouble(
        reply=reply,
        type=detail.type or "",
        code=detail.code or "",
        message=words[:MOST_MESSAGE_CHARACTERS],
        replayed=replayed,
    )


def meaning(reply: Reply, evidence: tuple[Exchange, ...]) -> Refused | Busy | Unknown:
    """What an error reply means for the money."""
    return classify(TABLE, trouble(reply), evidence)


def is_replayed(reply: Reply) -> bool:
    """Whether Stripe answered from what it stored under the key (2.2)."""
    return reply.headers.get("idempotent-replayed", "").strip().lower() == "true"
