"""What Square's errors mean for the money. Data, and the taking apart of an error reply. Pure.

Codes and categories are those of the official list (docs/providers.md 4, Errors). A code refuses only with its own
category and a status that refuses: the same code on a 5xx stays Unknown. A reply may hold several errors, and says
what all of them say: where they disagree, nothing is known.

Other codes of these categories (those that only repeat a status, such as BAD_REQUEST, and those that Square adds) say
by status and category alone that it is refused: `movement.steps.believed` decides whether that is the end of it.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from tallystick.providers.classification import ErrorClass, Row, Trouble, classify, row_for
from tallystick.providers.http import Reply
from tallystick.providers.square.objects import UNDECODABLE
from tallystick.providers.words import Busy, Exchange, Refused, Unknown

_REFUSING_STATUSES: Final = (400, 402, 404, 422)
_LIST: Final = "docs/providers.md 4, Errors"

# The card or bank said no, or was never asked.
_DECLINED: Final = """
    ADDRESS_VERIFICATION_FAILURE ALLOWABLE_PIN_TRIES_EXCEEDED BAD_EXPIRATION BUYER_REFUSED_PAYMENT CARD_DECLINED
    CARD_DECLINED_CALL_ISSUER CARD_DECLINED_VERIFICATION_REQUIRED CARD_EXPIRED CARD_NOT_SUPPORTED
    CARDHOLDER_INSUFFICIENT_PERMISSIONS CARD_TOKEN_EXPIRED CARD_TOKEN_USED CHIP_INSERTION_REQUIRED CVV_FAILURE
    EXPIRATION_FAILURE GENERIC_DECLINE INSUFFICIENT_FUNDS INSUFFICIENT_PERMISSIONS INVALID_ACCOUNT INVALID_CARD
    INVALID_CARD_DATA INVALID_EXPIRATION INVALID_FEES INVALID_LOCATION INVALID_PIN INVALID_POSTAL_CODE
    MANUALLY_ENTERED_PAYMENT_NOT_SUPPORTED PAN_FAILURE PAYMENT_AMOUNT_MISMATCH PAYMENT_LIMIT_EXCEEDED SOURCE_EXPIRED
    SOURCE_USED TRANSACTION_LIMIT UNSUPPORTED_CARD_BRAND UNSUPPORTED_ENTRY_METHOD VERIFY_AVS_FAILURE
    VERIFY_CVV_FAILURE VOICE_FAILURE
"""
# The request is wrong, and was not tried.
_WRONG: Final = """
    AMOUNT_TOO_HIGH AMOUNT_TOO_LOW CONFLICTING_PARAMETERS CURRENCY_MISMATCH CUSTOMER_NOT_FOUND EXPECTED_BOOLEAN
    EXPECTED_INTEGER EXPECTED_JSON_BODY EXPECTED_OBJECT EXPECTED_STRING INCORRECT_TYPE INVALID_CONTENT_TYPE
    INVALID_ENUM_VALUE INVALID_VALUE LOCATION_MISMATCH MISSING_REQUIRED_PARAMETER NOT_FOUND ONE_INSTRUMENT_EXPECTED
    UNKNOWN_BODY_PARAMETER UNSUPPORTED_COUNTRY UNSUPPORTED_CURRENCY UNSUPPORTED_INSTRUMENT_TYPE
    UNSUPPORTED_SOURCE_TYPE VALUE_EMPTY VALUE_REGEX_MISMATCH VALUE_TOO_HIGH VALUE_TOO_LONG VALUE_TOO_LOW
    VALUE_TOO_SHORT
"""
_REFUND_DENIED: Final = """
    INSUFFICIENT_PERMISSIONS_FOR_REFUND PAYMENT_NOT_REFUNDABLE PAYMENT_NOT_REFUNDABLE_DUE_TO_DISPUTE
    REFUND_ALREADY_PENDING REFUND_AMOUNT_INVALID REFUND_DECLINED REFUND_ERROR_PAYMENT_NEEDS_COMPLETION
"""
_UNSURE: Final = """
    REQUEST_TIMEOUT GATEWAY_TIMEOUT BAD_GATEWAY SERVICE_UNAVAILABLE INTERNAL_SERVER_ERROR TEMPORARY_ERROR
