"""Square, as far as our adapter and the official package call it.

It takes payments and refunds them; it cannot push money to third parties, and payouts can only be read
(docs/providers.md 4, Payouts). Keys are in the body, and each endpoint has its own (docs/providers.md 1, Scope).
The official package works unmodified with `Square(token=..., base_url=...)`.
"""

import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec

from tallystick.simulator.books import Books
from tallystick.simulator.dialect import (
    Call,
    Endpoint,
    KeyRule,
    Notification,
    Reply,
    Request,
    Switch,
    not_done,
)
from tallystick.simulator.square import event as square_event
from tallystick.simulator.square import payment as square_payment
from tallystick.simulator.square import payout as square_payout
from tallystick.simulator.square import refund as square_refund
from tallystick.simulator.square.answer import DIALECT, MAX_KEY_BYTES, invalid, problem, read, shown

Prepare = Callable[..., Call | Reply]

SWITCHES: Final = (
    Switch("square.key_retention", ("for_ever", "1_day", "1_hour"), "docs/providers.md 9: key retention not published"),
    Switch(
        "square.in_flight",
        ("conflict", "key_reused", "temporary_error"),
        "docs/providers.md 9: in-flight reply unknown",
    ),
    Switch(
        "square.stored_failures",
        ("every_answer", "client_errors", "none"),
        "docs/providers.md 1, Are failures stored: only TEMPORARY_ERROR is said to be retried with the same key",
    ),
    Switch("square.refund_ids", ("listed", "absent"), "docs/providers.md 4, Refund list: unverified"),
    Switch("square.refund_status", ("pending", "completed"), "docs/providers.md 1, Success is final: PENDING possible"),
    Switch("square.pending_refund", ("allows", "blocks"), "docs/providers.md 4, Refund guards: REFUND_ALREADY_PENDING"),
    Switch(
        "square.events_retention",
        ("28_days", "1_day", "for_ever"),
        "docs/providers.md 4, Backfill: retention unverified",
    ),
    Switch("square.list_delay", ("none", "5_seconds"), "docs/providers.md 4, List filters: eventually consistent"),
)
_HORIZONS: Final = {"for_ever": None, "1_day": 86_400.0, "1_hour": 3_600.0}

# Named trouble: status, category, code.
FAULTS: Final[dict[str, tuple[int, str, str]]] = {
    "unauthorized": (401, "AUTHENTICATION_ERROR", "UNAUTHORIZED"),
    "forbidden": (403, "AUTHENTICATION_ERROR", "FORBIDDEN"),
    "rate_limited": (429, "RATE_LIMIT_ERROR", "RATE_LIMITED"),
    "in_flight": (409, "INVALID_REQUEST_ERROR", "CONFLICT"),
    "temporary_error": (503, "API_ERROR", "TEMPORARY_ERROR"),
    "error_500": (500, "API_ERROR", "INTERNAL_SERVER_ERROR"),
    "gateway_502": (502, "API_ERROR", "BAD_GATEWAY"),
    "gateway_503": (503, "API_ERROR", "SERVICE_UNAVAILABLE"),
    "gateway_504": (504, "API_ERROR", "GATEWAY_TIMEOUT"),
}
_IN_FLIGHT: Final = {
    "conflict": FAULTS["in_flight"],
    "key_reused": (400, "INVALID_REQUEST_ERROR", "IDEMPOTENCY_KEY_REUSED"),
    "temporary_error": FAULTS["temporary_error"],
}
# The highest status that is kept under a key. 503 is TEMPORARY_ERROR: sent again with the same key, so never kept.
_LAST_KEPT: Final = {"every_answer": 500, "client_errors": 499, "none": 299}
_NOT_STORED: Final = frozenset({401, 403, 408, 409, 429})


class Square:
    """The dialect."""

    name = DIALECT
    switches = SWITCHES
    # docs/providers.md 4, Delivery: up to 24 hours. The gaps are not published: these double, then stay.
    retry_gaps_seconds = (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3840.0, *(7200.0,) * 10)

    def route(self, request: Request) -> Call | Reply:
        """The operation, or 401, 404, 405, or what is wrong with the key in the body."""
        found = [(pattern, match) for pattern in _ROUTES if (match := pattern.fullmatch(request.path))]
        if not found:
            return invalid("NOT_FOUND", f"There is no such endpoint. {_NOT_DONE}", status=404)
        if not request.headers.get("authorization", "").startswith("Bearer "):
            return problem(*FAULTS["unauthorized"], "The access token is missing")
        pattern, match = found[0]
        if request.method not in _ROUTES[pattern]:
            return invalid("METHOD_NOT_ALLOWED", f"{request.method} is not allowed here", status=405)
        call = _ROUTES[pattern][request.method](request, *match.groups())
        if isinstance(call, Reply):
            return call
        return msgspec.structs.replace(call, execute=partial(_at_shown_time, call.execute))

    def keys(self, books: Books) -> KeyRule:
        """docs/providers.md 1, rows Retention to Are failures stored."""
        last_kept = _LAST_KEPT[books.switch("square.stored_failures")]
        return KeyRule(
            horizon_seconds=_HORIZONS[books.switch("square.key_retention")],
            stores=partial(_stores, last_kept),
            replay=lambda reply: reply,
            in_flight=partial(_in_flight, books.switch("square.in_flight")),
            mismatch=_reused,
        )

    def fault(self, name: str, call: Call) -> Reply:
        """docs/providers.md 4, Errors, Retryable codes."""
        trouble, _, code = name.partition(":")
        if trouble == "refused":
            refusal = ("PAYMENT_METHOD_ERROR", "GENERIC_DECLINE")
            category, usual = ("REFUND_ERROR", "REFUND_DECLINED") if call.operation == "refund" else refusal
            return problem(400, category, code or usual, "Declined")
        reply = problem(*FAULTS[trouble], trouble.replace("_", " "))
        if trouble == "rate_limited":
            return msgspec.structs.replace(reply, headers=(*reply.headers, ("retry-after", code or "1")))
        return reply

    def act(self, books: Books, now: datetime, action: str, object_id: str) -> None:
        """Payments: succeed, fail, expire, pay (out). Refunds: succeed, refuse, fail. Payouts: pay, fail."""
        payment = books.get(DIALECT, "charge", object_id)
        if payment is not None and action == "pay":
            square_payout.pay_out(books, shown(now), payment)
            return
        for kind, act in _ACTS.items():
            entry = books.get(DIALECT, kind, object_id)
            if entry is not None:
                act(books, shown(now), action, entry)
                return
        raise KeyError(object_id)

    def notification(self, event: bytes, endpoint: Endpoint, sent_at: datetime) -> Notification:  # noqa: ARG002
        """The time of sending is no part of it."""
        return square_event.notification(event, endpoint)


