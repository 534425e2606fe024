"""Problems: every refusal and failure as RFC 9457 `application/problem+json`.

One table gives each stable code its HTTP status and title. A refusal (`Rejected`) may come from the rules,
from a user's own kind, or from here; a code that is not in the table (a user's own) is answered with 422.
"""

import math
from types import MappingProxyType
from typing import Final

import msgspec

from tallystick.database.pool import plight
from tallystick.errors import (
    Busy,
    Faulted,
    InFlight,
    OutcomeUnknown,
    RateExceeded,
    ShareUsed,
    TooManyGuesses,
    Unreachable,
)
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS

NOTHING_MOVED: Final = "No money moved."
_UNLISTED_STATUS: Final = 422
# Where the money is, when an earlier request may have moved some.
_ELSEWHERE: Final = MappingProxyType(
    {
        "order_cancelled": "This request moved none. What an earlier payment of the order took is given back.",
        "order_expired": "This request moved none. What an earlier payment of the order took is given back.",
        "order_paid": "The order is paid. This request moved none.",
        "order_not_paid": "This request moved none. What a payment of the order took, if one did, the order shows.",
        "refund_too_large": "This request moved none. What is left of the payment is in the tenant's sales.",
        "refund_refused": "Not given back: it is in the tenant's sales again.",
        "database_restored": "This request moved none. An earlier one may have.",
    }
)

