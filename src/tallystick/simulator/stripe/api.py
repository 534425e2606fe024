"""Stripe v1, as far as our adapter and the official `stripe` package call it.

The package works unmodified with its base address set to `http://.../stripe`.

Keys (docs/providers.md 2.2): whatever is refused here, in `route`, was not executed and is not stored; whatever an
execution answers is stored, 4xx and 500 alike, for 24 hours. API keys: `sk_...` may do everything, `rk_...` may
only read (403), one that contains `invalid` is none (401).
"""

import hashlib
import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

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
from tallystick.simulator.stripe import account as stripe_account
from tallystick.simulator.stripe import balance as stripe_balance
from tallystick.simulator.stripe import dispute as stripe_dispute
from tallystick.simulator.stripe import expanding as stripe_expanding
from tallystick.simulator.stripe import listing as stripe_listing
from tallystick.simulator.stripe import payment as stripe_payment
from tallystick.simulator.stripe import payout as stripe_payout
from tallystick.simulator.stripe import refund as stripe_refund
from tallystick.simulator.stripe import transfer as stripe_transfer
from tallystick.simulator.stripe.trouble import TROUBLE, in_flight, mismatch, rate_limited, refused
from tallystick.simulator.stripe.wire import (
    DIALECT,
    Context,
    Parameters,
    Refusal,
    context,
    new_request_id,
    parameters,
    problem,
)

if TYPE_CHECKING:
    from _hashlib import HASH

# docs/providers.md 1, Key limit and Retention.
LONGEST_KEY: Final = 255
HORIZON_SECONDS: Final = 24 * 3600.0
NAMESPACE_SWITCH: Final = "stripe.key_namespace"
VERSION_SWITCH: Final = "stripe.key_api_version"
ORIGINAL_SWITCH: Final = "stripe.original_request_header"

SWITCHES: Final = (
    Switch(stripe_balance.STATUS_SWITCH, ("400", "402"), "docs/providers.md 9: HTTP status of balance_insufficient"),
    Switch(NAMESPACE_SWITCH, ("platform", "account"), "docs/providers.md 2.2: key namespace of connected accounts"),
    Switch(VERSION_SWITCH, ("ignored", "separate"), "docs/providers.md 2.2: whether the API version counts for keys"),
    Switch(
        stripe_transfer.GROUP_SWITCH, ("forced", "free"), "docs/providers.md 2.5: source_transaction, transfer_group"
    ),
    Switch(stripe_refund.LATE_FAILURE_SWITCH, ("yes", "no"), "docs/providers.md 2.7: a succeeded refund can fail"),
    Switch(ORIGINAL_SWITCH, ("sent", "absent"), "docs/providers.md 8: Original-Request on a replay"),
    Switch(stripe_listing.SEARCH_SWITCH, ("60", "0", "3600"), "docs/providers.md 2.9: how late the search is"),
)

Execute = Callable[[Books, datetime], Reply]
Prepare = Callable[..., Execute]


class Stripe:
    """The dialect."""

    name = DIALECT
    switches = SWITCHES
    # docs/providers.md 2.10: growing gaps up to three days; the gaps themselves are not published.
    retry_gaps_seconds = (300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, *(43_200.0,) * 4)

    def route(self, request: Request) -> Call | Reply:
        """The operation, or what is refused before the key layer."""
        who = context(request)
        unwelcome = _unwelcome(request, who)
        if unwelcome is not None:
            return unwelcome
        methods, named = _found(request.path)
        found = methods.get(request.method)
        if found is None:
            message = f"Unrecognized request URL ({request.method}: {request.path}). {_NOT_DONE}"
            return problem(404, message, context=who)
        operation, prepare = found
        try:
            given = parameters(request)
            wanted = stripe_expanding.paths(given, who) if "expand" in given else ()
            execute = prepare(given, who, *named)
        except Refusal as refusal:
            return refusal.reply
        if wanted:
            execute = partial(_expanding, execute, wanted, who)
        return _call(operation, execute, request, who)

    def keys(self, books: Books) -> KeyRule:
        """docs/providers.md 2.2."""
        return _RULES[books.switch(NAMESPACE_SWITCH), books.switch(VERSION_SWITCH), books.switch(ORIGINAL_SWITCH)]

    def fault(self, name: str, call: Call) -> Reply:
        """docs/providers.md 2.4."""
        trouble, _, code = name.partition(":")
        if trouble == "refused":
            return refused(call, code)
        if trouble == "rate_limited":
            return rate_limited(call, code or "1")
        return TROUBLE[trouble](call)

    def act(self, books: Books, now: datetime, action: str, object_id: str) -> None:
        """Transfers: reverse. Payouts: send, pay, fail. Refunds and PaymentIntents: succeed, fail.

        PaymentIntents also: inquire, dispute. Disputes: close_inquiry, escalate, win, lose.
        """
        if action in stripe_dispute.OPENING:
            intent = books.get(DIALECT, "payment_intent", object_id)
            if intent is None:
                raise KeyError(object_id)
            stripe_dispute.open_(books, now, action, intent)
            return
        for kind, act in _ACTS.items():
            entry = books.get(DIALECT, kind, object_id)
            if entry is not None:
                act(books, now, action, entry)
                return
        raise KeyError(object_id)

    def notification(self, event: bytes, endpoint: Endpoint, sent_at: datetime) -> Notification:
        """docs/providers.md 2.10: one v1 signature per secret, over the time and the raw body."""
        at = int(sent_at.timestamp())
        signed = f"t={at}" + "".join([f",v1={_signature(secret, at, event)}" for secret in endpoint.secrets])
        headers = (("content-type", "application/json; charset=utf-8"), ("stripe-signature", signed))
        return Notification((*headers, ("user-agent", "Stripe/1.0")), event)


