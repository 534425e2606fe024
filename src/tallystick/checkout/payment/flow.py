"""Payments: an order is charged once, however often its buyer clicks.

    click   lock the order, read log and attempts, decide; log row, intent and attempt  ── many clicks, one transaction
    send    one call to the provider, with a deadline                                   ── no transaction is open
    record  the answer with its evidence, and what it makes of the log                  ── many answers, one transaction

Clicks of one process on one order under one key share one flight; those under other keys join it through the log, as
those of other processes do. Nobody waits long: a flight goes on after its callers were told that it is pending. The
deciders are in `checkout.payment.rules` and `checkout.payment.key`.
"""

import asyncio
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from math import ceil
from typing import Final, Self
from uuid import uuid4

import msgspec
import structlog

from tallystick.checkout.order.rules import order_id as id_of
from tallystick.checkout.order.rules import order_unknown, token_name
from tallystick.checkout.order.store import Changed, OrderView, unannounced
from tallystick.checkout.payment import store
from tallystick.checkout.payment.plan import (
    Begun,
    ChargeTerms,
    ClaimedCharge,
    Click,
    Clicked,
    Closing,
    Held,
    Noted,
    Same,
)
from tallystick.checkout.payment.plan import Settled as LookAgain
from tallystick.checkout.payment.rules import (
    REVIEW_PAUSE,
    Ask,
    Entry,
    Hold,
    LoggedCharge,
    Paid,
    Paying,
    PaymentPending,
    PaymentRefused,
    PaymentStatus,
    PaymentView,
    Resend,
    Settle,
    after_answer,
    after_look,
    left_pending,
    refusal_of,
    search_for,
    shown,
)
from tallystick.checkout.payment.store import ChargeResult, ClickWork, RecordWork
from tallystick.checkout.release.rules import Release, after_cancel
from tallystick.checkout.release.store import ProviderWord
from tallystick.commit.group import GroupCommit
from tallystick.database.pool import Database
from tallystick.errors import Busy, InvariantBroken, RestoredDatabase, ShareUsed
from tallystick.keys.derived import hex64
from tallystick.ledger.claims import Tenant, key_refusal
from tallystick.ledger.outcome import Rejected
from tallystick.movement import asking
from tallystick.movement.asking import AskedAbout
from tallystick.movement.evidence import answered, looked_up, now_after
from tallystick.movement.flow import Outgoing, Sender, terms_of
from tallystick.movement.life import store as life
from tallystick.movement.rules import Absence
from tallystick.movement.steps import MOVED_UNDER_ANOTHER_KEY, Failed, Happened, Patience
from tallystick.movement.store import Answered
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import (
    Answer,
    Done,
    Event,
    Fetched,
    Found,
    Looked,
    Lookup,
    Movement,
    NotShown,
    Refused,
    Undecided,
)
from tallystick.settings import LIMITS, Limits

log = structlog.get_logger("tallystick.payment")

# A click may find an answer, then a failure, then begin anew: each of these is a step, and none comes twice.
_MOST_STEPS: Final = 6
# Asked for again sooner, nothing would be known; later, a buyer would have left.
_SOONEST_SECONDS: Final = 1
_LATEST_SECONDS: Final = 60
# Why nothing begins: the attempt before it was refused, and may still be paid at the provider.
_NOT_ENDED: Final = "earlier_attempt_not_ended"
# It is not worded by a provider: this is how our own question is told apart from its webhooks.
_FOUND: Final = "tallystick.found_by_recovery"


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a run over the charges that nobody finished did."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    waiting: int = 0
    sent: int = 0


# Tenant, order, reservation token, key and payment method: what differs in any of them is another request.
_Flight = tuple[int, str, str, str, str | None]