"""


def _refusing(category: str, codes: str, source: str) -> tuple[Row, ...]:
    return tuple(
        Row(status=status, type=category, code=code, verdict="refused", source=source)
        for code in codes.split()
        for status in _REFUSING_STATUSES
    )


TABLE: Final[tuple[Row, ...]] = (
    # Our key with another body: a bug of ours or a collision, and the first request may have paid.
    Row(code="IDEMPOTENCY_KEY_REUSED", verdict="unknown", source="docs/providers.md 1, Same key, other body"),
    # What it means is not known; a key in flight is said to look like this.
    Row(status=409, verdict="unknown", source="docs/providers.md 1, Key in flight"),
    Row(code="CONFLICT", verdict="unknown", source="docs/providers.md 1, Key in flight"),
    Row(status=401, verdict="needs_person", source="docs/providers.md 4, Errors, AUTHENTICATION_ERROR"),
    Row(status=403, verdict="needs_person", source="docs/providers.md 4, Errors, AUTHENTICATION_ERROR"),
    # Turned away for its rate, before anything was looked at: that is what 429 means (RFC 6585).
    Row(status=429, verdict="busy", source="docs/providers.md 4, Retryable codes; RFC 6585, section 4"),
    *(Row(code=code, verdict="unknown", source="docs/providers.md 4, Retryable codes") for code in _UNSURE.split()),
    *(Row(status=status, verdict="unknown", source=_LIST) for status in (408, 500, 501, 502, 503, 504)),
    *_refusing("PAYMENT_METHOD_ERROR", _DECLINED, f"{_LIST}, PAYMENT_METHOD_ERROR"),
    *_refusing("INVALID_REQUEST_ERROR", _WRONG, f"{_LIST}, INVALID_REQUEST_ERROR"),
    *_refusing("REFUND_ERROR", _REFUND_DENIED, "docs/providers.md 4, Refund guards"),
    # A limit or a conflict under another status than its own: not turned away by what the request says.
    Row(code="RATE_LIMITED", verdict="unknown", source="docs/providers.md 4, Retryable codes"),
    *(
        Row(status=status, type=category, verdict="says_refused", source=f"{_LIST}, by category")
        for category in ("PAYMENT_METHOD_ERROR", "INVALID_REQUEST_ERROR", "REFUND_ERROR")
        for status in _REFUSING_STATUSES
    ),
)
# Both refuse; together they are as sure as the less sure of the two.
_REFUSING: Final = frozenset({"refused", "says_refused"})


class Fault(msgspec.Struct, frozen=True):
    """docs/providers.md 4, Errors."""

    category: str
    code: str
    detail: str | None = None
    field: str | None = None


class _Envelope(msgspec.Struct, frozen=True):
    errors: list[Fault]
    # What was made before it failed, where something was.
    payment: msgspec.Raw = msgspec.Raw()
    refund: msgspec.Raw = msgspec.Raw()

    @property
    def names_an_object(self) -> bool:
        """Whether something exists at Square all the same."""
        return any(bytes(found) not in {b"", b"null"} for found in (self.payment, self.refund))


_DECODER: Final = msgspec.json.Decoder(_Envelope)
MOST_MESSAGE_CHARACTERS: Final = 500


def meaning(reply: Reply, evidence: tuple[Exchange, ...]) -> Refused | Busy | Unknown:
    """What an error reply means for the money."""
    troubles = sorted(_troubles(reply), key=lambda trouble: _verdict(trouble) == "refused")
    verdicts = {_verdict(trouble) for trouble in troubles}
    if len(verdicts) > 1 and verdicts != _REFUSING:
        return Unknown(
            code="errors_disagree",
            message="; ".join(trouble.message for trouble in troubles)[:MOST_MESSAGE_CHARACTERS],
            evidence=evidence,
        )
    return classify(TABLE, troubles[0], evidence)


def _troubles(reply: Reply) -> Sequence[Trouble]:
    """One for each error; a body that cannot be read leaves the status alone to speak."""
    try:
        envelope = _DECODER.decode(reply.body)
    except UNDECODABLE:
        envelope = _Envelope([])
    if not envelope.errors:
        return [Trouble(reply=reply, message=f"Square answered {reply.status} without words.")]
    return [
        Trouble(
            reply=reply,
            type=fault.category,
            code=fault.code,
            message=_words(fault)[:MOST_MESSAGE_CHARACTERS],
            is_whole=bool(fault.code) and not envelope.names_an_object,
        )
        for fault in envelope.errors
    ]


def _verdict(trouble: Trouble) -> ErrorClass:
    row = row_for(TABLE, trouble)
    return "unknown" if row is None else row.verdict


def _words(fault: Fault) -> str:
    words = fault.detail or fault.code
    return f"{words} ({fault.field})" if fault.field else words