_ACTS: Final = {
    "charge": square_payment.act_on_payment,
    "refund": square_refund.act_on_refund,
    "payout": square_payout.act_on_payout,
}


def _at_shown_time(execute: Callable[[Books, datetime], Reply], books: Books, now: datetime) -> Reply:
    return execute(books, shown(now))


def _stores(last_kept: int, reply: Reply) -> bool:
    return reply.status <= last_kept and reply.status not in _NOT_STORED


def _in_flight(how: str, call: Call) -> Reply:
    return problem(*_IN_FLIGHT[how], f"The {call.operation} under this idempotency_key is in progress")


def _reused(call: Call) -> Reply:
    # docs/providers.md 1, Same key, other body.
    return invalid("IDEMPOTENCY_KEY_REUSED", f"The idempotency_key was used for another {call.operation}")


def _keyed(operation: str, wanted: type[Any], execute: Callable[..., Reply], request: Request) -> Call | Reply:
    asked = read(request.body, wanted)
    if isinstance(asked, Reply):
        return asked
    # Fields the operation does not know count for the key too.
    whole = read(request.body, dict[str, Any])
    if isinstance(whole, Reply):
        return whole
    if len(asked.idempotency_key.encode()) > MAX_KEY_BYTES:
        return invalid("VALUE_TOO_LONG", f"At most {MAX_KEY_BYTES} characters", "idempotency_key")
    return Call(
        operation,
        partial(execute, asked),
        key=asked.idempotency_key,
        scope=operation,
        fingerprint=msgspec.json.encode(whole, order="sorted"),
    )


def _plain(operation: str, execute: Callable[..., Reply]) -> Prepare:
    return lambda _request, *ids: Call(operation, partial(execute, *ids))


def _with_body(operation: str, execute: Callable[..., Reply]) -> Prepare:
    return lambda request, *ids: Call(operation, partial(execute, *ids, request.body))


def _with_query(operation: str, execute: Callable[..., Reply]) -> Prepare:
    return lambda request, *ids: Call(operation, partial(execute, *ids, request.query))


_ROUTES: Final[dict[re.Pattern[str], dict[str, Prepare]]] = {
    re.compile(r"/v2/payments"): {
        "POST": partial(_keyed, "charge", square_payment.PaymentRequest, square_payment.create),
        "GET": _with_query("list", square_payment.many),
    },
    re.compile(r"/v2/payments/cancel"): {"POST": _with_body("cancel", square_payment.cancel_by_key)},
    re.compile(r"/v2/payments/([^/]+)"): {"GET": _plain("lookup", square_payment.get)},
    re.compile(r"/v2/payments/([^/]+)/cancel"): {"POST": _plain("cancel", square_payment.cancel)},
    re.compile(r"/v2/payments/([^/]+)/complete"): {"POST": _with_body("complete", square_payment.complete)},
    re.compile(r"/v2/refunds"): {
        "POST": partial(_keyed, "refund", square_refund.RefundRequest, square_refund.create),
        "GET": _with_query("list", square_refund.many),
    },
    re.compile(r"/v2/refunds/([^/]+)"): {"GET": _plain("lookup", square_refund.get)},
    re.compile(r"/v2/payouts"): {"GET": _with_query("list", square_payout.many)},
    re.compile(r"/v2/payouts/([^/]+)"): {"GET": _plain("lookup", square_payout.get)},
    re.compile(r"/v2/payouts/([^/]+)/payout-entries"): {"GET": _plain("list", square_payout.entries)},
    re.compile(r"/v2/events"): {"POST": _with_body("events", square_event.search)},
    re.compile(r"/v2/locations"): {"GET": _plain("list", square_payout.locations)},
}
_NOT_DONE: Final = not_done({pattern.pattern: methods for pattern, methods in _ROUTES.items()})
