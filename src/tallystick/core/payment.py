"""Paying an order: whether it may be paid, and what to do next about its charge. Pure.

The caller passes the order, the log of its charges, what was sent so far and the time (the database's).

    no charge yet ─────────────> Begin(1)     a new key, its intent committed, then one call
    COMPLETED ─────────────────> Again        the provider has it: the same answer for every click
    FAILED ────────────────────> Begin(n+1)   known for good that nothing moved: another key
    PENDING, an answer known ──> Settle       it came when nobody waited for it any more
    PENDING, somebody at it ───> Hold         come back later; nothing is sent beside him
    PENDING, may have run ─────> Ask          the provider's books first, wherever it has any
    PENDING, has not run ──────> Resend       the same key, the same instruction

An attempt's number grows after a known final failure alone. What is unknown is asked about or sent again under its own
key, by the rules that payouts follow (`core.settlement`); nothing here decides them a second time.

Refusals, in order of precedence:

    order_unknown, reservation_token_wrong          whose order is it
    order_cancelled, order_expired, order_paid      can it be paid
    payment_attempts_exhausted                      too many failed before
"""

from datetime import datetime, timedelta
from hmac import compare_digest
from typing import Final, Literal
from uuid import UUID

import msgspec

from tallystick.core import order as orders
from tallystick.core import settlement
from tallystick.core.keys import charge_key
from tallystick.core.outcome import Rejected
from tallystick.core.provider import Answer, Charge, Facts, Looked, Lookup
from tallystick.core.secret import Secret
from tallystick.core.settlement import Disputed, Failed, History, LookUp, Patience, Send, Transferred, Verdict, Wait

Status = Literal["PENDING", "COMPLETED", "FAILED"]
STATUSES: Final[tuple[Status, ...]] = ("PENDING", "COMPLETED", "FAILED")
NO_LONGER_PENDING: Final = "order_no_longer_pending"
# When nobody can tell and a person must look, it is still asked about: news may come by itself.
_REVIEW_PAUSE: Final = timedelta(hours=1)


class PaymentView(msgspec.Struct, frozen=True, kw_only=True):
    """How the paying of an order stands.

    COMPLETED: the provider has the payment; whether its money has come, the order's own status tells. `attempts` were
    begun so far, and this is the last of them. `reason`: why it failed, or why a person should look.
    """

    status: Status
    payment_intent_id: str | None
    attempts: int
    reason: str | None


class Paying(msgspec.Struct, frozen=True, kw_only=True):
    """The provider has the payment. With `client_secret` the customer finishes it; it is stored nowhere."""

    order_id: str
    payment: PaymentView
    client_secret: Secret | None
    is_repeat: bool