PROBLEMS: Final = MappingProxyType(
    {
        # The request cannot be understood.
        "request_malformed": (400, "The request is not one, or has too many parts"),
        "json_invalid": (400, "The body is not JSON"),
        "json_field_repeated": (400, "A JSON field is given twice"),
        "body_incomplete": (400, "The body broke off"),
        "field_invalid": (400, "A field is missing, unknown or of the wrong type"),
        "query_invalid": (400, "A query parameter is wrong"),
        "idempotency_key_missing": (400, "There is no idempotency key"),
        "idempotency_key_invalid": (400, "The idempotency key cannot be used"),
        "idempotency_key_too_long": (400, "The idempotency key is too long"),
        "kind_unknown": (400, "There is no such kind of operation"),
        "amount_not_integer": (400, "The amount is not a whole number of micros"),
        "amount_not_positive": (400, "The amount is not positive"),
        "amount_overflow": (400, "The amount is too large"),
        "currency_unknown": (400, "There is no such currency"),
        "account_invalid": (400, "The account id cannot be used"),
        "floor_invalid": (400, "The floor is not an amount"),
        "limits_invalid": (400, "The velocity limits cannot be kept"),
        "memo_invalid": (400, "The memo cannot be stored"),
        "same_account": (400, "An account is named twice"),
        "leg_invalid": (400, "A leg moves nothing"),
        "legs_missing": (400, "Too few or too many legs"),
        "legs_unbalanced": (400, "The legs do not sum to zero"),
        "release_invalid": (400, "The release is incomplete"),
        "attribution_invalid": (400, "The attribution id cannot be used"),
        "squad_invalid": (400, "The squad id cannot be used"),
        "destination_invalid": (400, "The provider cannot pay to this destination"),
        "sku_invalid": (400, "The SKU cannot be used"),
        "quantity_not_integer": (400, "The quantity is not a whole number"),
        "quantity_not_positive": (400, "The quantity is not positive"),
        "quantity_too_large": (400, "The quantity is too large"),
        "stock_invalid": (400, "The stock is not a number of pieces"),
        "authority_invalid": (400, "The policy cannot be kept"),
        "fee_invalid": (400, "The fee cannot be kept"),
        "reason_missing": (400, "There is no reason"),
        "reason_invalid": (400, "The reason cannot be stored"),
        "evidence_missing": (400, "There is no evidence"),
        "evidence_invalid": (400, "The evidence cannot be stored"),
        "payment_intent_id_missing": (400, "The provider's id of the payment is missing"),
        "payment_intent_id_unwanted": (400, "There is no payment to name"),
        "transfer_id_missing": (400, "There is no transfer id"),
        "webhook_forged": (400, "The webhook is not believed"),
        "webhook_stale": (400, "The webhook was not signed lately"),
        "webhook_unreadable": (400, "The webhook cannot be read"),
        # Who asks, and for what.
        "unauthenticated": (401, "The API key is missing or unknown"),
        "forbidden": (403, "The API key may not do this"),
        "reservation_token_wrong": (403, "The reservation token is another order's"),
        "second_person_needed": (403, "Another person must decide"),
        "currency_not_permitted": (403, "The tenant's policy has no such currency"),
        "destination_unknown": (403, "The destination was not made known"),
        "destination_waiting": (403, "The destination may not be paid yet"),
        "payout_above_ceiling": (403, "More than one payout may be"),
        "day_ceiling_reached": (403, "More than a day may have"),
        "webhook_provider_unknown": (404, "No such provider is configured"),
        "path_unknown": (404, "There is nothing at this address"),
        "account_unknown": (404, "There is no such account"),
        "transaction_unknown": (404, "There is no such transaction"),
        "settlement_unknown": (404, "There is no such settlement"),
        "approval_unknown": (404, "There is no such approval"),
        "sku_unknown": (404, "There is no such SKU"),
        "order_unknown": (404, "There is no such order"),
        "payment_unknown": (404, "The order has no such payment"),
        "refund_part_unknown": (404, "No such part was asked for"),
        "method_not_allowed": (405, "This address has no such method"),
        "request_late": (408, "The request did not come in time"),
        "body_too_large": (413, "The body is too large"),
        "webhook_too_large": (413, "The webhook is too large"),
        "batch_too_large": (413, "Too much in one batch"),
        "content_type_unsupported": (415, "The body is not declared as JSON"),
        # Understood, and refused as things stand.
        "insufficient_funds": (402, "Insufficient funds"),
        "payment_refused": (402, "The provider refused the payment"),
        "refund_refused": (402, "The provider refused the refund"),
        "rate_exceeded": (429, "This tenant asks too often"),
        "share_used": (429, "This tenant's share is used up"),
        "too_many_guesses": (429, "Too many unknown API keys"),
        "velocity_exceeded": (429, "A velocity limit is used up"),
        "key_reused": (422, "The idempotency key belongs to another request"),
        "in_flight": (409, "Another request holds the key or an account"),
        "currency_mismatch": (409, "The account holds another currency"),
        "already_closed": (409, "Already released or refunded"),
        "not_a_boundary": (409, "The account is not a boundary account"),
        "not_refundable": (409, "This kind cannot be refunded"),
        "release_too_large": (409, "More than is held"),
        "floor_above_balance": (409, "The balance is below that floor"),
        "balance_overflow": (409, "The balance would be too large"),
        "account_reserved": (409, "The account belongs to the settlements"),
        "transfer_id_taken": (409, "The transfer pays another settlement"),
        "settlement_conflict": (409, "This attribution is settled otherwise"),
        "provider_not_configured": (409, "The provider is not configured here"),
        "cannot_push_money": (409, "The provider cannot pay others"),
        "net_not_positive": (409, "The fee leaves nothing to pay"),
        "net_not_payable": (409, "Less than the provider can pay"),
        "not_disputable": (409, "The settlement cannot be disputed as it stands"),
        "not_resolvable": (409, "The settlement cannot be resolved as it stands"),
        "not_retryable": (409, "The settlement cannot be sent again"),
        "approval_open": (409, "Another approval waits already"),
        "already_decided": (409, "The approval is decided already"),
        "sold_out": (409, "Sold out"),
        "quantity_above_stock": (409, "More than there ever was"),
        "stock_too_low": (409, "More is promised than that"),
        "order_paid": (409, "The order is paid"),
        "order_not_paid": (409, "The order is not paid"),
        "order_backordered": (409, "The order has no stock yet"),
        "already_restocked": (409, "The pieces are for sale again already"),
        "refund_too_large": (409, "More than is left of the payment"),
        "refund_not_possible": (409, "The provider cannot give this back"),
        "order_cancelled": (409, "The order was cancelled"),
        "order_expired": (409, "The time to pay is over"),
        "payment_not_possible": (409, "The provider cannot take this payment"),
        "payment_decided": (409, "The payment needs no decision"),
        "payment_in_flight": (409, "The charge may still be on its way"),
        "payment_not_confirmed": (409, "The provider does not confirm it"),
        "refund_not_confirmed": (409, "The provider does not bear it out"),
        "refund_in_flight": (409, "The refund may still be on its way"),
        "payment_attempts_exhausted": (409, "Too many attempts to pay have failed"),
        # Our side.
        "handler_failed": (500, "The handler of this kind failed"),
        "internal_error": (500, "Internal error"),
        "busy": (503, "Busy"),
        "connections_exhausted": (503, "No room for another connection"),
        "database_restored": (503, "The database was restored"),
        "outcome_unknown": (503, "The outcome is not known"),
        "database_unreachable": (503, "The database is out of reach"),
        "webhook_not_stored": (503, "The webhook could not be stored"),
    }
)


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was not done.

    `detail` says what happened, `money` where the money is, `remedy` what to do. `code` is stable, for
    programs. `fields` names what is to blame, or what differs when a key was used for another request.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    money: str
    remedy: str
    fields: tuple[str, ...] = ()


