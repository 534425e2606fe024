"""Clicks: what a batch of them comes to, by what was read under the locks. Pure.

Two clicks on one order in one batch: the second looks again after the first. What is to be written is in the `Plan`;
the store writes it in the commit that the facts were read in (`checkout.payment.store`).
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from tallystick.audit.author import current
from tallystick.checkout.order.rules import order_unknown
from tallystick.checkout.payment import rules
from tallystick.checkout.payment.key import Asked, Bound, key_fault
from tallystick.checkout.payment.rules import (
    Again,
    Ask,
    Begin,
    Close,
    Hold,
    LoggedCharge,
    Payable,
    PaymentRefused,
    PaymentView,
    Resend,
    Settle,
    Told,
    charge_of,
    pay_refusal,
    recorded_refusal,
    refusal_of,
)
from tallystick.errors import InvariantBroken
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.movement.rules import Absence, AskFirst, Attempt, Withheld
from tallystick.movement.steps import NOTHING_SENT, Failed, Happened, History, Patience
from tallystick.movement.terms import ProviderTerms
from tallystick.providers.words import Charge

OrderName = tuple[int, UUID]


class ChargeTerms(msgspec.Struct, frozen=True, kw_only=True):
    """By what a click is decided, wherever it comes in.

    `permit_seconds`: how long bytes may be written. `lease`: how long a charge is left to the one who works on it.
    """

    providers: Mapping[str, ProviderTerms]
    patience: Patience
    lease: timedelta
    most_attempts: int
    permit_seconds: float


class Click(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wants to pay an order. `provider` is for a charge that is new; `token` marks this very call.

    `key` is the caller's own; None: nobody asked, a worker goes on. `told`: the payment was there, and the caller is
    about to be told so: that is what his key is bound to. `under`: an earlier claim of this call, after the provider's
    books were asked: what is sent is sent again, and `response` is the evidence that it may be, and `absence` the
    proof, where they do not show it.
    """

    tenant: Tenant
    order_id: UUID
    name: str
    reservation_token: str
    provider: str
    payment_method: str | None
    token: UUID
    key: str | None = None
    told: Told | None = None
    under: int | None = None
    tries: int = 0
    response: bytes | None = None
    author: str = msgspec.field(default_factory=current)
    absence: Absence | None = None


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that is committed: send it. `history` is what was sent before it."""

    order: Payable
    charge: LoggedCharge
    attempt: Attempt
    instruction: Charge
    history: History
    now: datetime


class ClaimedCharge(msgspec.Struct, frozen=True, kw_only=True):
    """A pending charge under a claim: ask the provider's books."""

    tenant: Tenant
    order: Payable
    charge: LoggedCharge
    instruction: Charge
    history: History
    now: datetime


class Same(msgspec.Struct, frozen=True):
    """The provider has it, under the log's id. `recorded`: the answer that the caller's key has, where it has one."""

    order: Payable
    charge: LoggedCharge
    recorded: PaymentView | None = None


class Closing(msgspec.Struct, frozen=True):
    """What a refused attempt left at the provider is cancelled there, before the next one begins."""

    charge: LoggedCharge
    now: datetime


class Held(msgspec.Struct, frozen=True):
    """Nobody knows yet. `until`: when it is worth asking again, by the database's clock, which said `now`."""

    charge: LoggedCharge | None
    until: datetime
    now: datetime


class Settled(msgspec.Struct, frozen=True):
    """What was stored has decided it, and that is in the log now: look again."""


class Noted(msgspec.Struct, frozen=True):
    """The key is bound to what the caller is about to be told."""


Clicked = Begun | ClaimedCharge | Same | Closing | Held | Settled | Noted | Rejected


class ClickFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was read for one click. `order` None: there is none.

    `charge` is the newest one, with its `instruction`, and `keyed` the one that the caller's key is bound to;
    `history` is what was sent under the newest one. `begun`: its attempt, where this very call began it, and is run
    again after a COMMIT whose answer was lost.
    """

    order: Payable | None
    now: datetime
    bound: Bound | None = None
    charge: LoggedCharge | None = None
    instruction: Charge | None = None
    keyed: LoggedCharge | None = None
    history: History = NOTHING_SENT
    begun: Attempt | None = None


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that this batch wants to begin: the first of a new charge, or a further one of `charge`."""

    item: Click
    order: Payable
    charge: LoggedCharge
    instruction: Charge
    history: History
    now: datetime
    is_new: bool


class Binding(msgspec.Struct, frozen=True):
    """A caller's key that becomes this attempt's."""

    item: Click
    attempt: int


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """A charge that what was stored before decides."""

    item: Click
    charge: LoggedCharge
    verdict: Happened | Failed
    awaits_customer: bool
    refused: PaymentRefused | None


class Later(msgspec.Struct, frozen=True):
    """Another click of this batch changes what this one is decided by."""


