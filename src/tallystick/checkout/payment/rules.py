"""Paying an order: whether it may be paid, and what to do next about its charge. Pure.

The caller passes the order, the log of its charges, what was sent so far and the time (the database's).

    no charge yet ─────────────> Begin(1)     a new key, its intent committed, then one call
    COMPLETED ─────────────────> Again        the provider has it: the same answer for every click
    FAILED, left open there ───> Close        the customer could still finish it: it is cancelled at the provider first
    FAILED ────────────────────> Begin(n+1)   known for good that nothing moved: another key
    PENDING, an answer known ──> Settle       it came when nobody waited for it any more
    PENDING, somebody at it ───> Hold         come back later; nothing is sent beside him
    PENDING, may have run ─────> Ask          the provider's books first, wherever it has any
    PENDING, has not run ──────> Resend       the same key, the same instruction
    PENDING, ask first ────────> Ask, or Hold for a person: a lost life of the database may have made it

An attempt's number grows after a known final failure alone. What is unknown is asked about or sent again under its own
key, by the rules that payouts follow (`settlement.rules`); nothing here decides them a second time.

The caller's own key is bound to order, body and attempt in the commit of the intent, or of the joining:

    key free, no live charge ───> Begin        and the attempt is this key's
    key free, a live charge ────> joins it     its answer will be this key's
    key bound, same request ────> the recorded answer of its attempt, a refusal too; while there is none: as above
    key bound, other request ───> key_reused   naming the fields that differ

Refusals, in order of precedence; those before the intent leave the key unused:

    key_reused                                      what was the key used for
    order_unknown, reservation_token_wrong          whose order is it
    order_cancelled, order_expired, order_paid      can it be paid
    payment_attempts_exhausted                      too many failed before
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hmac import compare_digest
from typing import Final, Literal
from uuid import UUID

import msgspec

from tallystick.checkout.order import rules as orders
from tallystick.keys.derived import charge_key
from tallystick.ledger.outcome import Rejected
from tallystick.movement import steps
from tallystick.movement.steps import (
    KEY_DIFFERS,
    Disputed,
    Failed,
    Happened,
    History,
    LookUp,
    Patience,
    Send,
    Verdict,
    Wait,
    ask_first,
)
from tallystick.providers.words import Absent, Answer, Charge, Facts, Looked, Lookup
from tallystick.secret import Secret

Status = Literal["PENDING", "COMPLETED", "FAILED"]
STATUSES: Final[tuple[Status, ...]] = ("PENDING", "COMPLETED", "FAILED")
# As callers see it: what the log calls COMPLETED may still wait for its customer.
PaymentStatus = Literal["PENDING", "AWAITING_CUSTOMER", "COMPLETED", "FAILED"]
Told = Literal["AWAITING_CUSTOMER", "COMPLETED"]
NO_LONGER_PENDING: Final = "order_no_longer_pending"
# Two complete listings, an hour apart, when nothing of it could come any more, did not show it.
NEVER_SEEN: Final = "never_seen"
# A person has seen at the provider that it was never made.
NEVER_CHARGED: Final = "never_charged"
# When nobody can tell and a person must look, it is still asked about: news may come by itself.
REVIEW_PAUSE: Final = timedelta(hours=1)
# Of a provider's own words: a sentence or two, whatever it sends.
_MOST_WORDS: Final = 500


class PaymentView(msgspec.Struct, frozen=True, kw_only=True):
    """How the paying of an order stands.

    AWAITING_CUSTOMER: the provider has the payment, and waits for the customer to bring his card or to confirm it.
    COMPLETED: the provider has all it needs; whether its money has come, the order's own status tells. `attempts` were
    begun so far, and this is the last of them. `reason`: why it failed, or why a person should look.
    """

    status: PaymentStatus
    payment_intent_id: str | None
    attempts: int
    reason: str | None


class Paying(msgspec.Struct, frozen=True, kw_only=True):
    """The provider has the payment. With `client_secret` the customer finishes it; it is stored nowhere.

    `is_repeat`: it was there before this call. `is_replayed`: this is the recorded answer of the very key.
    """

    order_id: str
    payment: PaymentView
    client_secret: Secret | None
    is_repeat: bool
    is_replayed: bool = False


class PaymentPending(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody knows yet. The same call again asks; the order shows it as well. Never a failure, never recorded."""

    order_id: str
    payment: PaymentView
    retry_after_seconds: int


@dataclass(frozen=True, slots=True)
class PaymentRefused(Rejected):
    """The provider's final no. Unlike other refusals it is recorded: its key has no other answer, a new one has.

    `is_replayed`: it was recorded before this call.
    """

    is_replayed: bool = False


Paid = Paying | PaymentPending | Rejected


class Payable(msgspec.Struct, frozen=True, kw_only=True):
    """What of an order decides about its payment."""

    tenant: str
    id: UUID
    status: orders.Status
    reservation_token: UUID
    amount_micros: int
    currency: str
    created_at: datetime
    expires_at: datetime

    @property
    def name(self) -> str:
        """As people write its id."""
        return orders.order_name(self.id.bytes)

    def is_open(self, now: datetime) -> bool:
        """Whether it may be charged now."""
        return self.status == "PENDING" and now < self.expires_at