class Payments:
    """Charges orders for every tenant, over every configured provider. Use as an async context manager."""

    def __init__(
        self,
        database: Database,
        providers: Mapping[str, Provider],
        sender: Sender,
        *,
        provider: str,
        changed: Changed = unannounced,
        limits: Limits = LIMITS,
    ) -> None:
        """`provider` takes new charges; the others finish what was begun with them.

        `changed` is told of orders whose payment stands otherwise than before.
        """
        self._database = database
        self._providers = providers
        self._sender = sender
        self._provider = provider
        self._limits = limits
        self._patience = Patience(
            stuck_after=timedelta(seconds=limits.payment_stuck_seconds), budget=limits.payment_retry_budget
        )
        self._terms = ChargeTerms(
            providers={name: terms_of(name, adapter, "charge") for name, adapter in providers.items()},
            patience=self._patience,
            lease=timedelta(seconds=limits.payment_lease_seconds),
            most_attempts=limits.payment_attempts,
            permit_seconds=limits.send_seconds,
        )
        self._clicks: GroupCommit[Click, Clicked] = GroupCommit(
            ClickWork(database, self._terms, changed), limits=limits, joining=True
        )
        self._recorder: GroupCommit[ChargeResult, bool] = GroupCommit(
            RecordWork(database, changed), limits=limits, joining=True
        )
        # In the order they began.
        self._flights: dict[_Flight, asyncio.Task[Paid]] = {}
        self._by_order: dict[tuple[int, str], list[asyncio.Task[Paid]]] = {}
        # By tenant.
        self._flying: Counter[int] = Counter()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start the lanes."""
        await self._stack.enter_async_context(self._recorder)
        await self._stack.enter_async_context(self._clicks)
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Let what was sent be answered and recorded; what is not by then is finished by a worker."""
        if self._flights:
            _, late = await asyncio.wait(self._flights.values(), timeout=self._limits.drain_seconds)
            for flight in late:
                flight.cancel()
        await self._stack.__aexit__(*exception)  # type: ignore[arg-type]

    async def pay(
        self,
        tenant: Tenant,
        order_id: str,
        reservation_token: str,
        *,
        idempotency_key: str,
        payment_method: str | None = None,
    ) -> Paid:
        """Charge an order, once. Whoever calls again, from wherever, gets the same payment.

        The key is bound to order, body and attempt in the commit of the intent; the provider's final answer, a no too,
        is what it has for ever. A `payment_method` counts for an attempt that begins with this call. Raises like
        `Engine.submit`: then nothing was sent, and the same call again is safe.
        """
        refusal = key_refusal(idempotency_key)
        if refusal is not None:
            return refusal
        uuid = id_of(order_id)
        if uuid is None:
            return order_unknown(order_id)
        name: _Flight = tenant.number, order_id, reservation_token, idempotency_key, payment_method
        flight = self._flights.get(name)
        if flight is None:
            self._require_room(tenant)
            click = Click(
                tenant=tenant,
                order_id=uuid,
                name=order_id,
                reservation_token=reservation_token,
                provider=self._provider,
                payment_method=payment_method,
                token=uuid4(),
                key=idempotency_key,
            )
            beside = self._by_order.setdefault((tenant.number, order_id), [])
            flight = asyncio.create_task(self._fly(click, tuple(beside)), name=f"pay {order_id}")
            self._flights[name] = flight
            beside.append(flight)
            self._flying[tenant.number] += 1
            flight.add_done_callback(lambda done: self._landed(name, done))
        # Not the flight itself: a caller who hangs up must not take the answer from the others, nor from the log.
        done, _ = await asyncio.wait([flight], timeout=self._limits.payment_wait_seconds)
        if done:
            return flight.result()
        return await self._pending(tenant, order_id)

    def _require_room(self, tenant: Tenant) -> None:
        """For one more flight, of all and of this tenant. Raises Busy and ShareUsed."""
        if len(self._flights) >= self._limits.payment_flights:
            raise Busy(self._limits.retry_after_seconds)
        if self._flying[tenant.number] >= self._limits.payment_flights_per_tenant:
            raise ShareUsed(self._limits.retry_after_seconds)

    async def order(self, tenant: Tenant, order_id: str) -> OrderView | Rejected:
        """An order as it stands, with its payment."""
        return await store.order(self._database, tenant, order_id)

    async def collect(self, *, most: int | None = None) -> Collected:
        """Finish charges that somebody began and nobody finished: what is known is recorded, the rest asked about.

        Never sends for an order that can no longer be paid. Raises RestoredDatabase before anything is claimed;
        InFlight, OutcomeUnknown and Unreachable. Safe beside clicks and other collectors, and to kill at any moment.
        """
        counts: Counter[str] = Counter()
        claimed, heard = await self._claim_due(min(most or self._limits.payment_chunk, self._limits.payment_chunk))
        counts["claimed"] = len(claimed)
        entries = await asyncio.gather(*(self._collected(one, heard, counts) for one in claimed))
        for entry in entries:
            match entry:
                case Happened():
                    counts["completed"] += 1
                case Failed():
                    counts["failed"] += 1
                case Hold():
                    counts["waiting"] += 1
        return Collected(**counts)

    async def ask(self) -> AskedAbout:
        """Ask about every charge that is marked to be asked about and due, and send nothing. For a restored database.

        What the books have is recorded, and the saga hears of its money as from a webhook. What they prove absent is
        left to the next click, and to the collector. Safe beside others, and to kill at any moment.
        """
        counts: Counter[str] = Counter()
        due_before: datetime | None = None
        while True:
            claimed, heard = await self._claim_asked(due_before)
            if not claimed:
                return AskedAbout(**counts)
            # What becomes due while this runs is for the next time, so that this ends.
            due_before = due_before or min(one.now for one in claimed)
            await asyncio.gather(*(self._only_asked(one, heard, counts) for one in claimed))

    # --- a click

    def _landed(self, name: _Flight, flight: "asyncio.Task[Paid]") -> None:
        self._flights.pop(name, None)
        beside = self._by_order[name[:2]]
        beside.remove(flight)
        if not beside:
            del self._by_order[name[:2]]
        self._flying[name[0]] -= 1
        if not flight.cancelled() and flight.exception() is not None:
            # Those who wait are told themselves; here, in case nobody does any more.
            log.warning("click_failed", order=name[1], reason=type(flight.exception()).__name__)

    async def _fly(self, click: Click, before: "Sequence[asyncio.Task[Paid]]") -> Paid:
        try:
            return await self._steps(click, before)
        except RestoredDatabase:
            return Rejected(
                "database_restored",
                "The database was restored: what it does not know may have been charged.",
                "Nothing was sent. Send the same request again when the operator's `tally recover` has ended.",
            )

    async def _steps(self, click: Click, before: "Sequence[asyncio.Task[Paid]]") -> Paid:
        """`before`: flights of this process on the same order that began earlier, under other keys."""
        for _ in range(_MOST_STEPS):
            began = steady()
            step: Clicked = await self._clicks.submit(click, source=click.tenant.number)
            heard = steady()
            answer: Paid | Click | None
            match step:
                case Rejected():
                    return step
                case Held():
                    ahead = [flight for flight in before if not flight.done()]
                    if not ahead:
                        return _held(click.name, step)
                    # The key has joined what they are about. Whoever began first waits for none: there is no circle.
                    await asyncio.wait(ahead)
                    answer = None
                case LookAgain() | Noted():
                    answer = None
                case Begun():
                    answer = await self._send(click, step, began=began, heard=heard)
                case Same() | ClaimedCharge() | Closing():
                    answer = await self._go_on(click, step, heard)
            if answer is not None and not isinstance(answer, Click):
                return answer
            click = msgspec.structs.replace(answer or _plain(click), token=uuid4())
        return await self._pending(click.tenant, click.name)

    async def _go_on(self, click: Click, step: Same | ClaimedCharge | Closing, heard: float) -> Paid | Click | None:
        """With what is at the provider already. None: look again."""
        match step:
            case Same():
                return await self._tell(click, step)
            case ClaimedCharge():
                return await self._ask_for(click, step, heard)
            case Closing():
                return await self._close(click, step, heard)

    async def _send(self, click: Click, begun: Begun, *, began: float, heard: float) -> Paid:
        answer, entry, is_recorded = await self._sent(click.tenant, begun, began=began, heard=heard)
        charge = begun.charge
        match entry:
            case Happened(payment_intent_id):
                secret = answer.client_secret if isinstance(answer, Done) else None
                return Paying(
                    order_id=click.name,
                    payment=_there(charge, payment_intent_id, shown("COMPLETED", awaits_customer=_awaits(answer))),
                    client_secret=secret,
                    is_repeat=False,
                )
            case Failed() if is_recorded:
                return _refused(click.name, charge, entry, answer)
        until = entry.until if isinstance(entry, Hold) else begun.now
        return _pending(click.name, charge.view, until, begun.now)

    async def _sent(self, tenant: Tenant, begun: Begun, *, began: float, heard: float) -> tuple[Answer, Entry, bool]:
        """Send an attempt that is committed, once, and record what came of it."""
        sent = await self._sender.send(
            Outgoing(
                attempt=begun.attempt,
                instruction=begun.instruction,
                history=begun.history,
                since=begun.order.created_at,
                now=begun.now,
                began=began,
                heard=heard,
            )
        )
        answer, stands = sent.answer, sent.stands
        # What was stored long ago is proof of what was made, and not how it stands.
        entry = after_answer(begun.history, answer, tries=begun.charge.tries, now=sent.at, patience=self._patience)
        is_recorded = await self._record(
            ChargeResult(
                tenant=tenant,
                order_id=begun.order.id,
                charge=begun.charge,
                entry=entry,
                response=answered(answer),
                answered=Answered(begun.attempt, answer),
                awaits_customer=isinstance(entry, Happened) and _awaits(stands),
                told=_told_now(begun, entry, stands) if stands is not answer else (),
                left_as=answer.left_as if isinstance(answer, Refused) and isinstance(entry, Failed) else "",
                refused=(
                    _refused(begun.order.name, begun.charge, entry, answer) if isinstance(entry, Failed) else None
                ),
            )
        )
        return stands, entry, is_recorded

    async def _close(self, click: Click, closing: Closing, heard: float) -> Paid | None:
        """Have the provider cancel what the attempt before left there. None: it has, and the next one may begin."""
        charge, now = closing.charge, now_after(closing.now, heard)
        answer = await self._sender.cancel(charge.provider, charge.payment_intent_id or "", now=now)
        if isinstance(after_cancel(answer), Release):
            await store.closed(self._database, click.tenant, charge)
            return None
        # Not known to be over, or paid after all: then its own news make the order PAID. Nothing begins beside it.
        view = msgspec.structs.replace(charge.view, status="PENDING", reason=_NOT_ENDED)
        return PaymentPending(
            order_id=click.name, payment=view, retry_after_seconds=ceil(self._limits.retry_after_seconds)
        )

    async def _tell(self, click: Click, same: Same) -> Paid | None:
        """The same payment again, with its secret from the provider. None: look again."""
        charge = same.charge
        payment_intent_id = charge.payment_intent_id or ""
        answer = await self._fetch(charge.provider, payment_intent_id)
        status: PaymentStatus = charge.view.status
        match answer:
            case Done() if _has_failed_since(same, answer):
                # Lost to somebody who knew it too, or not stored: either way the log is asked again.
                await self._record(_failed_since(click, charge, answer))
                if same.recorded is None:
                    return None
                # Its key has this answer, and no other. What became of it, a new key hears, and the order shows.
                secret = answer.client_secret
            case Done():
                secret = answer.client_secret
                status = shown("COMPLETED", awaits_customer=_awaits(answer))
            case NotShown():
                secret = None
            case _ if same.recorded is not None:
                # Its key has one answer, whoever is away: without the secret, which is the provider's to show.
                secret = None
            case _:
                return PaymentPending(
                    order_id=click.name, payment=charge.view, retry_after_seconds=ceil(self._limits.retry_after_seconds)
                )
        view = same.recorded or _there(charge, payment_intent_id, status)
        if same.recorded is None and not await self._noted(click, view):
            return None
        return Paying(
            order_id=click.name,
            payment=view,
            client_secret=secret,
            is_repeat=True,
            is_replayed=same.recorded is not None,
        )

    async def _noted(self, click: Click, view: PaymentView) -> bool:
        """A key that came when the payment was there has what it is told now as its answer. False: it is not so."""
        if view.status not in ("AWAITING_CUSTOMER", "COMPLETED"):
            raise InvariantBroken(f"a payment that exists is told as {view.status}")
        noting = msgspec.structs.replace(_plain(click), token=uuid4(), told=view.status)
        return isinstance(await self._clicks.submit(noting, source=click.tenant.number), Noted)

    async def _ask_for(self, click: Click, claimed: ClaimedCharge, heard: float) -> Paid | Click | None:
        step, looked, absence = await self._asked(claimed, heard)
        if isinstance(step, Resend):
            return msgspec.structs.replace(
                click,
                under=claimed.charge.claim_number,
                tries=step.tries,
                response=looked_up(looked),
                absence=absence,
            )
        result = _found(claimed, step, looked)
        if await self._record(result) and not isinstance(step, Hold):
            return None
        until = step.until if isinstance(step, Hold) else claimed.now
        return _pending(click.name, claimed.charge.view, until, claimed.now)

    # --- what nobody finished

    async def _claim_due(self, most: int) -> tuple[list[ClaimedCharge], float]:
        # Whatever it raises: what was claimed all the same is due again later.
        async with self._database.stepping() as connection:
            if not await life.notice(connection):
                raise RestoredDatabase
            # One that does not answer would only be asked in vain, and what is claimed waits.
            answering = [name for name, one in self._providers.items() if one.breaker.away(steady()) <= 0]
            claimed = await store.claim_due(
                connection,
                providers=answering,
                most=most,
                lease=self._terms.lease,
            )
        return claimed, steady()

    async def _claim_asked(self, due_before: datetime | None) -> tuple[list[ClaimedCharge], float]:
        async with self._database.stepping() as connection:
            claimed = await store.claim_due(
                connection,
                providers=list(self._providers),
                most=self._limits.payment_chunk,
                lease=self._terms.lease,
                only_asked=True,
                due_before=due_before,
            )
        return claimed, steady()

    async def _only_asked(self, claimed: ClaimedCharge, heard: float, counts: Counter[str]) -> None:
        step, looked, absence = await self._decided(claimed, heard)
        counts["looked_up"] += looked is not None
        if isinstance(step, Resend):
            # Whoever clicks, or the collector, may send it, once all the others were asked.
            step = Hold(now_after(claimed.now, heard), step.tries)
            charge = msgspec.structs.replace(claimed.charge, ask_first=False)
            claimed = msgspec.structs.replace(claimed, charge=charge)
        result = _found(claimed, step, looked)
        if isinstance(step, Happened):
            result = msgspec.structs.replace(result, told=_told(claimed, step, looked))
        if await self._record(result) and not (isinstance(step, Hold) and result.charge.ask_first):
            counts["found" if absence is None else "absent"] += 1

    async def _collected(self, claimed: ClaimedCharge, heard: float, counts: Counter[str]) -> Entry:
        """One of them. What cannot be stored stays as it is, and is due again."""
        step, looked, absence = await self._decided(claimed, heard)
        if isinstance(step, Resend):
            return await self._resent(claimed, step, None if looked is None else looked_up(looked), absence, counts)
        result = _found(claimed, step, looked)
        if not await self._record(result):
            return Hold(claimed.now, claimed.charge.tries)
        if isinstance(step, Hold) and step.reason is not None:
            log.warning("payment_needs_a_person", order=claimed.order.name, reason=step.reason)
        return step

    async def _decided(
        self, claimed: ClaimedCharge, heard: float
    ) -> tuple[Resend | Entry, Looked | None, Absence | None]:
        """What a claimed charge comes to before anything is sent; what the books said of it, and their proof."""
        step: Settle | Hold | Ask | Resend
        adapter = self._providers[claimed.charge.provider]
        step = left_pending(
            claimed.order,
            claimed.charge,
            claimed.history,
            account=adapter.account,
            lookup=adapter.facts.lookup.get("charge", Lookup.NONE),
            now=now_after(claimed.now, heard),
            facts=adapter.facts,
            patience=self._patience,
        )
        match step:
            case Ask():
                return await self._asked(claimed, heard)
            case Settle(verdict):
                return verdict, None, None
            case _:
                return step, None, None

    async def _resent(
        self,
        claimed: ClaimedCharge,
        step: Resend,
        response: bytes | None,
        absence: Absence | None,
        counts: Counter[str],
    ) -> Entry:
        began = steady()
        click = Click(
            tenant=claimed.tenant,
            order_id=claimed.order.id,
            name=claimed.order.name,
            reservation_token=token_name(claimed.order.reservation_token),
            provider=claimed.charge.provider,
            payment_method=None,
            token=uuid4(),
            under=claimed.charge.claim_number,
            tries=step.tries,
            response=response,
            absence=absence,
        )
        begun: Clicked = await self._clicks.submit(click, source=click.tenant.number)
        if not isinstance(begun, Begun):
            # The order ended, somebody else is at it, or nothing may be sent now: looked at again with that in mind.
            return Hold(begun.until if isinstance(begun, Held) else claimed.now, step.tries)
        counts["sent"] += 1
        _, entry, is_recorded = await self._sent(claimed.tenant, begun, began=began, heard=steady())
        return entry if is_recorded else Hold(claimed.now, step.tries)

    # --- both

    async def _asked(self, claimed: ClaimedCharge, heard: float) -> tuple[Resend | Entry, Looked, Absence | None]:
        """Ask the provider's books; what that makes of it, what they say, and the proof where they do not show it."""
        adapter = self._providers[claimed.charge.provider]
        # Dated before the question: what the books did not show then may have come since.
        now = now_after(claimed.now, heard)
        history = claimed.history
        search = search_for(
            claimed.order,
            history,
            attempt=claimed.charge.attempt,
            provider=claimed.charge.provider,
            most_attempts=self._terms.most_attempts,
        )
        shown = await self._sender.ask(
            claimed.charge.provider, claimed.instruction, history, since=search.since, now=now, others=search.others
        )
        if shown.moved_as is not None:
            return Hold(now + REVIEW_PAUSE, claimed.charge.tries, MOVED_UNDER_ANOTHER_KEY), shown.looked, None
        step = after_look(
            claimed.order,
            claimed.charge,
            claimed.history,
            shown.looked,
            lookup=adapter.facts.lookup.get("charge", Lookup.NONE),
            now=now,
            facts=adapter.facts,
            patience=self._patience,
        )
        return step, shown.looked, shown.absence

    async def _fetch(self, provider: str, payment_intent_id: str) -> Fetched:
        adapter = self._providers.get(provider)
        if adapter is None:
            return Undecided(code="provider_not_configured", message="")
        # Whoever has an answer already is told it within the time that a caller waits.
        return await asking.fetch(adapter, "charge", payment_intent_id, seconds=self._limits.payment_wait_seconds / 2)

    async def _record(self, result: ChargeResult) -> bool:
        try:
            return await self._recorder.submit(result, source=result.tenant.number)
        except Exception:  # noqa: BLE001 - whatever it is: raising would tell the caller that nothing was sent
            # The money is where the answer says. The log stays PENDING, and the provider is asked about it.
            log.error("payment_not_recorded", key=result.charge.key.hex(), trace=traceback.format_exc())
            return False

    async def _pending(self, tenant: Tenant, order_id: str) -> PaymentPending:
        """For a caller who has waited long enough."""
        found = await store.order(self._database, tenant, order_id)
        return PaymentPending(
            order_id=order_id,
            payment=_NOT_YET if isinstance(found, Rejected) else found.payment or _NOT_YET,
            retry_after_seconds=ceil(self._limits.retry_after_seconds),
        )