Planned = Clicked | Beginning | Later


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What each click comes to, and what is to be written before anything is sent. `bindings` by tenant and key."""

    answers: Sequence[Planned]
    decided: Sequence[Decided]
    claims: Sequence[tuple[Click, LoggedCharge]]
    bindings: Mapping[tuple[int, str], Binding]

    @property
    def beginnings(self) -> list[Beginning]:
        """In their order."""
        return [answer for answer in self.answers if isinstance(answer, Beginning)]


def plan(items: Sequence[Click], facts: Sequence[ClickFacts], terms: ChargeTerms) -> Plan:
    """What a batch comes to; `facts` are for each click, in their order."""
    planner = _Planner(terms)
    answers = [planner.decide(item, read) for item, read in zip(items, facts, strict=True)]
    return Plan(answers=answers, decided=planner.decided, claims=planner.claims, bindings=planner.bindings)


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """All that a click which gets so far is decided by. `is_bound`: its key is this charge's already."""

    item: Click
    order: Payable
    charge: LoggedCharge | None
    is_bound: bool
    history: History
    provider: str
    terms: ProviderTerms
    now: datetime


class _Planner:
    """One batch, click by click."""

    def __init__(self, terms: ChargeTerms) -> None:
        self._terms = terms
        self.decided: list[Decided] = []
        self.claims: list[tuple[Click, LoggedCharge]] = []
        self.bindings: dict[tuple[int, str], Binding] = {}
        self._touched: set[OrderName] = set()

    def decide(self, item: Click, facts: ClickFacts) -> Planned:
        """What this click comes to."""
        seen = self._see(item, facts)
        if not isinstance(seen, _Seen):
            return seen
        if facts.begun is not None:
            return _resumed(seen, facts.begun, facts.instruction)
        step = self._next_step(seen)
        if item.told is not None and not isinstance(step, Again):
            # What the caller was about to be told is no longer so.
            return Settled()
        match step:
            case Rejected():
                return step
            case Hold():
                return self._held(seen, step)
            case Begin(attempt):
                return self._begin(seen, attempt)
            case Close() | Again() | Settle() | Ask() | Resend():
                if seen.charge is None or facts.instruction is None:
                    raise InvariantBroken("a charge that nobody logged is to be gone on with")
                if isinstance(step, Close):
                    return Closing(seen.charge, seen.now)
                return self._go_on(seen, seen.charge, facts.instruction, step)

    def _held(self, seen: _Seen, hold: Hold) -> Held:
        if seen.charge is not None:
            self._bind(seen, seen.charge.attempt)
        return Held(seen.charge, hold.until, seen.now)

    def _see(self, item: Click, facts: ClickFacts) -> _Seen | Same | Rejected | Later:
        place = item.tenant.number, item.order_id
        bound, order, charge = facts.bound, facts.order, facts.charge
        refusal = None if bound is None else key_fault(bound, _asked(item))
        if refusal is not None:
            return refusal
        if order is None:
            return order_unknown(item.name)
        if bound is None:
            refusal = pay_refusal(order, item.reservation_token, now=facts.now)
            if refusal is not None:
                return refusal
        if place in self._touched or (item.key is not None and (item.tenant.number, item.key) in self.bindings):
            return Later()
        if bound is not None and facts.keyed is not None:
            recorded = _recorded_answer(item, order, bound, facts.keyed)
            if recorded is not None:
                return recorded
        provider = item.provider if charge is None or charge.status == "FAILED" else charge.provider
        terms = self._terms.providers.get(provider)
        if terms is None:
            return _not_configured(provider)
        return _Seen(
            item=item,
            order=order,
            charge=charge,
            is_bound=bound is not None,
            history=facts.history,
            provider=provider,
            terms=terms,
            now=facts.now,
        )

    def _next_step(self, seen: _Seen) -> rules.PayStep | Rejected:
        item, charge = seen.item, seen.charge
        if item.under is None:
            holder = None if charge is None else self._terms.providers.get(charge.provider)
            return rules.next_step(
                seen.order,
                charge,
                seen.history,
                account=seen.terms.account,
                lookup=seen.terms.lookup,
                now=seen.now,
                facts=seen.terms.facts,
                holder=None if holder is None else holder.facts,
                patience=self._terms.patience,
                most_attempts=self._terms.most_attempts,
            )
        # The books were asked under this claim. Whoever has another one since knows more.
        is_mine = charge is not None and charge.status == "PENDING" and charge.claim_number == item.under
        return Resend(item.tries) if is_mine and seen.order.is_open(seen.now) else Hold(seen.now, item.tries)

    def _begin(self, seen: _Seen, attempt: int) -> Beginning | Rejected:
        item, order = seen.item, seen.order
        instruction = charge_of(order, attempt=attempt, provider=seen.provider, payment_method=item.payment_method)
        refused = seen.terms.refusal(instruction)
        if refused is not None:
            # In any form: nothing is logged, because nothing will ever be asked of the provider.
            return Rejected(
                "payment_not_possible",
                f"{seen.provider} cannot take this payment: {refused.code}: {refused.message}",
                "Correct what it names. The order is still reserved, and nothing was sent.",
            )
        self._touched.add((item.tenant.number, item.order_id))
        self._bind(seen, attempt)
        charge = LoggedCharge(
            key=instruction.key,
            attempt=attempt,
            provider=seen.provider,
            status="PENDING",
            payment_intent_id=None,
            reason=None,
            claim_number=1,
            tries=0,
            due_at=seen.now + self._terms.lease,
        )
        return Beginning(
            item=item,
            order=order,
            charge=charge,
            instruction=instruction,
            history=msgspec.structs.replace(NOTHING_SENT, since=order.created_at),
            now=seen.now,
            is_new=True,
        )

    def _go_on(
        self, seen: _Seen, charge: LoggedCharge, instruction: Charge, step: Again | Settle | Ask | Resend
    ) -> Planned:
        item, order = seen.item, seen.order
        if isinstance(step, Again):
            if item.told is None:
                return Same(order, charge)
            self._bind(seen, charge.attempt)
            return Noted()
        self._bind(seen, charge.attempt)
        self._touched.add((item.tenant.number, item.order_id))
        if isinstance(step, Settle):
            self.decided.append(_decided(item, charge, step.verdict, seen.history))
            return Settled()
        claim, tries = item.under or charge.claim_number + 1, step.tries if isinstance(step, Resend) else charge.tries
        # What is sent again was asked about. Stored with what comes of the send: killed before, it is asked anew.
        is_asked = charge.ask_first and isinstance(step, Ask)
        claimed = msgspec.structs.replace(charge, claim_number=claim, tries=tries, ask_first=is_asked)
        self.claims.append((item, claimed))
        if isinstance(step, Ask):
            return ClaimedCharge(
                tenant=item.tenant,
                order=order,
                charge=claimed,
                instruction=instruction,
                history=seen.history,
                now=seen.now,
            )
        return Beginning(
            item=item,
            order=order,
            charge=claimed,
            instruction=instruction,
            history=seen.history,
            now=seen.now,
            is_new=False,
        )

    def _bind(self, seen: _Seen, attempt: int) -> None:
        """From this commit on the caller's key is that attempt's, whose answer is its own."""
        if seen.item.key is not None and not seen.is_bound:
            self.bindings[seen.item.tenant.number, seen.item.key] = Binding(seen.item, attempt)