class LoggedCharge(msgspec.Struct, frozen=True, kw_only=True):
    """A charge of an order, as the log has it: the newest one as a rule.

    `awaits_customer` and `refusal` are of its answer: the payment waited for the customer then; what was told of a no.
    """

    key: bytes
    attempt: int
    provider: str
    status: Status
    payment_intent_id: str | None
    reason: str | None
    claim_number: int
    tries: int
    due_at: datetime
    awaits_customer: bool = False
    refusal: bytes | None = None
    absent_at: datetime | None = None
    # Refused, and still there at the provider, to be paid by another card.
    is_confirmable: bool = False
    # A life that was lost may have made it: its books are asked before anything of it is sent.
    ask_first: bool = False

    @property
    def view(self) -> PaymentView:
        """As callers see it."""
        return PaymentView(
            status=shown(self.status, awaits_customer=self.awaits_customer),
            payment_intent_id=self.payment_intent_id,
            attempts=self.attempt,
            reason=self.reason,
        )

    def answered(self, told: Told | None) -> PaymentView | None:
        """The payment that was its answer, as told under a key; None: its answer was a no, or has not come.

        What has failed since was there all the same when it was answered.
        """
        if self.payment_intent_id is None or self.refusal is not None or self.status == "PENDING":
            return None
        status = told or shown("COMPLETED", awaits_customer=self.awaits_customer)
        return PaymentView(status=status, payment_intent_id=self.payment_intent_id, attempts=self.attempt, reason=None)


def shown(status: Status, *, awaits_customer: bool) -> PaymentStatus:
    """What callers see of a charge's status."""
    return "AWAITING_CUSTOMER" if status == "COMPLETED" and awaits_customer else status


class Begin(msgspec.Struct, frozen=True):
    """Log this attempt, commit its intent, then send it."""

    attempt: int


class Close(msgspec.Struct, frozen=True):
    """Have the provider cancel what a refused attempt left there. Only then may the next one begin."""


class Again(msgspec.Struct, frozen=True):
    """The provider has it. The same answer again."""


class Settle(msgspec.Struct, frozen=True):
    """Nothing needs to be asked: what is stored already decides."""

    verdict: Happened | Failed


class Hold(msgspec.Struct, frozen=True):
    """Nothing can be done before then. `tries`: without a final answer so far. `reason`: a person should look."""

    until: datetime
    tries: int
    reason: str | None = None
    # When complete books first did not show it, and nothing of it can come any more.
    absent_at: datetime | None = None


class Ask(msgspec.Struct, frozen=True):
    """Take the claim, then ask the provider's books."""


class Resend(msgspec.Struct, frozen=True):
    """Take the claim and send again, under the same key."""

    tries: int


