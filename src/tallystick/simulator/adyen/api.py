"""Adyen, as far as our adapter and the official package call it: Checkout v72 and Transfers v4.

    /checkout/v72/payments                  resultCode at once
    /checkout/v72/payments/{psp}/refunds    received; the result comes by webhook
    /btl/v4/transfers ...                   received; authorised, booked, refused ... come by webhook
    /btl/v4/transactions                    what was booked

The official package works unmodified when the `baseUrl` of its services is set to these addresses.
"""

import re
import secrets
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from tallystick.simulator.adyen import listing as adyen_listing
from tallystick.simulator.adyen import payment as adyen_payment
from tallystick.simulator.adyen import transfer as adyen_transfer
from tallystick.simulator.adyen import webhook as adyen_webhook
from tallystick.simulator.adyen.answer import (
    DIALECT,
    MAX_KEY_CHARACTERS,
    answer,
    canonical,
    checkout_problem,
    platform_problem,
    shown,
)
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

Execute = Callable[[Books, datetime], Reply]

# docs/providers.md 3, Idempotency: at least seven days from the first submission.
HORIZON_SECONDS: Final = 7 * 86_400.0

SWITCHES: Final = (
    Switch("adyen.other_body", ("first_answer", "error_704", "error_422"), "docs/providers.md 9: same key, other body"),
    Switch("adyen.in_flight_status", ("422", "409"), "docs/providers.md 3, In flight: 422 or 409"),
    Switch(
        "adyen.stored_failures",
        ("every_answer", "success_only"),
        "docs/providers.md 1, Are failures stored: only said that the first response is returned",
    ),
    Switch("adyen.over_refund", ("webhook", "http_422"), "docs/providers.md 3, Guard: how it is told is not said"),
    Switch("adyen.transfer_status", ("202", "200"), "docs/providers.md 3, Outbound transfer: 200 or 202"),
    Switch("adyen.reference", ("repeatable", "unique"), "docs/providers.md 3, Uniqueness of reference: not stated"),
    Switch("adyen.notification_items", ("one", "several"), "docs/providers.md 3, Standard webhook traps"),
)

# Named trouble: status, errorCode, what is said, errorType, whether it may be sent again.
FAULTS: Final[dict[str, tuple[int, str, str, str, bool]]] = {
    "unauthorized": (401, "000", "HTTP Status Response - Unauthorized", "security", False),
    "forbidden": (403, "010", "Not allowed", "security", False),
    "rate_limited": (429, "429", "Too many requests", "internal", True),
    "in_flight": (422, "704", "Request already processed or in progress", "validation", True),
    "error_704": (422, "704", "Request already processed or in progress", "validation", True),
    "error_703": (503, "703", "The required resource is temporarily unavailable", "internal", True),
    "error_without_transient": (500, "905", "Internal error", "internal", False),
    "error_500": (500, "000", "Internal error", "internal", False),
    "gateway_502": (502, "000", "Bad gateway", "internal", False),
    "gateway_503": (503, "000", "Service unavailable", "internal", False),
    "gateway_504": (504, "000", "Gateway timeout", "internal", False),
}
_TRANSIENT: Final = ("transient-error", "true")
_CHECKOUT: Final = frozenset({"charge", "refund"})


class Adyen:
    """The dialect."""

    name = DIALECT
    switches = SWITCHES
    # docs/providers.md 3, Retry: 2, 5, 10, 15, 30 minutes, 1, 2, 4, 8 hours, then 8-hourly up to 30 days.
    retry_gaps_seconds = (120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, *(28800.0,) * 89)

    def route(self, request: Request) -> Call | Reply:
        """The operation, or 401, 404, 405."""
        found = [(pattern, match) for pattern in _ROUTES if (match := pattern.fullmatch(request.path))]
        if not found:
            return platform_problem(404, "000", f"Not found. {_NOT_DONE}")
        # docs/providers.md 3, Auth.
        if not ({"x-api-key", "authorization"} & request.headers.keys()):
            return checkout_problem(*FAULTS["unauthorized"][:4])
        pattern, match = found[0]
        if request.method not in _ROUTES[pattern]:
            return platform_problem(405, "000", "Method not allowed")
        operation, prepare = _ROUTES[pattern][request.method]
        return _call(operation, partial(_at_shown_time, prepare(request, *match.groups())), request)

    def keys(self, books: Books) -> KeyRule:
        """docs/providers.md 3, Idempotency; 1, Scope: the company account."""
        every = books.switch("adyen.stored_failures") == "every_answer"
        other_body = books.switch("adyen.other_body")
        in_flight_status = int(books.switch("adyen.in_flight_status"))
        mismatch: Callable[[Call], Reply] | None = None
        if other_body == "error_704":
            mismatch = partial(_already, in_flight_status)
        elif other_body == "error_422":
            mismatch = _other_body
        return KeyRule(
            horizon_seconds=HORIZON_SECONDS,
            # A stored transient error could never be overcome by the retry it asks for.
            stores=lambda reply: reply.status < 300 or (every and _TRANSIENT not in reply.headers),  # noqa: PLR2004
            replay=lambda reply: reply,
            in_flight=partial(_already, in_flight_status),
            mismatch=mismatch,
        )

    def fault(self, name: str, call: Call) -> Reply:
        """docs/providers.md 3, In flight, Idempotency store down, Retry rule."""
        trouble, _, code = name.partition(":")
        if trouble == "refused":
            return _refused(call, code)
        status, number, message, kind, transient = FAULTS[trouble]
        reply = _problem(call, status, number, message, kind, transient=transient)
        if trouble == "rate_limited":
            return msgspec.structs.replace(reply, headers=(*reply.headers, ("retry-after", code or "1")))
        return reply

    def act(self, books: Books, now: datetime, action: str, object_id: str) -> None:
        """Transfers: authorise, book, refuse, fail, return. Refunds: succeed, fail, return. Payments: succeed, fail."""
        for kind, act in _ACTS.items():
            entry = books.get(DIALECT, kind, object_id)
            if entry is not None:
                act(books, shown(now), action, entry)
                return
        raise KeyError(object_id)

    def notification(self, event: bytes, endpoint: Endpoint, sent_at: datetime) -> Notification:  # noqa: ARG002
        """Neither signature covers the time of sending."""
        return adyen_webhook.notification(event, endpoint)