_ACTS: Final = {
    "transfer": stripe_transfer.act,
    "payout": stripe_payout.act,
    "refund": stripe_refund.act,
    "payment_intent": stripe_payment.act,
    "dispute": stripe_dispute.act,
}


def _signature(secret: str, at: int, event: bytes) -> str:
    begun, ending = _keyed(secret)
    inner, outer = begun.copy(), ending.copy()
    inner.update(b"%d." % at)
    inner.update(event)
    outer.update(inner.digest())
    return outer.hexdigest()


@lru_cache(maxsize=64)
def _keyed(secret: str) -> "tuple[HASH, HASH]":
    """HMAC-SHA-256 (RFC 2104) as far as the key alone decides it: two hashes that have taken the padded key.

    Making these for each webhook took longer than the webhook itself.
    """
    key = secret.encode()
    size = hashlib.sha256().block_size
    padded = (hashlib.sha256(key).digest() if len(key) > size else key).ljust(size, b"\0")
    inner, outer = (bytes(byte ^ mask for byte in padded) for mask in (0x36, 0x5C))
    return hashlib.sha256(inner), hashlib.sha256(outer)


def _unwelcome(request: Request, who: Context) -> Reply | None:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.startswith(("sk_", "rk_")) or "invalid" in secret:
        return problem(401, "Invalid API Key provided.", context=who)
    if secret.startswith("rk_") and request.method != "GET":
        return problem(403, "The provided key does not have the required permissions.", context=who)
    if who.key is not None and len(who.key) > LONGEST_KEY:
        return problem(400, f"Idempotency-Key has {LONGEST_KEY} characters at most.", context=who)
    return None


def _call(operation: str, execute: Execute, request: Request, who: Context) -> Call:
    if who.key is None:
        return Call(operation, partial(_answered, execute))
    # The same parameters in another order are the same request. The account counts only where keys are common.
    sent = b"&".join([request.path.encode(), *sorted(request.body.split(b"&"))])
    digest = hashlib.sha256(b"%s %s" % (who.account.encode(), sent)).digest()
    scope = f"{who.account} {request.headers.get('stripe-version', '')}"
    return Call(operation, partial(_answered, execute), who.key, scope, digest)


def _expanding(
    execute: Execute, wanted: tuple[tuple[str, ...], ...], who: Context, books: Books, now: datetime
) -> Reply:
    return stripe_expanding.expanded(execute(books, now), wanted, books, who)


def _answered(execute: Execute, books: Books, now: datetime) -> Reply:
    try:
        return execute(books, now)
    except Refusal as refusal:
        return refusal.reply


def _stores(reply: Reply) -> bool:
    return reply.status not in {401, 409, 429}


def _replay(reply: Reply, *, original: bool) -> Reply:
    first = dict(reply.headers).get("request-id", "")
    kept = tuple((name, value) for name, value in reply.headers if name != "request-id")
    own = (("request-id", new_request_id()), ("idempotent-replayed", "true"))
    more = (("original-request", first),) if original else ()
    return msgspec.structs.replace(reply, headers=(*kept, *own, *more))


def _scope(namespace: str, version: str, call: Call) -> str:
    account, _, api_version = call.scope.partition(" ")
    return f"{account if namespace == 'account' else ''} {api_version if version == 'separate' else ''}"


_RULES: Final = {
    (namespace, version, original): KeyRule(
        horizon_seconds=HORIZON_SECONDS,
        stores=_stores,
        replay=partial(_replay, original=original == "sent"),
        in_flight=in_flight,
        mismatch=mismatch,
        scope=partial(_scope, namespace, version),
    )
    for namespace in ("platform", "account")
    for version in ("ignored", "separate")
    for original in ("sent", "absent")
}


def _creates(asked: Callable[[Parameters, Context], Any], create: Callable[..., Reply]) -> Prepare:
    return lambda given, who: partial(create, asked=asked(given, who), context=who)


def _changes(change: Callable[..., Reply], name: str) -> Prepare:
    return lambda given, who, id_: partial(change, **{name: id_}, given=given, context=who)


