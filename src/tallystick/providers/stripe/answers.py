"""What Stripe's errors mean for the money. Data, and the taking apart of an error reply. Pure.

Only statuses that a source gives to a refusal can refuse: the same code on a 5xx stays Unknown. Stripe refuses much
without a code we know (a currency that is not supported, a capability that is missing, more than is left to refund):
`invalid_request_error` says so by its type, and `movement.steps.believed` decides whether that is the end of it.
"""

from typing import Final

import msgspec

from tallystick.providers.classification import Row, Trouble, classify
from tallystick.providers.http import Reply
from tallystick.providers.stripe.objects import PAYMENT_INTENT_STATES, UNDECODABLE, is_id
from tallystick.providers.words import Busy, Exchange, Refused, Unknown

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
    # A limiter or a lock that answers with another status than 429: not turned away by what the request says.
    Row(code="rate_limit", verdict="unknown", source="docs/providers.md 2.3, exception map"),
    Row(code="lock_timeout", verdict="unknown", source="docs/providers.md 2.4, lock_timeout"),
    Row(status=400, type="invalid_request_error", verdict="says_refused", source="docs/providers.md 2.4, by type"),
    Row(status=404, type="invalid_request_error", verdict="says_refused", source="docs/providers.md 2.4, by type"),
)
# Stripe's word on whether the same request may be sent again (docs/providers.md 1): then it has not refused it.
_SHOULD_RETRY: Final = "stripe-should-retry"


class _Detail(msgspec.Struct, frozen=True):
    type: str | None = None
    code: str | None = None
    message: str | None = None
    decline_code: str | None = None
    # What was made before it failed, where something was.
    payment_intent: msgspec.Raw = msgspec.Raw()
    charge: msgspec.Raw = msgspec.Raw()

    @property
    def names_an_object(self) -> bool:
        """Whether something exists at Stripe all the same."""
        return any(bytes(found) not in {b"", b"null"} for found in (self.payment_intent, self.charge))

    @property
    def left_as(self) -> str:
        """The id of a PaymentIntent that the refusal leaves behind, still to be confirmed by whoever has its secret."""
        try:
            left = msgspec.json.decode(self.payment_intent, type=_Left)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""
        return left.id if PAYMENT_INTENT_STATES.get(left.status) == "waiting" and is_id(left.id) else ""


class _Left(msgspec.Struct, frozen=True):
    id: str
    status: str


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
        is_whole=bool(detail.type and detail.message)
        and not detail.names_an_object
        and reply.headers.get(_SHOULD_RETRY, "").strip().lower() != "true",
    )


def meaning(reply: Reply, evidence: tuple[Exchange, ...]) -> Refused | Busy | Unknown:
    """What an error reply means for the money."""
    answer = classify(TABLE, trouble(reply), evidence)
    return msgspec.structs.replace(answer, left_as=_left(reply)) if isinstance(answer, Refused) else answer


def _left(reply: Reply) -> str:
    try:
        return _DECODER.decode(reply.body).error.left_as
    except UNDECODABLE:
        return ""


def is_replayed(reply: Reply) -> bool:
    """Whether Stripe answered from what it stored under the key (2.2)."""
    return reply.headers.get("idempotent-replayed", "").strip().lower() == "true"