_ACTS: Final = {
    "transfer": adyen_transfer.act_on_transfer,
    "refund": adyen_payment.act_on_refund,
    "charge": adyen_payment.act_on_payment,
}


def _call(operation: str, execute: Execute, request: Request) -> Call | Reply:
    key = request.headers.get("idempotency-key") if request.method == "POST" else None
    if key is not None and len(key) > MAX_KEY_CHARACTERS:
        return checkout_problem(422, "702", f"Idempotency-Key is longer than {MAX_KEY_CHARACTERS} characters")
    if not key:
        return Call(operation, execute)
    return Call(
        operation,
        partial(_echoing, key, execute),
        key=key,
        scope="company",
        fingerprint=canonical(request.path, request.body),
    )


def _at_shown_time(execute: Execute, books: Books, now: datetime) -> Reply:
    return execute(books, shown(now))


def _echoing(key: str, execute: Execute, books: Books, now: datetime) -> Reply:
    # docs/providers.md 1, Same key, same body: the key comes back in a header, from the first answer on.
    reply = execute(books, now)
    return msgspec.structs.replace(reply, headers=(*reply.headers, ("idempotency-key", key)))


def _already(status: int, call: Call) -> Reply:
    _, number, message, kind, transient = FAULTS["error_704"]
    return _problem(call, status, number, message, kind, transient=transient)


def _other_body(call: Call) -> Reply:
    return _problem(call, 422, "702", "The Idempotency-Key was used with another request", "validation")


def _problem(call: Call, status: int, number: str, message: str, kind: str, *, transient: bool = False) -> Reply:
    if call.operation in _CHECKOUT:
        return checkout_problem(status, number, message, kind, transient=transient)
    return platform_problem(status, number, message, transient=transient)


def _refused(call: Call, code: str) -> Reply:
    # docs/providers.md 3, Payments: a refused payment is a 200 that says so.
    if call.operation == "charge":
        # Nothing was made whose id it could be, and no two payments share one.
        psp = f"PSP00X{secrets.token_hex(5).upper()}"
        body = {"pspReference": psp, "resultCode": "Refused", "refusalReason": code or "Refused"}
        return answer(200, body | {"refusalReasonCode": "2"})
    return _problem(call, 422, code or "30_016", "The request was refused", "validation")


_ROUTES: Final[dict[re.Pattern[str], dict[str, tuple[str, Callable[..., Execute]]]]] = {
    re.compile(r"/checkout/v\d+/payments"): {
        "POST": ("charge", lambda request: partial(adyen_payment.pay, request.body)),
    },
    re.compile(r"/checkout/v\d+/payments/([^/]+)/refunds"): {
        "POST": ("refund", lambda request, psp: partial(adyen_payment.refund, psp, request.body)),
    },
    re.compile(r"/btl/v\d+/transfers"): {
        "POST": ("transfer", lambda request: partial(adyen_transfer.transfer, request.body)),
        "GET": ("lookup", lambda request: partial(adyen_listing.many, "transfer", request.query)),
    },
    re.compile(r"/btl/v\d+/transfers/approve"): {
        "POST": ("approve", lambda request: partial(adyen_transfer.approve, request.body)),
    },
    re.compile(r"/btl/v\d+/transfers/cancel"): {
        "POST": ("cancel", lambda request: partial(adyen_transfer.cancel, request.body)),
    },
    re.compile(r"/btl/v\d+/transfers/([^/]+)/returns"): {
        "POST": ("return", lambda request, id_: partial(adyen_transfer.give_back, id_, request.body)),
    },
    re.compile(r"/btl/v\d+/transfers/([^/]+)"): {
        "GET": ("lookup", lambda _request, id_: partial(adyen_listing.one, "transfer", id_)),
    },
    re.compile(r"/btl/v\d+/transactions"): {
        "GET": ("list", lambda request: partial(adyen_listing.many, "transaction", request.query)),
    },
    re.compile(r"/btl/v\d+/transactions/([^/]+)"): {
        "GET": ("lookup", lambda _request, id_: partial(adyen_listing.one, "transaction", id_)),
    },
}
_NOT_DONE: Final = not_done({pattern.pattern: methods for pattern, methods in _ROUTES.items()})
