"""Wise, as far as our adapter calls it: four calls for one payout, each with its own safety rule.

    quote ──> recipient ──> transfer ──> fund      (docs/providers.md 5, Flow)
    no key    no key        customer-    once
                            TransactionId

Paths begin with v1 to v4 or with a quarter, /2026Q3 (docs/providers.md 5, Hosts).
"""

import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

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
from tallystick.simulator.wise import balance as wise_balance
from tallystick.simulator.wise import fund as wise_fund
from tallystick.simulator.wise import quote as wise_quote
from tallystick.simulator.wise import transfer as wise_transfer
from tallystick.simulator.wise import webhook as wise_webhook
from tallystick.simulator.wise.answer import DIALECT, answer, echoing, plain_problem, problem, shown

Prepare = Callable[..., Call]

SWITCHES: Final = (
    Switch("wise.uuid_versions", ("any", "v4_only"), "docs/providers.md 9: UUIDs other than v4"),
    Switch(
        "wise.other_data",
        ("first_transfer", "error_422", "error_409"),
        "docs/providers.md 9: a repeated customerTransactionId with other data",
    ),
    Switch("wise.repeat_body", ("current", "first"), "docs/providers.md 1, Same key, same body: exact body unverified"),
    Switch("wise.retention", ("for_ever", "30_days"), "docs/providers.md 9: retention of customerTransactionId"),
    Switch("wise.key_scope", ("account", "client"), "docs/providers.md 1, Scope: per calling client, unverified"),
    Switch("wise.in_flight", ("conflict_409", "error_500"), "docs/providers.md 1, Key in flight: unverified"),
    Switch("wise.stored_failures", ("none", "every_answer"), "docs/providers.md 1, Are failures stored: unverified"),
    Switch("wise.quote_life_seconds", ("1800", "86400", "60"), "docs/providers.md 5, Amounts: quote life unverified"),
    Switch("wise.funding_challenge", ("never", "always"), "docs/providers.md 5, SCA"),
    Switch(
        wise_webhook.CLIENT_ERROR_TRIES,
        ("25", "3"),
        "docs/providers.md 5, Delivery: which 4xx are tried 3 times is not told",
    ),
    Switch(
        "wise.second_funding",
        ("conflict_409", "rejected_201"),
        "docs/providers.md 5, Duplicate guards; other clients also expect 201 REJECTED payment.exists",
    ),
)

# Named trouble: status, code.
FAULTS: Final[dict[str, tuple[int, str]]] = {
    "unauthorized": (401, "unauthorized"),
    "forbidden": (403, "forbidden"),
    "rate_limited": (429, "rate.limited"),
    "error_500": (500, "internal.error"),
    "gateway_502": (502, "bad.gateway"),
    "gateway_503": (503, "service.unavailable"),
    "gateway_504": (504, "gateway.timeout"),
}
_IN_FLIGHT: Final = {"conflict_409": (409, "transfer.in.progress"), "error_500": (500, "internal.error")}
_FIRST_FAILURE: Final = 400


class Wise:
    """The dialect."""

    name = DIALECT
    switches = SWITCHES
    # docs/providers.md 5, Delivery: 25 tries over about two weeks: 1, 2, 4 ... minutes, then daily.
    retry_gaps_seconds = (*(60.0 * 2**power for power in range(11)), *(86_400.0,) * 13)

    def route(self, request: Request) -> Call | Reply:
        """The operation, or 401, 404, 405."""
        found = [(pattern, match) for pattern in _ROUTES if (match := pattern.fullmatch(request.path))]
        if not found:
            return problem(404, "NOT_FOUND", f"There is no such endpoint. {_NOT_DONE}")
        if not request.headers.get("authorization", "").startswith("Bearer "):
            return answer({"error": "unauthorized", "error_description": "A token is required"}, 401)
        pattern, match = found[0]
        if request.method not in _ROUTES[pattern]:
            return problem(405, "METHOD_NOT_ALLOWED", f"{request.method} is not allowed here")
        call = _ROUTES[pattern][request.method](request, *match.groups())
        execute = partial(_at_shown_time, call.execute)
        correlation = request.headers.get("x-external-correlation-id")
        if correlation is not None:
            execute = partial(echoing, correlation, execute)
        return msgspec.structs.replace(call, execute=execute)

    def keys(self, books: Books) -> KeyRule:
        """The key layer knows only who is running; repeats are found in the books (see `wise_transfer`)."""
        keeps_failures = books.switch("wise.stored_failures") == "every_answer"
        kept = wise_transfer.RETENTION[books.switch("wise.retention")]
        return KeyRule(
            horizon_seconds=None if kept is None else kept.total_seconds(),
            stores=lambda reply: keeps_failures and reply.status >= _FIRST_FAILURE,
            replay=lambda reply: reply,
            in_flight=partial(_in_flight, books.switch("wise.in_flight")),
            mismatch=None,
            scope=None if books.switch("wise.key_scope") == "client" else lambda _call: "",
        )

    def fault(self, name: str, call: Call) -> Reply:
        """docs/providers.md 5, Trap, Rate limit. Funding says it in plain text."""
        trouble, _, argument = name.partition(":")
        if trouble == "fund_rejected" or (trouble == "refused" and call.operation == "fund"):
            return wise_fund.rejected(argument)
        if trouble == "refused":
            return problem(422, argument or "NOT_VALID", "The request was refused")
        status, code = FAULTS[trouble]
        reply = plain_problem(status, code) if call.operation == "fund" else problem(status, code, code)
        if trouble != "rate_limited":
            return reply
        limits = (("retry-after", argument or "1"), ("x-rate-limited-by", "simulator"))
        return msgspec.structs.replace(reply, headers=(*reply.headers, *limits))

    def act(self, books: Books, now: datetime, action: str, object_id: str) -> None:
        """Transfers: convert, send, bounce, refund, expire, roll_back, refuse, charge_back, lose_track."""
        entry = books.get(DIALECT, "transfer", object_id)
        if entry is None:
            raise KeyError(object_id)
        wise_transfer.act_on_transfer(books, shown(now), action, entry)

    def notification(self, event: bytes, endpoint: Endpoint, sent_at: datetime) -> Notification:
        """Signed with the endpoint's private key."""
        return wise_webhook.notification(event, endpoint, sent_at)


