"""Payments: an order is charged once, however often its buyer clicks.

    click   lock the order, read log and attempts, decide; log row, intent and attempt  ── many clicks, one transaction
    send    one call to the provider, with a deadline                                   ── no transaction is open
    record  the answer with its evidence, and what it makes of the log                  ── many answers, one transaction

Clicks of one process on one order share one flight; those of others find the log. Nobody waits long: a flight goes on
after its callers were told that it is pending. The deciders are in `core.payment`.
"""

import asyncio
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from math import ceil
from typing import Final, Self
from uuid import uuid4

import msgspec
import structlog

from tallystick.core.idempotency import Tenant
from tallystick.core.order import order_id as id_of
from tallystick.core.order import order_unknown, token_name
from tallystick.core.outcome import Rejected
from tallystick.core.payment import (
    Ask,
    Entry,
    Hold,
    LoggedCharge,
    Paid,
    Paying,
    PaymentPending,
    PaymentView,
    Resend,
    Settle,
    after_answer,
    after_look,
    left_pending,
)
from tallystick.core.provider import (
    Answer,
    Charge,
    Done,
    Looked,
    Lookup,
    Refused,
    Sending,
    Undecided,
    Unknown,
)
from tallystick.core.settlement import Failed, Patience, Transferred
from tallystick.engine.group_commit import GroupCommit
from tallystick.errors import Busy, RestoredDatabase, TallystickError
from tallystick.flows import sending
from tallystick.flows.evidence import answered, looked_up, now_after
from tallystick.flows.sending import Sender
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.settings import LIMITS, Limits
from tallystick.store import payment as store
from tallystick.store import settling
from tallystick.store.database import Database
from tallystick.store.intent import Answered
from tallystick.store.order import Changed, OrderView, unannounced
from tallystick.store.payment import Begun, Books, Claimed, Click, Clicked, ClickWork, Held, RecordWork, Result, Same
from tallystick.store.payment import Settled as LookAgain

log = structlog.get_logger("tallystick.payment")

# A click may find an answer, then a failure, then begin anew: each of these is a step, and none comes twice.
_MOST_STEPS: Final = 6
# Asked for again sooner, nothing would be known; later, a buyer would have left.
_SOONEST_SECONDS: Final = 1
_LATEST_SECONDS: Final = 60
# An adapter whose provider shows no payments by their id says so with this code.
_NOT_SHOWN: Final = "no_lookup"


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a run over the charges that nobody finished did."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    waiting: int = 0
    sent: int = 0