PayStep = Begin | Close | Again | Settle | Hold | Ask | Resend
# What a verdict does to the log: COMPLETED with the provider's id, FAILED with the reason, or PENDING until then.
Entry = Happened | Failed | Hold


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
    holder: Facts | None,
    patience: Patience,
    most_attempts: int,
) -> PayStep | Rejected:
    """What a click comes to, on an order that `pay_refusal` does not refuse. First match wins.

    `facts`: of whoever takes it; `holder`: of whoever has the charge before, None where he is not configured any more.
    """
    if charge is None:
        return _unpaid(order) if order.status == "PAID" else Begin(1)
    match charge.status:
        case "COMPLETED":
            return Again()
        case "FAILED":
            if order.status == "PAID":
                return _unpaid(order)
            if charge.attempt >= most_attempts:
                return _exhausted(order, charge)
            if not charge.is_confirmable:
                return Begin(charge.attempt + 1)
            # Beside the next attempt it could be paid too: two charges for one order.
            return Close() if holder is not None and holder.cancels_charges else _left_open(order, charge)
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
    if charge.ask_first and charge.key != key_of(order, charge):
        return Hold(now + REVIEW_PAUSE, charge.tries, KEY_DIFFERS)
    step = steps.next_step(
        history, tries=charge.tries, account=account, lookup=lookup, now=now, facts=facts, patience=patience
    )
    if charge.ask_first:
        step = ask_first(step, history, lookup=lookup)
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
    return Hold(now + REVIEW_PAUSE, send.tries, NO_LONGER_PENDING)


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
    step = steps.after_look(
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
        entry = entry_of(step, tries=charge.tries, now=now)
    else:
        again = resend(order, history, step, now=now)
        entry = again.verdict if isinstance(again, Settle) else again  # type: ignore[assignment]
    is_absent = isinstance(looked, Absent) and lookup in (Lookup.EXACT, Lookup.SCAN)
    if is_absent and isinstance(entry, Hold) and _can_no_longer_come(order, history, now=now, facts=facts):
        return _never_seen(charge, entry, now=now)
    return entry


def _can_no_longer_come(order: Payable, history: History, *, now: datetime, facts: Facts) -> bool:
    """Whether nothing of a charge can come any more that is not in the books: nothing is sent, and nothing runs there.

    Not after a server's error: the provider may roll that forward on any day.
    """
    if order.is_open(now) or history.server_error or history.first_sent_at is None or history.not_after is None:
        return False
    is_forgotten = now >= history.first_sent_at + facts.key_horizon
    return is_forgotten and now >= history.not_after + facts.longest_in_flight


def _never_seen(charge: LoggedCharge, hold: Hold, *, now: datetime) -> Hold | Failed:
    """Complete books did not show it: closed when they do not show it an hour later either."""
    if charge.absent_at is None:
        return msgspec.structs.replace(hold, until=now + REVIEW_PAUSE, absent_at=now)
    if now < charge.absent_at + REVIEW_PAUSE:
        return msgspec.structs.replace(hold, until=charge.absent_at + REVIEW_PAUSE, absent_at=charge.absent_at)
    return Failed(NEVER_SEEN)


def after_answer(history: History, answer: Answer, *, tries: int, now: datetime, patience: Patience) -> Entry:
    """What an answer makes of the log. `history` is that of the attempts before it."""
    verdict = steps.after_answer(history, answer, tries=tries, now=now, patience=patience)
    return entry_of(verdict, tries=tries, now=now)


def entry_of(verdict: Verdict, *, tries: int, now: datetime) -> Entry:
    """A verdict about a movement, as a charge's log has it."""
    match verdict:
        case Happened() | Failed():
            return verdict
        case Wait(until, spent):
            return Hold(until, spent)
        case Disputed("returned", str() as payment_intent_id):
            # The payment was made. That its money has gone back since is the saga's to hear, from the provider.
            return Happened(payment_intent_id)
        case Disputed():
            # Nobody can tell whether money moved. It stays PENDING, so that nothing is charged beside it.
            return Hold(now + REVIEW_PAUSE, tries, verdict.reason)


def key_of(order: Payable, charge: LoggedCharge) -> bytes:
    """The key that the content of a charge gives."""
    return charge_of(order, attempt=charge.attempt, provider=charge.provider, payment_method=None).key


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


def refusal_of(order: str, charge: LoggedCharge, code: str, words: str = "it has failed for good") -> PaymentRefused:
    """What is told of a charge that failed for good: the same for everybody who asked for it, and for ever."""
    return PaymentRefused(
        "payment_refused",
        f"{charge.provider} refused attempt {charge.attempt} to pay {order}: {code}: {words:.{_MOST_WORDS}}",
        "Have the customer bring another way to pay, and send the request with a new key while the order holds: "
        "that is a new attempt.",
    )


def encode_refusal(refused: PaymentRefused) -> bytes:
    """As it is stored with the charge."""
    return msgspec.json.encode((refused.code, refused.detail, refused.remedy))


def recorded_refusal(order: str, charge: LoggedCharge) -> PaymentRefused:
    """What was told of a charge that failed, once more. A release that kept no words has its reason alone."""
    if charge.refusal is None:
        return replace(refusal_of(order, charge, charge.reason or ""), is_replayed=True)
    code, detail, remedy = msgspec.json.decode(charge.refusal, type=tuple[str, str, str])
    return PaymentRefused(code, detail, remedy, is_replayed=True)


class Search(msgspec.Struct, frozen=True):
    """How a provider's books are asked about a charge: from when on, and under which keys besides its own."""

    since: datetime
    others: tuple[bytes, ...]


def search_for(order: Payable, history: History, *, attempt: int, provider: str, most_attempts: int) -> Search:
    """Whatever a life of the database that was lost may have made of it is found as well."""
    counted = history.first_sent_at, history.since, order.created_at
    # What may have run was sent under its own key. Where nothing is known to have, another attempt may have moved.
    later = () if history.may_have_run else range(attempt + 1, most_attempts + 1)
    return Search(
        since=min(at for at in counted if at is not None),
        others=tuple(charge_of(order, attempt=n, provider=provider, payment_method=None).key for n in later),
    )


def written_until(history: History, settled_from: datetime | None) -> datetime | None:
    """Until when bytes of a charge may have been written; None: nobody ever did.

    `settled_from`: since when nobody but this very database can have sent. Books that are read before that, and the
    time it takes to settle, prove nothing.
    """
    return max((at for at in (history.not_after, settled_from) if at is not None), default=None)


def _unpaid(order: Payable) -> Rejected:
    return Rejected(
        "order_paid", f"{order.name} is paid, and by no charge of this log.", "Nothing is left to be paid for it."
    )


def _left_open(order: Payable, charge: LoggedCharge) -> Rejected:
    return Rejected(
        "provider_not_configured",
        f"The attempt before on {order.name} was declined and can still be paid at {charge.provider}, which is not "
        "configured here to end it: another one beside it could charge twice.",
        f"Have the account of {charge.provider} configured, then send the same request again; or reserve anew, and pay "
        "the new order.",
    )


def _exhausted(order: Payable, charge: LoggedCharge) -> Rejected:
    return Rejected(
        "payment_attempts_exhausted",
        f"{charge.attempt} attempts to pay {order.name} have failed, the last with {charge.reason!r:.80}.",
        "Reserve anew, and pay the new order.",
    )
