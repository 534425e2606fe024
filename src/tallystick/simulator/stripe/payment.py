"""PaymentIntents (docs/providers.md 2.6): create, confirm, capture, cancel, and what their banks decide later.

requires_payment_method ─> requires_confirmation ─> succeeded
          ^                        │           ├──> requires_capture ─> succeeded
          └── declined ────────────┘           ├──> requires_action, processing ─> succeeded | declined
                                  every state but succeeded ─> canceled
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from tallystick.simulator.books import Books, Entry
from tallystick.simulator.dialect import Reply
from tallystick.simulator.stripe import charge as stripe_charge
from tallystick.simulator.stripe.wire import (
    DIALECT,
    Context,
    Parameters,
    amount,
    by_itself,
    check_choice,
    check_names,
    currency,
    emit,
    good_json,
    metadata,
    missing,
    own,
    owned,
    problem,
    reference,
    refuse,
    rendered,
    shown,
    unix,
)

KIND: Final = "payment_intent"
_CREATE: Final = frozenset(
    [
        "amount",
        "currency",
        "confirm",
        "payment_method",
        "payment_method_types",
        "payment_method_options",
        "payment_method_data",
        "metadata",
        "description",
        "capture_method",
        "confirmation_method",
        "automatic_payment_methods",
        "transfer_group",
        "transfer_data",
        "customer",
        "off_session",
        "on_behalf_of",
        "receipt_email",
        "return_url",
        "setup_future_usage",
        "shipping",
        "statement_descriptor",
        "statement_descriptor_suffix",
        "application_fee_amount",
        "error_on_requires_action",
    ]
)
# What an update may change: words, and what decides about the money.
_WORDS: Final = frozenset({"description", "customer", "transfer_group", "payment_method"})
_MONEY: Final = frozenset({"amount", "currency", "payment_method"})
_UPDATE: Final = (
    _WORDS | _MONEY | {"metadata", "receipt_email", "shipping", "setup_future_usage", "statement_descriptor"}
)
_CONFIRM: Final = frozenset(["payment_method", "return_url", "off_session", "capture_method", "payment_method_options"])
_CAPTURE_METHODS: Final = frozenset({"automatic", "automatic_async", "manual"})
_CONFIRMATION_METHODS: Final = frozenset({"automatic", "manual"})
_STATES: Final = {"succeeded": "moved", "processing": "moving", "canceled": "failed"}
_CONFIRMABLE: Final = frozenset({"requires_payment_method", "requires_confirmation", "requires_action"})
# Dollars and euros; other currencies have limits of their own, which are not in our facts.
_LEAST: Final = {"usd": 50, "eur": 50}
_LARGEST: Final = 99_999_999


class Asked(msgspec.Struct, frozen=True):
    """A payment that passed the checks which need no books."""

    amount: int
    currency: str
    metadata: dict[str, str]
    given: Parameters


def asked(given: Parameters, context: Context) -> Asked:
    """Raises Refusal: nothing of this is stored under the key."""
    check_names(given, _CREATE, context)
    check_choice(given, "capture_method", _CAPTURE_METHODS, context)
    check_choice(given, "confirmation_method", _CONFIRMATION_METHODS, context)
    code = currency(given, context)
    value = amount(given, context, currency=code)
    if value < _LEAST.get(code, 1):
        message = f"Amount must be at least {_LEAST[code]} {code}."
        refuse(400, message, context, code="amount_too_small", param="amount")
    if value > _LARGEST:
        refuse(400, f"Amount must be no more than {_LARGEST}.", context, code="amount_too_large", param="amount")
    method = given.get("payment_method")
    if method is not None and (not str(method).startswith("pm_") or "unknown" in method):
        missing(context, "PaymentMethod", str(method), "payment_method", 400)
    return Asked(value, code, metadata(given, context), given)


def create(books: Books, now: datetime, *, asked: Asked, context: Context) -> Reply:
    """POST /v1/payment_intents."""
    id_ = books.next_id("pi_")
    method = asked.given.get("payment_method")
    body = {
        "id": id_,
        "object": "payment_intent",
        "amount": asked.amount,
        "amount_capturable": 0,
        "amount_received": 0,
        "canceled_at": None,
        "cancellation_reason": None,
        "capture_method": asked.given.get("capture_method", "automatic_async"),
        "client_secret": f"{id_}_secret_{books.next_id('')}",
        "confirmation_method": asked.given.get("confirmation_method", "automatic"),
        "created": unix(now),
        "currency": asked.currency,
        "customer": asked.given.get("customer"),
        "description": asked.given.get("description"),
        "last_payment_error": None,
        "latest_charge": None,
        "livemode": False,
        "metadata": asked.metadata,
        "next_action": None,
        "payment_method": method,
        "payment_method_types": ["card"],
        "status": "requires_confirmation" if method else "requires_payment_method",
        "transfer_group": asked.given.get("transfer_group"),
        **owned(context),
    }
    values = (id_, reference(asked.metadata), "", asked.amount, asked.currency, "waiting", now, body)
    entry = Entry(DIALECT, KIND, *values)
    snapshot = shown(body, books.insert(entry))
    emit(books, now, "payment_intent.created", body, context, snapshot=snapshot)
    if asked.given.get("confirm") == "true" and method:
        return _attempt(books, now, entry, context)
    return good_json(context, snapshot)


def update(books: Books, _now: datetime, *, intent_id: str, given: Parameters, context: Context) -> Reply:
    """POST /v1/payment_intents/{id}. Words can be changed at any time, the money only before it is confirmed."""
    check_names(given, _UPDATE, context)
    entry = own(books, KIND, intent_id, context, "intent")
    if set(given) & _MONEY:
        _check_status(entry, _CONFIRMABLE, "update", context)
    code = currency(given, context) if "currency" in given else entry.currency
    value = amount(given, context, currency=code) if "amount" in given else entry.amount
    fields = {name: given[name] for name in _WORDS & set(given)}
    if "metadata" in given:
        # Merged; an empty value takes the name away.
        merged = entry.body["metadata"] | metadata(given, context)
        fields["metadata"] = {name: text for name, text in merged.items() if text}
    if given.get("payment_method") and entry.body["status"] == "requires_payment_method":
        fields["status"] = "requires_confirmation"
    changed = msgspec.structs.replace(_with(entry, amount=value, currency=code, **fields), amount=value, currency=code)
    return good_json(context, shown(changed.body, books.replace(changed)))


def confirm(books: Books, now: datetime, *, intent_id: str, given: Parameters, context: Context) -> Reply:
    """POST /v1/payment_intents/{id}/confirm."""
    check_names(given, _CONFIRM, context)
    check_choice(given, "capture_method", _CAPTURE_METHODS, context)
    entry = own(books, KIND, intent_id, context, "intent")
    _check_status(entry, _CONFIRMABLE, "confirm", context)
    method = given.get("payment_method") or entry.body["payment_method"]
    if not method:
        message = "You cannot confirm this PaymentIntent because it's missing a payment method."
        refuse(400, message, context, code="payment_intent_unexpected_state")
    return _attempt(books, now, _with(entry, payment_method=method), context)


def capture(books: Books, now: datetime, *, intent_id: str, given: Parameters, context: Context) -> Reply:
    """POST /v1/payment_intents/{id}/capture."""
    check_names(given, frozenset({"amount_to_capture", "metadata"}), context)
    entry = own(books, KIND, intent_id, context, "intent")
    _check_status(entry, frozenset({"requires_capture"}), "capture", context)
    wanted = entry.amount
    if "amount_to_capture" in given:
        wanted = amount({"amount": given["amount_to_capture"]}, context, currency=entry.currency)
    if wanted > entry.amount:
        refuse(400, "Amount to capture is larger than the amount.", context, code="amount_too_large")
    stripe_charge.capture(books, now, entry.body["latest_charge"], wanted, context)
    changed = _with(entry, status="succeeded", amount_received=wanted, amount_capturable=0)
    return _told(books, now, changed, "payment_intent.succeeded", context)


def cancel(books: Books, now: datetime, *, intent_id: str, given: Parameters, context: Context) -> Reply:
    """POST /v1/payment_intents/{id}/cancel."""
    check_names(given, frozenset({"cancellation_reason"}), context)
    entry = own(books, KIND, intent_id, context, "intent")
    _check_status(entry, _CONFIRMABLE | {"requires_capture", "processing"}, "cancel", context)
    reason = given.get("cancellation_reason")
    changed = _with(entry, status="canceled", canceled_at=unix(now), cancellation_reason=reason, amount_capturable=0)
    return _told(books, now, changed, "payment_intent.canceled", context)


def act(books: Books, now: datetime, action: str, entry: Entry) -> None:
    """`succeed` or `fail`: what the bank or the customer decided about one that waits for them."""
    if action not in {"succeed", "fail"}:
        raise KeyError(action)
    if entry.body["status"] not in {"processing", "requires_action"}:
        return
    context = by_itself(entry.body)
    if action == "succeed":
        _succeed(books, now, entry, context)
    else:
        _decline(books, now, entry, ("card_declined", "generic_decline"), context)


def _attempt(books: Books, now: datetime, entry: Entry, context: Context) -> Reply:
    method = entry.body["payment_method"]
    declined = stripe_charge.decline(method)
    if declined is not None:
        return _decline(books, now, entry, declined, context)
    if method.endswith("authenticationRequired"):
        action = {"type": "use_stripe_sdk", "use_stripe_sdk": {"type": "three_d_secure_redirect"}}
        waiting = _with(entry, status="requires_action", next_action=action)
        return _told(books, now, waiting, "payment_intent.requires_action", context)
    if method.endswith("bankTransfer"):
        return _told(books, now, _with(entry, status="processing"), "payment_intent.processing", context)
    return _succeed(books, now, entry, context)


def _succeed(books: Books, now: datetime, entry: Entry, context: Context) -> Reply:
    charged = stripe_charge.charge(books, now, entry, context, declined=None)
    common: dict[str, Any] = {"latest_charge": charged["id"], "last_payment_error": None, "next_action": None}
    if not charged["captured"]:
        held = _with(entry, status="requires_capture", amount_capturable=entry.amount, **common)
        return _told(books, now, held, "payment_intent.amount_capturable_updated", context)
    done = _with(entry, status="succeeded", amount_received=entry.amount, **common)
    return _told(books, now, done, "payment_intent.succeeded", context)


def _decline(books: Books, now: datetime, entry: Entry, why: tuple[str, str | None], context: Context) -> Reply:
    charged = stripe_charge.charge(books, now, entry, context, declined=why)
    code, decline_code = why
    error = {"type": "card_error", "code": code, "message": "Your card was declined.", "charge": charged["id"]}
    if decline_code is not None:
        error |= {"decline_code": decline_code, "advice_code": "try_again_later"}
    # docs/providers.md 2.6: a failed confirm goes back to requires_payment_method.
    changed = _with(
        entry,
        status="requires_payment_method",
        payment_method=None,
        next_action=None,
        latest_charge=charged["id"],
        last_payment_error=error,
    )
    _told(books, now, changed, "payment_intent.payment_failed", context)
    return problem(402, context=context, **(error | {"payment_intent": rendered(changed.body)}))


def _told(books: Books, now: datetime, entry: Entry, event: str, context: Context) -> Reply:
    snapshot = shown(entry.body, books.replace(entry))
    emit(books, now, event, entry.body, context, snapshot=snapshot)
    return good_json(context, snapshot)


def _with(entry: Entry, **fields: Any) -> Entry:  # noqa: ANN401  the provider's fields
    body = entry.body | fields
    return msgspec.structs.replace(entry, body=body, state=_STATES.get(body["status"], "waiting"))


def _check_status(entry: Entry, good_statuses: frozenset[str], verb: str, context: Context) -> None:
    if entry.body["status"] not in good_statuses:
        message = f"You cannot {verb} this PaymentIntent because it has a status of {entry.body['status']}."
        code = "payment_intent_unexpected_state"
        refuse(400, message, context, code=code, payment_intent=rendered(entry.body))