_Flight = tuple[int, str, str]


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
        self._terms = store.Terms(
            books={name: _books(adapter) for name, adapter in providers.items()},
            patience=self._patience,
            lease=timedelta(seconds=limits.payment_lease_seconds),
            most_attempts=limits.payment_attempts,
            leave_seconds=limits.send_seconds,
        )
        self._clicks: GroupCommit[Click, Clicked] = GroupCommit(
            ClickWork(database, self._terms, changed), limits=limits, joining=True
        )
        self._recorder: GroupCommit[Result, bool] = GroupCommit(
            RecordWork(database, changed), limits=limits, joining=True
        )
        self._flights: dict[_Flight, asyncio.Task[Paid]] = {}
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
        self, tenant: Tenant, order_id: str, reservation_token: str, *, payment_method: str | None = None
    ) -> Paid:
        """Charge an order, once. Whoever calls again, from wherever, gets the same payment.

        A `payment_method` counts for an attempt that begins with this call. Raises like `Engine.submit`: then nothing
        was sent, and the same call again is safe.
        """
        uuid = id_of(order_id)
        if uuid is None:
            return order_unknown(order_id)
        name: _Flight = tenant.number, order_id, reservation_token
        flight = self._flights.get(name)
        if flight is None:
            if len(self._flights) >= self._limits.payment_flights:
                raise Busy(self._limits.retry_after_seconds)
            click = Click(
                tenant=tenant,
                order_id=uuid,
                name=order_id,
                reservation_token=reservation_token,
                provider=self._provider,
                payment_method=payment_method,
                token=uuid4(),
            )
            flight = asyncio.create_task(self._fly(click), name=f"pay {order_id}")
            self._flights[name] = flight
            flight.add_done_callback(lambda done: self._landed(name, done))
        # Not the flight itself: a caller who hangs up must not take the answer from the others, nor from the log.
        done, _ = await asyncio.wait([flight], timeout=self._limits.payment_wait_seconds)
        if done:
            return flight.result()
        return await self._pending(tenant, order_id)

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
                case Transferred():
                    counts["completed"] += 1
                case Failed():
                    counts["failed"] += 1
                case Hold():
                    counts["waiting"] += 1
        return Collected(**counts)

    # --- a click

    def _landed(self, name: _Flight, flight: "asyncio.Task[Paid]") -> None:
        self._flights.pop(name, None)
        if not flight.cancelled() and flight.exception() is not None:
            # Those who wait are told themselves; here, in case nobody does any more.
            log.warning("click_failed", order=name[1], reason=type(flight.exception()).__name__)

    async def _fly(self, click: Click) -> Paid:
        try:
            return await self._steps(click)
        except RestoredDatabase:
            return Rejected(
                "database_restored",
                "This database was restored, copied or promoted: what it does not know may have been charged.",
                "Run `tally recover`, then send the same request again. Nothing was sent.",
            )

    async def _steps(self, click: Click) -> Paid:
        for _ in range(_MOST_STEPS):
            began = steady()
            step: Clicked = await self._clicks.submit(click, source=click.tenant.number)
            heard = steady()
            answer: Paid | Click | None
            match step:
                case Rejected():
                    return step
                case Held():
                    return _held(click.name, step)
                case LookAgain():
                    answer = None
                case Begun():
                    answer = await self._send(click, step, began=began, heard=heard)
                case Same():
                    answer = await self._tell(click, step)
                case Claimed():
                    answer = await self._ask_for(click, step, heard)
            if answer is not None and not isinstance(answer, Click):
                return answer
            click = msgspec.structs.replace(answer or _plain(click), token=uuid4())
        return await self._pending(click.tenant, click.name)

    async def _send(self, click: Click, begun: Begun, *, began: float, heard: float) -> Paid:
        answer, entry, is_recorded = await self._sent(click.tenant, begun, began=began, heard=heard)
        charge = begun.charge
        match entry:
            case Transferred(payment_intent_id):
                secret = answer.client_secret if isinstance(answer, Done) else None
                return Paying(
                    order_id=click.name,
                    payment=_completed(charge, payment_intent_id),
                    client_secret=secret,
                    is_repeat=False,
                )
            case Failed(code) if is_recorded:
                words = answer.message if isinstance(answer, Refused) else "it has failed for good"
                return Rejected(
                    "payment_refused",
                    f"{charge.provider} refused attempt {charge.attempt} to pay {click.name}: {code}: {words}",
                    "Have the customer bring another way to pay, and send the request again while the order holds: "
                    "that is a new attempt.",
                )
        until = entry.until if isinstance(entry, Hold) else begun.now
        return _pending(click.name, charge.view, until, begun.now)

    async def _sent(self, tenant: Tenant, begun: Begun, *, began: float, heard: float) -> tuple[Answer, Entry, bool]:
        """Send an attempt that is committed, once, and record what came of it."""
        adapter = self._providers[begun.charge.provider]
        # Counted from before the commit: this clock's not-after is never later than the database's.
        leave = Sending(
            first_sent_at=begun.attempt.first_sent_at,
            not_after=begun.attempt.not_after,
            sendable_until=began + self._limits.send_seconds,
        )
        answer: Answer = await sending.call(adapter, begun.instruction, leave)
        self._sender.heard(begun.charge.provider, answer)
        entry = after_answer(
            begun.history, answer, tries=begun.charge.tries, now=now_after(begun.now, heard), patience=self._patience
        )
        is_recorded = await self._record(
            Result(
                tenant=tenant,
                order_id=begun.order.id,
                charge=begun.charge,
                entry=entry,
                response=answered(answer),
                answered=Answered(begun.attempt, answer),
            )
        )
        await self._sender.tell_breaker(begun.charge.provider)
        return answer, entry, is_recorded

    async def _tell(self, click: Click, same: Same) -> Paid | None:
        """The same payment again, with its secret from the provider. None: it has failed for good, look again."""
        charge = same.charge
        payment_intent_id = charge.payment_intent_id or ""
        answer = await self._fetch(self._providers[charge.provider], payment_intent_id)
        match answer:
            case Done() if answer.movement.state == "failed" and same.order.status == "PENDING":
                failed = Failed("failed_at_the_provider")
                result = Result(
                    tenant=click.tenant,
                    order_id=click.order_id,
                    charge=charge,
                    entry=failed,
                    response=answered(answer),
                )
                # Lost to somebody who knew it too, or not stored: either way the log is asked again.
                await self._record(result)
                return None
            case Done():
                secret = answer.client_secret
            case Unknown(code=code) if code == _NOT_SHOWN:
                secret = None
            case _:
                return PaymentPending(
                    order_id=click.name, payment=charge.view, retry_after_seconds=ceil(self._limits.retry_after_seconds)
                )
        return Paying(
            order_id=click.name,
            payment=_completed(charge, payment_intent_id),
            client_secret=secret,
            is_repeat=True,
        )

    async def _ask_for(self, click: Click, claimed: Claimed, heard: float) -> Paid | Click | None:
        step, response = await self._asked(claimed, heard)
        if isinstance(step, Resend):
            return msgspec.structs.replace(
                click, under=claimed.charge.claim_number, tries=step.tries, response=response
            )
        result = Result(
            tenant=click.tenant, order_id=click.order_id, charge=claimed.charge, entry=step, response=response
        )
        if await self._record(result) and not isinstance(step, Hold):
            return None
        until = step.until if isinstance(step, Hold) else claimed.now
        return _pending(click.name, claimed.charge.view, until, claimed.now)

    # --- what nobody finished

    async def _claim_due(self, most: int) -> tuple[list[Claimed], float]:
        # Whatever it raises: what was claimed all the same is due again later.
        async with self._database.stepping() as connection:
            if not await settling.is_here(connection):
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

    async def _collected(self, claimed: Claimed, heard: float, counts: Counter[str]) -> Entry:
        """One of them. What cannot be stored stays as it is, and is due again."""
        step: Settle | Hold | Ask | Resend | Entry
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
        response: bytes | None = None
        if isinstance(step, Ask):
            step, response = await self._asked(claimed, heard)
        if isinstance(step, Settle):
            step = step.verdict
        if isinstance(step, Resend):
            return await self._resent(claimed, step, response, counts)
        result = Result(
            tenant=claimed.tenant, order_id=claimed.order.id, charge=claimed.charge, entry=step, response=response
        )
        if not await self._record(result):
            return Hold(claimed.now, claimed.charge.tries)
        if isinstance(step, Hold) and step.reason is not None:
            log.warning("payment_needs_a_person", order=claimed.order.name, reason=step.reason)
        return step

    async def _resent(self, claimed: Claimed, step: Resend, response: bytes | None, counts: Counter[str]) -> Entry:
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
        )
        begun: Clicked = await self._clicks.submit(click, source=click.tenant.number)
        if not isinstance(begun, Begun):
            # The order ended meanwhile, or somebody else is at it: due again, and looked at with that in mind.
            return Hold(claimed.now, step.tries)
        counts["sent"] += 1
        _, entry, is_recorded = await self._sent(claimed.tenant, begun, began=began, heard=steady())
        return entry if is_recorded else Hold(claimed.now, step.tries)

    # --- both

    async def _asked(self, claimed: Claimed, heard: float) -> tuple[Resend | Entry, bytes]:
        """Ask the provider's books; what they make of it, and the evidence."""
        adapter = self._providers[claimed.charge.provider]
        # Dated before the question: what the books did not show then may have come since.
        now = now_after(claimed.now, heard)
        looked = await self._look_up(adapter, claimed.instruction, claimed.history.first_sent_at or now, now)
        step = after_look(
            claimed.order,
            claimed.charge,
            claimed.history,
            looked,
            lookup=adapter.facts.lookup.get("charge", Lookup.NONE),
            now=now,
            facts=adapter.facts,
            patience=self._patience,
        )
        return step, looked_up(looked)

    async def _look_up(self, adapter: Provider, charge: Charge, first_sent_at: datetime, now: datetime) -> Looked:
        try:
            return await adapter.look_up(charge, first_sent_at=first_sent_at, now=now)
        except TallystickError as error:
            return Undecided(code="lookup_failed", message=str(error))

    async def _fetch(self, adapter: Provider, payment_intent_id: str) -> Answer:
        try:
            return await adapter.fetch("charge", payment_intent_id)
        except TallystickError as error:
            return Unknown(code="fetch_failed", message=str(error))

    async def _record(self, result: Result) -> bool:
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


def _books(adapter: Provider) -> Books:
    return Books(
        account=adapter.account,
        facts=adapter.facts,
        lookup=adapter.facts.lookup.get("charge", Lookup.NONE),
        refusal=adapter.refusal,
    )


def _plain(click: Click) -> Click:
    """A click that starts from the log again, under no claim."""
    return msgspec.structs.replace(click, under=None, tries=0, response=None)


def _completed(charge: LoggedCharge, payment_intent_id: str) -> PaymentView:
    return PaymentView(status="COMPLETED", payment_intent_id=payment_intent_id, attempts=charge.attempt, reason=None)


def _held(name: str, held: Held) -> PaymentPending:
    return _pending(name, _NOT_YET if held.charge is None else held.charge.view, held.until, held.now)


def _pending(name: str, view: PaymentView, until: datetime, now: datetime) -> PaymentPending:
    seconds = ceil((until - now).total_seconds())
    return PaymentPending(
        order_id=name,
        payment=view,
        retry_after_seconds=min(max(seconds, _SOONEST_SECONDS), _LATEST_SECONDS),
    )