_NOT_YET: Final = PaymentView(status="PENDING", payment_intent_id=None, attempts=0, reason=None)


def _plain(click: Click) -> Click:
    """A click that starts from the log again, under no claim."""
    return msgspec.structs.replace(click, under=None, tries=0, response=None, absence=None)


def _there(charge: LoggedCharge, payment_intent_id: str, status: PaymentStatus) -> PaymentView:
    return PaymentView(status=status, payment_intent_id=payment_intent_id, attempts=charge.attempt, reason=None)


def _awaits(answer: Answer) -> bool:
    return isinstance(answer, Done) and answer.movement.state == "waiting"


def _refused(name: str, charge: LoggedCharge, failed: Failed, answer: Answer) -> PaymentRefused:
    if isinstance(answer, Refused):
        return refusal_of(name, charge, failed.reason, answer.message)
    return refusal_of(name, charge, failed.reason)


def _found(claimed: ClaimedCharge, entry: Entry, looked: Looked | None) -> ChargeResult:
    """What the provider's books, or what was stored before, make of a charge that nobody finished."""
    state = claimed.history.done_state
    if isinstance(looked, Found) and len(looked.movements) == 1:
        state = looked.movements[0].state
    return ChargeResult(
        tenant=claimed.tenant,
        order_id=claimed.order.id,
        charge=claimed.charge,
        entry=entry,
        response=None if looked is None else looked_up(looked),
        awaits_customer=isinstance(entry, Happened) and state == "waiting",
        refused=refusal_of(claimed.order.name, claimed.charge, entry.reason) if isinstance(entry, Failed) else None,
    )


