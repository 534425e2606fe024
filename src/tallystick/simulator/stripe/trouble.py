"""How Stripe words trouble (docs/providers.md 2.2, 2.4, 8): the replies that faults and the key layer give."""

import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tallystick.simulator.dialect import Call, Reply
from tallystick.simulator.stripe.wire import Context, new_request_id, problem

_RETRY: Final = ("stripe-should-retry", "true")
# What a plan's `refused` means when it names no code.
_DEFAULT_CODES: Final = {
    "charge": "card_declined",
    "refund": "charge_already_refunded",
    "transfer": "balance_insufficient",
    "payout": "account_closed",
    "reversal": "balance_insufficient",
}
_CARD_CODES: Final = frozenset({"card_declined", "expired_card", "incorrect_cvc", "processing_error"})
_DECLINE_CODES: Final = frozenset(
    [
        "generic_decline",
        "insufficient_funds",
        "lost_card",
        "stolen_card",
        "fraudulent",
        "do_not_honor",
        "card_velocity_exceeded",
    ]
)


def refused(call: Call, code: str) -> Reply:
    """A final no. On a charge a decline code (`insufficient_funds`) is one too."""
    code = code or _DEFAULT_CODES.get(call.operation, "account_invalid")
    if call.operation == "charge" and (code in _CARD_CODES or code in _DECLINE_CODES):
        decline = {"decline_code": code} if code in _DECLINE_CODES else {}
        if code == "card_declined":
            decline = {"decline_code": "generic_decline"}
        named = "card_declined" if code in _DECLINE_CODES else code
        message = "Your card was declined."
        error = {"type": "card_error", "code": named, "message": message, **decline}
        return problem(402, context=_who(call), **error, payment_intent=_declined_intent(error))
    return problem(400, f"The request was refused: {code}.", context=_who(call), code=code)


def _declined_intent(error: dict[str, str]) -> dict[str, Any]:
    # docs/providers.md 2.6: a decline names the intent, which waits for another card. Nothing of it is in the books.
    return {
        "id": f"pi_{secrets.token_hex(7)}",
        "object": "payment_intent",
        "last_payment_error": error,
        "latest_charge": None,
        "livemode": False,
        "status": "requires_payment_method",
    }


def in_flight(call: Call) -> Reply:
    message = "There is currently another in-progress request using this Idempotency-Key."
    return _retryable(problem(409, message, context=_who(call), code="idempotency_key_in_use"))


def mismatch(call: Call) -> Reply:
    message = "Keys for idempotent requests can only be used with the same parameters they were first used with."
    return problem(400, message, context=_who(call), type="idempotency_error")


def rate_limited(call: Call, seconds: str) -> Reply:
    message = "Request rate limit exceeded."
    reply = problem(429, message, context=_who(call), code="rate_limit")
    return msgspec.structs.replace(reply, headers=(*reply.headers, ("retry-after", seconds)))


def _lock_timeout(call: Call) -> Reply:
    message = "This object cannot be accessed right now because another API request or Stripe process is accessing it."
    return _retryable(problem(429, message, context=_who(call), code="lock_timeout"))


def _unauthorized(call: Call) -> Reply:
    return problem(401, "Invalid API Key provided.", context=_who(call))


def _forbidden(call: Call) -> Reply:
    return problem(403, "The provided key does not have the required permissions.", context=_who(call))


def _error_500(call: Call) -> Reply:
    return problem(500, "An unknown error occurred.", context=_who(call), type="api_error")


def _error_424(call: Call) -> Reply:
    return problem(424, "An external dependency failed.", context=_who(call), type="api_error")


def _gateway(status: int) -> Callable[[Call], Reply]:
    # From in front of Stripe: neither JSON nor a request id.
    page = f"<html><head><title>{status}</title></head><body><center>nginx</center></body></html>".encode()
    return lambda _call: Reply(status, page, (("content-type", "text/html"),))


def _retryable(reply: Reply) -> Reply:
    return msgspec.structs.replace(reply, headers=(*reply.headers, _RETRY))


def _who(call: Call) -> Context:
    return Context(new_request_id(), call.key, "")


TROUBLE: Final[dict[str, Callable[[Call], Reply]]] = {
    "lock_timeout": _lock_timeout,
    "unauthorized": _unauthorized,
    "forbidden": _forbidden,
    "error_500": _error_500,
    "error_424": _error_424,
    "in_flight": in_flight,
    "gateway_502": _gateway(502),
    "gateway_503": _gateway(503),
    "gateway_504": _gateway(504),
}