def _shows(kind: str) -> Prepare:
    return lambda _given, who, id_: partial(stripe_listing.one, kind=kind, id_=id_, context=who)


def _lists(url: str) -> Prepare:
    listing = stripe_listing.LISTINGS[url]
    return lambda given, who: partial(stripe_listing.many, listing=listing, given=given, context=who)


def _refunds(given: Parameters, who: Context) -> Execute:
    return partial(stripe_refund.create, given=stripe_refund.check(given, who), context=who)


Methods = dict[str, tuple[str, Prepare]]


def _found(path: str) -> tuple[Methods, tuple[str, ...]]:
    """What the path takes, and the ids in it; no methods at all: there is no such path."""
    methods = _FIXED.get(path)
    if methods is not None:
        return methods, ()
    for pattern, methods in _PATTERNS.items():
        match = pattern.fullmatch(path)
        if match is not None:
            return methods, match.groups()
    return {}, ()


_PATHS: Final[dict[str, Methods]] = {
    r"/v1/transfers": {
        "POST": ("transfer", _creates(stripe_transfer.asked, stripe_transfer.create)),
        "GET": ("list", _lists("/v1/transfers")),
    },
    r"/v1/transfers/([^/]+)": {"GET": ("lookup", _shows("transfer"))},
    r"/v1/transfers/([^/]+)/reversals": {
        "POST": ("reversal", _changes(stripe_transfer.reverse, "transfer_id")),
        "GET": ("list", _changes(stripe_listing.reversals, "transfer_id")),
    },
    r"/v1/payment_intents": {
        "POST": ("charge", _creates(stripe_payment.asked, stripe_payment.create)),
        "GET": ("list", _lists("/v1/payment_intents")),
    },
    r"/v1/payment_intents/search": {
        "GET": ("lookup", lambda given, who: partial(stripe_listing.search, given=given, context=who))
    },
    r"/v1/payment_intents/([^/]+)": {
        "GET": ("lookup", _shows("payment_intent")),
        "POST": ("update", _changes(stripe_payment.update, "intent_id")),
    },
    r"/v1/payment_intents/([^/]+)/confirm": {"POST": ("confirm", _changes(stripe_payment.confirm, "intent_id"))},
    r"/v1/payment_intents/([^/]+)/capture": {"POST": ("capture", _changes(stripe_payment.capture, "intent_id"))},
    r"/v1/payment_intents/([^/]+)/cancel": {"POST": ("cancel", _changes(stripe_payment.cancel, "intent_id"))},
    r"/v1/charges": {"GET": ("list", _lists("/v1/charges"))},
    r"/v1/charges/([^/]+)": {"GET": ("lookup", _shows("charge"))},
    r"/v1/refunds": {"POST": ("refund", _refunds), "GET": ("list", _lists("/v1/refunds"))},
    r"/v1/refunds/([^/]+)": {"GET": ("lookup", _shows("refund"))},
    r"/v1/payouts": {
        "POST": ("payout", _creates(stripe_payout.asked, stripe_payout.create)),
        "GET": ("list", _lists("/v1/payouts")),
    },
    r"/v1/payouts/([^/]+)": {"GET": ("lookup", _shows("payout"))},
    r"/v1/payouts/([^/]+)/cancel": {"POST": ("cancel", _changes(stripe_payout.cancel, "payout_id"))},
    r"/v1/balance": {"GET": ("balance", lambda _given, who: partial(stripe_balance.show, context=who))},
    r"/v1/balance_transactions": {"GET": ("list", _lists("/v1/balance_transactions"))},
    r"/v1/balance_transactions/([^/]+)": {
        "GET": ("lookup", lambda _given, who, id_: partial(stripe_listing.transaction, id_=id_, context=who))
    },
    r"/v1/account": {"GET": ("lookup", lambda _given, who: partial(stripe_account.own, context=who))},
    r"/v1/accounts": {
        "POST": ("onboard", lambda given, who: partial(stripe_account.create, given=given, context=who)),
        "GET": ("list", _lists("/v1/accounts")),
    },
    r"/v1/accounts/([^/]+)": {
        "GET": ("lookup", lambda _given, who, id_: partial(stripe_account.show, account_id=id_, context=who))
    },
    r"/v1/disputes": {"GET": ("list", _lists("/v1/disputes"))},
    r"/v1/disputes/([^/]+)": {"GET": ("lookup", _shows("dispute"))},
    r"/v1/events": {"GET": ("events", lambda given, who: partial(stripe_listing.events, given=given, context=who))},
    r"/v1/events/([^/]+)": {
        "GET": ("events", lambda _given, who, id_: partial(stripe_listing.event, id_=id_, context=who))
    },
}
_NOT_DONE: Final = not_done(_PATHS)
_FIXED: Final = {path: methods for path, methods in _PATHS.items() if "(" not in path}
_PATTERNS: Final = {re.compile(path): methods for path, methods in _PATHS.items() if "(" in path}