def _at_shown_time(execute: Callable[[Books, datetime], Reply], books: Books, now: datetime) -> Reply:
    return execute(books, shown(now))


def _in_flight(how: str, _call: Call) -> Reply:
    status, code = _IN_FLIGHT[how]
    return problem(status, code, "The transfer is being created")


def _transfer(request: Request) -> Call:
    caller = wise_transfer.caller_of(request.headers.get("authorization", ""))
    execute = partial(wise_transfer.create, request.body, caller)
    try:
        asked = msgspec.json.decode(request.body, type=wise_transfer.TransferRequest)
    except (msgspec.DecodeError, RecursionError):
        return Call("transfer", execute)
    # docs/providers.md 1, Where the key goes.
    key = asked.customer_transaction_id.lower()
    return Call("transfer", execute, key=key, scope=str(caller), fingerprint=msgspec.json.encode(asked, order="sorted"))


def _plain(operation: str, execute: Callable[..., Reply]) -> Prepare:
    return lambda _request, *ids: Call(operation, partial(execute, *ids))


def _with_body(operation: str, execute: Callable[..., Reply]) -> Prepare:
    return lambda request, *ids: Call(operation, partial(execute, *ids, request.body))


def _with_query(operation: str, execute: Callable[..., Reply]) -> Prepare:
    return lambda request, *ids: Call(operation, partial(execute, *ids, request.query))


def _path(text: str) -> re.Pattern[str]:
    return re.compile(r"/(?:v\d|20\d\dQ[1-4])" + text)


_ROUTES: Final[dict[re.Pattern[str], dict[str, Prepare]]] = {
    _path(r"/profiles"): {"GET": _plain("list", wise_quote.profiles)},
    _path(r"/profiles/(\d{1,18})/quotes"): {"POST": _with_body("quote", wise_quote.quote)},
    _path(r"/profiles/(\d{1,18})/quotes/([^/]+)"): {"GET": _plain("lookup", wise_quote.get_quote)},
    _path(r"/accounts"): {
        "POST": _with_body("recipient", wise_quote.recipient),
        "GET": _with_query("list", wise_quote.recipients),
    },
    _path(r"/accounts/(\d{1,18})"): {"GET": _plain("lookup", wise_quote.get_recipient)},
    _path(r"/transfers"): {"POST": _transfer, "GET": _with_query("list", wise_transfer.many)},
    _path(r"/transfers/(\d{1,18})"): {"GET": _plain("lookup", wise_transfer.get)},
    _path(r"/transfers/(\d{1,18})/cancel"): {"PUT": _plain("cancel", wise_transfer.cancel)},
    _path(r"/transfers/(\d{1,18})/payments"): {"GET": _plain("lookup", wise_fund.payments)},
    _path(r"/profiles/(\d{1,18})/transfers/(\d{1,18})/payments"): {
        "POST": _with_body("fund", wise_fund.fund),
        "GET": _plain("lookup", wise_fund.payments_of_profile),
    },
    _path(r"/profiles/(\d{1,18})/balances"): {"GET": _with_query("list", wise_balance.balances)},
    _path(r"/profiles/(\d{1,18})/balance-statements/(\d{1,18})/statement\.json"): {
        "GET": _with_query("list", wise_balance.statement)
    },
    _path(r"/profiles/(\d{1,18})/subscriptions"): {"POST": _with_body("subscribe", wise_webhook.subscribe)},
    _path(r"/webhook-public-key"): {"GET": _plain("lookup", wise_webhook.public_key_of_books)},
}
_NOT_DONE: Final = not_done({pattern.pattern: methods for pattern, methods in _ROUTES.items()})