def _told(claimed: ClaimedCharge, entry: Happened, looked: Looked | None) -> tuple[ProviderWord, ...]:
    """What the saga hears of a charge whose money has come: its webhook may have gone to the life that was lost."""
    seen = looked.movements[0] if isinstance(looked, Found) else None
    if (claimed.history.done_state if seen is None else seen.state) != "moved":
        return ()
    charge = claimed.charge
    movement = seen or Movement(
        provider=charge.provider,
        purpose="charge",
        id=entry.transfer_id,
        amount_micros=claimed.order.amount_micros,
        currency=claimed.order.currency,
        state="moved",
        status="as_answered",
        reference=hex64(charge.key),
    )
    return _news_of(charge, claimed.order.name, movement)


def _told_now(begun: Begun, entry: Entry, answer: Answer) -> tuple[ProviderWord, ...]:
    """The same of one that was answered from memory."""
    if not isinstance(entry, Happened) or not isinstance(answer, Done) or answer.movement.state != "moved":
        return ()
    return _news_of(begun.charge, begun.order.name, answer.movement)


def _news_of(charge: LoggedCharge, order: str, movement: Movement) -> tuple[ProviderWord, ...]:
    # The same for every telling, so that it is heard once.
    name = f"{_FOUND}:{movement.id}"
    body = msgspec.json.encode({"what": _FOUND, "order": order, "movement": movement})
    event = Event(
        provider=movement.provider,
        type=_FOUND,
        dedup_key=name,
        change_key=name,
        object_id=movement.id,
        occurred_at=None,
        movement=movement,
        body=body,
    )
    return (ProviderWord(charge.provider, (event,)),)


def _has_failed_since(same: Same, answer: Done) -> bool:
    """Whether the provider gave up a payment that it had, of an order that may still be paid."""
    is_live = same.charge.status == "COMPLETED" and same.order.status == "PENDING"
    return is_live and answer.movement.state == "failed"


def _failed_since(click: Click, charge: LoggedCharge, answer: Done) -> ChargeResult:
    return ChargeResult(
        tenant=click.tenant,
        order_id=click.order_id,
        charge=charge,
        entry=Failed("failed_at_the_provider"),
        response=answered(answer),
    )


def _held(name: str, held: Held) -> PaymentPending:
    return _pending(name, _NOT_YET if held.charge is None else held.charge.view, held.until, held.now)


def _pending(name: str, view: PaymentView, until: datetime, now: datetime) -> PaymentPending:
    seconds = ceil((until - now).total_seconds())
    return PaymentPending(
        order_id=name,
        payment=view,
        retry_after_seconds=min(max(seconds, _SOONEST_SECONDS), _LATEST_SECONDS),
    )