def begun(
    beginning: Beginning, attempts: Mapping[UUID, Attempt | Withheld], doubtful: Collection[UUID]
) -> Begun | ClaimedCharge | Held:
    """What a click comes to whose attempt was to begin. `doubtful`: a lost life may have charged a further one."""
    attempt = attempts[beginning.item.token]
    if isinstance(attempt, AskFirst):
        # What is only doubted is asked for at once: a buyer waits, and its own key is remembered.
        if attempt.from_ > beginning.now and beginning.item.token not in doubtful:
            return Held(beginning.charge, attempt.from_, beginning.now)
        # Logged, and not sent: the provider may have forgotten its key, so its books are asked first.
        return ClaimedCharge(
            tenant=beginning.item.tenant,
            order=beginning.order,
            charge=beginning.charge,
            instruction=beginning.instruction,
            history=msgspec.structs.replace(beginning.history, since=attempt.since),
            now=beginning.now,
        )
    if not isinstance(attempt, Attempt):
        # Somebody is at it, or it was done a moment ago: what is stored decides next time.
        return Held(beginning.charge, beginning.now, beginning.now)
    return Begun(
        order=beginning.order,
        charge=beginning.charge,
        attempt=attempt,
        instruction=beginning.instruction,
        history=beginning.history,
        now=beginning.now,
    )


def _resumed(seen: _Seen, attempt: Attempt, instruction: Charge | None) -> Begun | Held:
    if seen.charge is None or seen.charge.status != "PENDING" or instruction is None:
        return Held(seen.charge, seen.now, seen.now)
    return Begun(
        order=seen.order,
        charge=seen.charge,
        attempt=attempt,
        instruction=instruction,
        # Nothing was sent under this attempt yet; whether anything was before it, its number tells.
        history=NOTHING_SENT if attempt.number == 1 else seen.history,
        now=seen.now,
    )


def _decided(item: Click, charge: LoggedCharge, verdict: Happened | Failed, history: History) -> Decided:
    """What was stored already decides: in the words that it left."""
    return Decided(
        item=item,
        charge=charge,
        verdict=verdict,
        awaits_customer=isinstance(verdict, Happened) and history.done_state == "waiting",
        refused=refusal_of(item.name, charge, verdict.reason) if isinstance(verdict, Failed) else None,
    )


def _asked(item: Click) -> Asked:
    return Asked(
        key=item.key or "",
        order_id=item.order_id,
        reservation_token=item.reservation_token,
        payment_method=item.payment_method,
    )


def _recorded_answer(item: Click, order: Payable, bound: Bound, keyed: LoggedCharge) -> Same | Rejected | None:
    """The answer that the key has; None: its attempt has none yet."""
    if keyed.status == "PENDING":
        return None
    answered = keyed.answered(bound.told)
    return recorded_refusal(item.name, keyed) if answered is None else Same(order, keyed, answered)


def _not_configured(provider: str) -> Rejected:
    return Rejected(
        "provider_not_configured",
        f"The provider {provider!r} is not configured here.",
        "Have its account configured (TALLY_PROVIDER, TALLY_<PROVIDER>_...), then send the same request again.",
    )