def status_of(code: str) -> int:
    """The HTTP status of a code."""
    return PROBLEMS[code][0] if code in PROBLEMS else _UNLISTED_STATUS


def refused(rejected: Rejected) -> Problem:
    """A refusal as a problem: it left no trace, so it moved no money."""
    money = _ELSEWHERE.get(rejected.code, NOTHING_MOVED)
    return _problem(rejected.code, rejected.detail, money, rejected.remedy, rejected.fields)


def failed(error: Exception) -> Problem:
    """An exception as a problem. Its own words stay in the log: they may name hosts, files or handlers."""
    match error:
        case TooManyGuesses():
            return _problem(
                "too_many_guesses",
                "Too many API keys that nobody has came from this address.",
                NOTHING_MOVED,
                "Use a key that `tally keys create` made; try again after the seconds in Retry-After.",
            )
        case RateExceeded():
            return _problem(
                "rate_exceeded",
                "This tenant asks for more in a second than it may. Nothing was done, and no key was used.",
                NOTHING_MOVED,
                "Send the same request with the same key after the seconds in Retry-After, and fewer in a second.",
            )
        case ShareUsed():
            return _problem(
                "share_used",
                "This tenant has as much under way at once as its share is.",
                NOTHING_MOVED,
                "Send the same request with the same key after the seconds in Retry-After, and fewer at once.",
            )
        case Busy():
            return _problem(
                "busy",
                "More work is waiting than can be held.",
                NOTHING_MOVED,
                "Send the same request with the same key after the seconds in Retry-After.",
            )
        case InFlight():
            return _problem(
                "in_flight",
                "Another request held this key, or an account it needs, for longer than we wait.",
                "This request moved no money; the other one may.",
                "Send the same request with the same key after the seconds in Retry-After.",
            )
        case OutcomeUnknown():
            return _problem(
                "outcome_unknown",
                "The database connection was lost while the request was being committed.",
                "It may have moved, once.",
                "Send the same request with the same key: it will happen once, or be replayed.",
            )
        case Unreachable():
            return _problem(
                "database_unreachable",
                f"The database {plight(error) or 'cannot be reached'}.",
                NOTHING_MOVED,
                "Send the same request with the same key after the seconds in Retry-After.",
            )
        case Faulted():
            return _problem(
                "handler_failed",
                "The handler of this kind of operation raised an exception; the server's log has it.",
                NOTHING_MOVED,
                "Have the handler repaired, then send the same request with the same key.",
            )
        case _:
            return _problem(
                "internal_error",
                "Something that should not happen did; the server's log has it.",
                "Not known. Nothing moves twice under one key.",
                "Report it. Repeating the same request with the same key is safe.",
            )


def not_stored() -> Problem:
    """A webhook that is not durable, so not acknowledged. Whether a COMMIT was lost does not matter: once is enough."""
    return _problem(
        "webhook_not_stored",
        "It could not be stored now, so it is not acknowledged.",
        "Where the provider says. Nothing was done about this webhook yet.",
        "Send it again after the seconds in Retry-After; one that was stored after all is recognised.",
    )


def retry_after_seconds(error: Exception) -> int | None:
    """When it is worth trying again; None: not by waiting."""
    if isinstance(error, Busy):
        return math.ceil(error.retry_after_seconds)
    if isinstance(error, InFlight | OutcomeUnknown | Unreachable):
        return math.ceil(LIMITS.retry_after_seconds)
    return None


def is_expected(error: Exception) -> bool:
    """Whether the error is one that callers are promised, rather than a bug."""
    return isinstance(error, Busy | InFlight | OutcomeUnknown | Unreachable)


def _problem(code: str, detail: str, money: str, remedy: str, fields: tuple[str, ...] = ()) -> Problem:
    if code in PROBLEMS:
        status, title = PROBLEMS[code]
    else:
        status, title = _UNLISTED_STATUS, code.replace("_", " ").capitalize()
    return Problem(f"/docs#{code}", title, status, detail, code, money, remedy, fields)