class PaymentPending(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody knows yet. The same call again asks; the order shows it as well. Never a failure, never recorded."""

    order_id: str
    payment: PaymentView
    retry_after_seconds: int


Paid = Paying | PaymentPending | Rejected


class Payable(msgspec.Struct, frozen=True, kw_only=True):
    """What of an order decides about its payment."""

    tenant: str
    id: UUID
    status: orders.Status
    reservation_token: UUID
    amount_micros: int
    currency: str
    expires_at: datetime

    @property
    def name(self) -> str:
        """As people write its id."""
        return orders.order_name(self.id.bytes)

    def is_open(self, now: datetime) -> bool:
        """Whether it may be charged now."""
        return self.status == "PENDING" and now < self.expires_at


class LoggedCharge(msgspec.Struct, frozen=True, kw_only=True):
    """The newest charge of an order, as the log has it."""

    key: bytes
    attempt: int
    provider: str
    status: Status
    payment_intent_id: str | None
    reason: str | None
    claim_number: int
    tries: int
    due_at: datetime

    @property
    def view(self) -> PaymentView:
        """As callers see it."""
        return PaymentView(
            status=self.status,
            payment_intent_id=self.payment_intent_id,
            attempts=self.attempt,
            reason=self.reason,
        )


class Begin(msgspec.Struct, frozen=True):
    """Log this attempt, commit its intent, then send it."""

    attempt: int


class Again(msgspec.Struct, frozen=True):
    """The provider has it. The same answer again."""


class Settle(msgspec.Struct, frozen=True):
    """Nothing needs to be asked: what is stored already decides."""

    verdict: Transferred | Failed


class Hold(msgspec.Struct, frozen=True):
    """Nothing can be done before then. `tries`: without a final answer so far. `reason`: a person should look."""

    until: datetime
    tries: int
    reason: str | None = None


class Ask(msgspec.Struct, frozen=True):
    """Take the claim, then ask the provider's books."""


class Resend(msgspec.Struct, frozen=True):
    """Take the claim and send again, under the same key."""

    tries: int


Step = Begin | Again | Settle | Hold | Ask | Resend
# What a verdict does to the log: COMPLETED with the provider's id, FAILED with the reason, or PENDING until then.
Entry = Transferred | Failed | Hold


def pay_refusal(order: Payable, reservation_token: str, *, now: datetime) -> Rejected | None:
    """Why this order cannot be paid with this token. A PAID one is no refusal: its payment is told again."""
    expected = orders.token_name(order.reservation_token)
    # Whoever guesses must not learn from our haste how far he was right.
    if not compare_digest(expected.encode(), reservation_token.encode("utf-8", "replace")):
        return Rejected(
            "reservation_token_wrong",
            f"The reservation token is not that of {order.name}.",
            "Use the reservation_token that reserving this very order returned (rt_ and 32 hexadecimal digits).",
        )
    if order.status == "CANCELLED":
        return Rejected(
            "order_cancelled",
            f"{order.name} was cancelled: its stock is for sale again.",
            "Reserve anew, and pay the new order.",
        )
    if order.status == "CANCELLED_BY_SWEEPER" or (order.status == "PENDING" and now >= order.expires_at):
        return Rejected(
            "order_expired",
            f"The time to pay {order.name} was over at {order.expires_at:%Y-%m-%d %H:%M:%S} UTC.",
            "Reserve anew, and pay the new order. GET /v1/orders/{id} tells what became of a payment that was begun.",
        )
    return None


def next_step(
    order: Payable,
    charge: LoggedCharge | None,
    history: History,
    *,
    account: str,
    lookup: Lookup,
    now: datetime,
    facts: Facts,
    patience: Patience,
    most_attempts: int,
) -> Step | Rejected:
    """What a click comes to, on an order that `pay_refusal` does not refuse. First match wins."""
    if charge is None:
        return _unpaid(order) if order.status == "PAID" else Begin(1)
    match charge.status:
        case "COMPLETED":
            return Again()
        case "FAILED":
            if order.status == "PAID":
                return _unpaid(order)
            return _exhausted(order, charge) if charge.attempt >= most_attempts else Begin(charge.attempt + 1)
        case "PENDING":
            return left_pending(
                order, charge, history, account=account, lookup=lookup, now=now, facts=facts, patience=patience
            )


def left_pending(
    order: Payable,
    charge: LoggedCharge,
    history: History,
    *,
    account: str,
    lookup: Lookup,
    now: datetime,
    facts: Facts,
    patience: Patience,
) -> Settle | Hold | Ask | Resend:
    """What to do about a charge whose outcome nobody has recorded: a later click's question, and the worker's."""
    step = settlement.next_step(
        history, tries=charge.tries, account=account, lookup=lookup, now=now, facts=facts, patience=patience
    )
    if isinstance(step, Send | LookUp):
        if now < charge.due_at:
            return Hold(charge.due_at, charge.tries, charge.reason)
        return Ask() if isinstance(step, LookUp) else resend(order, history, step, now=now)
    entry = entry_of(step, tries=charge.tries, now=now)
    if isinstance(entry, Hold):
        return msgspec.structs.replace(entry, until=max(entry.until, charge.due_at))
    return Settle(entry)


def resend(order: Payable, history: History, send: Send, *, now: datetime) -> Settle | Hold | Resend:
    """Whether what may be sent again still should be: never for an order that can no longer be paid."""
    if order.is_open(now):
        return Resend(send.tries)
    if not history.may_have_run:
        # Every attempt is known not to have run, so nothing moved; and now nothing will.
        return Settle(Failed(NO_LONGER_PENDING))
    # It may have run, and the books do not prove that it did not: news can still come, but not from a new send.
    return Hold(now + _REVIEW_PAUSE, send.tries, NO_LONGER_PENDING)


def after_look(
    order: Payable,
    charge: LoggedCharge,
    history: History,
    looked: Looked,
    *,
    lookup: Lookup,
    now: datetime,
    facts: Facts,
    patience: Patience,
) -> Resend | Entry:
    """What the provider's books make of a charge whose outcome is unknown."""
    step = settlement.after_look(
        history,
        looked,
        tries=charge.tries,
        amount_micros=order.amount_micros,
        currency=order.currency,
        lookup=lookup,
        now=now,
        facts=facts,
        patience=patience,
    )
    if not isinstance(step, Send):
        return entry_of(step, tries=charge.tries, now=now)
    again = resend(order, history, step, now=now)
    return again.verdict if isinstance(again, Settle) else again


def after_answer(history: History, answer: Answer, *, tries: int, now: datetime, patience: Patience) -> Entry:
    """What an answer makes of the log. `history` is that of the attempts before it."""
    verdict = settlement.after_answer(history, answer, tries=tries, now=now, patience=patience)
    return entry_of(verdict, tries=tries, now=now)


def entry_of(verdict: Verdict, *, tries: int, now: datetime) -> Entry:
    """A verdict about a movement, as a charge's log has it."""
    match verdict:
        case Transferred() | Failed():
            return verdict
        case Wait(until, spent):
            return Hold(until, spent)
        case Disputed("returned", str() as payment_intent_id):
            # The payment was made. That its money has gone back since is the saga's to hear, from the provider.
            return Transferred(payment_intent_id)
        case Disputed():
            # Nobody can tell whether money moved. It stays PENDING, so that nothing is charged beside it.
            return Hold(now + _REVIEW_PAUSE, tries, verdict.reason)


def charge_of(order: Payable, *, attempt: int, provider: str, payment_method: str | None) -> Charge:
    """The instruction of an attempt: its key covers the order, its token, the attempt and the amount."""
    return Charge(
        key=charge_key(
            tenant=order.tenant,
            currency=order.currency,
            provider=provider,
            order_id=order.name,
            reservation_token=orders.token_name(order.reservation_token),
            attempt=attempt,
            amount_micros=order.amount_micros,
        ),
        amount_micros=order.amount_micros,
        currency=order.currency,
        description=order.name,
        payment_method=payment_method,
    )


def _unpaid(order: Payable) -> Rejected:
    return Rejected(
        "order_paid", f"{order.name} is paid, and by no charge of this log.", "Nothing is left to be paid for it."
    )


def _exhausted(order: Payable, charge: LoggedCharge) -> Rejected:
    return Rejected(
        "payment_attempts_exhausted",
        f"{charge.attempt} attempts to pay {order.name} have failed, the last with {charge.reason!r:.80}.",
        "Reserve anew, and pay the new order.",
    )
