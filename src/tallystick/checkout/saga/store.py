"""The saga on PostgreSQL: a batch of events decided and written in one transaction.

    find    which charges and refunds of ours the events tell of           ── no lock
    lock    their orders, in one order; then what is stored of each        ── so that nobody decides beside us
    decide  event by event (`checkout.saga.rules`), each with what the one before it did
    write   receipts, orders PAID in one statement, refunds begun, breaks, ledger, and the events' ends

Locks in one order everywhere: orders, stocks, the log, intents, attempts, accounts, events.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from tallystick import queries
from tallystick.checkout import break_store as payment_break
from tallystick.checkout.order.rules import order_name
from tallystick.checkout.payment.rules import Status as ChargeStatus
from tallystick.checkout.postings import PaymentItem, PaymentMoved
from tallystick.checkout.postings_store import post
from tallystick.checkout.refund import store as refund
from tallystick.checkout.refund.store import Begun, Debt, RefundResult, RefundTerms
from tallystick.checkout.saga import finding as saga_finding
from tallystick.checkout.saga import rules as saga
from tallystick.checkout.saga.finding import FoundCharge, FoundRefund, OrderName
from tallystick.checkout.saga.rules import (
    Break,
    Case,
    Complete,
    Decision,
    FailCharge,
    FailRefund,
    GiveBack,
    Ignore,
    LoggedRefund,
    Ours,
    Pay,
    Policy,
    Receipt,
    Review,
    ToldBefore,
)
from tallystick.database.literal import booleans, numbers, texts, uuids
from tallystick.database.pool import Connection
from tallystick.errors import InvariantBroken, require
from tallystick.ledger.claims import Tenant
from tallystick.movement import store as intents
from tallystick.movement.life import store as life
from tallystick.movement.steps import Failed, Happened
from tallystick.providers.words import Movement
from tallystick.webhooks import inbox
from tallystick.webhooks.inbox import ClaimedEvent
from tallystick.webhooks.rules import Compensated, End, EventOutcome, Ok, Postponed, Recorded

_SQL = queries.load(__package__, "store.sql")
_REFUND_SQL = queries.load("tallystick.checkout.refund", "store.sql")
# The same locks, without those that somebody holds.
_FREE: Final = {
    name: _SQL[name].replace("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED")
    for name in ("lock_orders", "lock_stocks")
}
_MOST_COUNTED: Final = 10_000
PENDING_REFUND: Final = "its refund is not completed: the financial sweeper has it"
HELD: Final = "its order, or the stock of its SKU, is locked by a transaction that does not end"


class ClaimsLost(Exception):
    """Nothing may be committed about these events under our claims."""

    def __init__(self, numbers: set[int]) -> None:
        """The rest may be done again without them."""
        super().__init__(f"{len(numbers)} events are another worker's")
        self.numbers = numbers


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What a transaction came to, once it is committed.

    `outcomes` by event; those that wait for a refund which was begun here are in `begun` instead, with it. `changed`
    are the orders that others should hear of. `unexplained`, by provider, are movements under a key of ours that
    nothing here is known to have made.
    """

    outcomes: Mapping[int, EventOutcome]
    begun: tuple[tuple[ClaimedEvent, Begun], ...]
    changed: tuple[tuple[Tenant, UUID], ...]
    unexplained: Mapping[str, Sequence[Movement]]


async def settle(
    connection: Connection,
    events: Sequence[ClaimedEvent],
    terms: RefundTerms,
    *,
    look_again_seconds: float,
    postpone_held_seconds: float | None = None,
) -> Settled:
    """Decide and write a batch, inside the caller's transaction. Raises ClaimsLost, RestoredDatabase, LedgerRefused.

    `postpone_held_seconds`: wait for no lock of an order or a stock, and postpone the events of those that are held.
    """
    told = [(event, event.movement) for event in events if event.movement is not None]
    charges = [pair for pair in told if pair[1].purpose == "charge"]
    refunds = [pair for pair in told if pair[1].purpose == "refund"]
    batch = _Batch(connection, terms, look_again_seconds, postpone_held_seconds)
    for event in events:
        if event.movement is None:
            batch.outcomes[event.number] = Ok()
    found_charges = await saga_finding.charges(connection, charges)
    found_refunds, given_back = await saga_finding.refunds(connection, refunds)
    # All locks of orders in one go, and in one order.
    places = {number: charge.place for number, charge in found_charges.items()}
    places |= {number: one.place for number, one in found_refunds.items()}
    await batch.lock(set(places.values()))
    batch.postpone_held(places)
    await batch.refunds(batch.undecided(refunds), found_refunds, given_back)
    await batch.charges(batch.undecided(charges), found_charges)
    return await batch.write(events)


class _Batch:
    """One transaction for many events."""

    def __init__(
        self, connection: Connection, terms: RefundTerms, look_again_seconds: float, postpone_held_seconds: float | None
    ) -> None:
        self._connection = connection
        self._terms = terms
        self._look_again = look_again_seconds
        self._postpone_held = postpone_held_seconds
        self._locking = _SQL if postpone_held_seconds is None else _FREE
        self.outcomes: dict[int, EventOutcome] = {}
        self._paid: list[tuple[FoundCharge, ClaimedEvent, Movement, bool]] = []
        self._held: list[tuple[FoundCharge, ClaimedEvent, Movement, GiveBack | Review]] = []
        self._learned: dict[tuple[int, bytes], Movement] = {}
        self._failed: dict[tuple[int, bytes], str] = {}
        self._breaks: list[tuple[str, ClaimedEvent, Movement, OrderName | None]] = []
        # The last of each: what came and failed in one batch has failed, and its money never left `owed`.
        self._results: dict[tuple[int, bytes], RefundResult] = {}
        self._touched: dict[OrderName, Tenant] = {}
        self._counts: Counter[str] = Counter()
        self._cases: dict[OrderName, Case] = {}
        self._skus: dict[OrderName, tuple[int, str]] = {}
        self._stocks: dict[tuple[int, str], int] = {}
        self._given_back: set[tuple[OrderName, str]] = set()
        self._is_here: bool | None = None
        self._unexplained: dict[str, list[Movement]] = {}

    # --- charges

    async def charges(self, told: Sequence[tuple[ClaimedEvent, Movement]], found: Mapping[int, FoundCharge]) -> None:
        """Decide what is told of payments."""
        current = await self._again(found)
        for event, movement in sorted(told, key=lambda pair: pair[0].number):
            charge = current.get(event.number)
            ours = None if charge is None else self._ours(charge)
            case = None if charge is None else self._case(charge)
            decision = saga.decide(movement, ours, case)
            if isinstance(decision, GiveBack):
                reason = await self._not_now(event.provider)
                if reason is not None:
                    # No fault of the event's, and of no concern to those that are to be PAID beside it.
                    self.outcomes[event.number] = Postponed(reason, self._look_again)
                    continue
            self._take(event, movement, charge, ours, decision)
            if charge is not None and case is not None:
                later = saga.after(case, movement, decision, event_number=event.number)
                self._cases[charge.place] = later
                if later.available is not None:
                    self._stocks[self._skus[charge.place]] = later.available

        await self._spare_the_disputed()

    async def _not_now(self, provider: str) -> str | None:
        """Why nothing can be given back from here at this time: nothing is begun then."""
        if provider not in self._terms.providers:
            return f"no provider {provider} is configured to give it back"
        if self._is_here is None:
            self._is_here = await life.notice(self._connection)
        return None if self._is_here else "this database was restored: run `tally recover`"

    async def _spare_the_disputed(self) -> None:
        """What the customer's bank has taken back is not given back beside that: whichever was told first."""
        owed = [(event.provider, movement.id) for _, event, movement, held in self._held if isinstance(held, GiveBack)]
        if not owed:
            return
        rows = await self._connection.fetch(_SQL["disputed"], [name for name, _ in owed], [id_ for _, id_ in owed])
        disputed = {(row["provider"], row["object_id"]) for row in rows} | {
            (event.provider, movement.id) for kind, event, movement, _ in self._breaks if kind == "disputed"
        }
        for place, (charge, event, movement, held) in enumerate(self._held):
            if isinstance(held, GiveBack) and (event.provider, movement.id) in disputed:
                self._held[place] = (charge, event, movement, saga.if_disputed(held))
                self.outcomes[event.number] = Ok()

    def _ours(self, charge: FoundCharge) -> Ours:
        """The charge, with what this batch has done to it."""
        name = charge.tenant.number, charge.key
        if name in self._learned:
            return Ours(status="COMPLETED", payment_intent_id=self._learned[name].id)
        status: ChargeStatus = "FAILED" if name in self._failed else charge.status
        return Ours(status=status, payment_intent_id=charge.payment_intent_id)

    def _case(self, charge: FoundCharge) -> Case:
        """The order, with what this batch has done to it and to its stock."""
        case = self._cases[charge.place]
        if case.available is None:
            return case
        return msgspec.structs.replace(case, available=self._stocks[self._skus[charge.place]])

    async def lock(self, wanted: set[OrderName]) -> None:
        """Lock the orders, in one order; then read what is stored of each."""
        places = sorted(wanted, key=_in_order)
        if not places:
            return
        columns = numbers([tenant for tenant, _ in places]), uuids([id_ for _, id_ in places])
        rows = await self._connection.fetch(self._locking["lock_orders"], *columns)
        receipts: dict[OrderName, list[Receipt]] = {}
        for row in await self._connection.fetch(_SQL["receipts"], *columns):
            receipts.setdefault((row["tenant_id"], row["order_id"]), []).append(
                Receipt(
                    payment_intent_id=row["payment_intent_id"],
                    fate=row["fate"],
                    event_number=row["event_number"],
                    refund=row["refund"],
                )
            )
        late = {
            (row["tenant_id"], row["sku"])
            for row in rows
            if row["status"] == "CANCELLED_BY_SWEEPER" and row["late"] == "backorder"
        }
        if late or self._postpone_held is not None:
            # Those of orders that will be PAID as well: the trigger would take them later, out of order.
            stocks = sorted({*late, *((row["tenant_id"], row["sku"]) for row in rows if row["status"] == "PENDING")})
            locked = await self._connection.fetch(
                self._locking["lock_stocks"], [tenant for tenant, _ in stocks], [sku for _, sku in stocks]
            )
            self._stocks = {(row["tenant_id"], row["sku"]): row["available"] for row in locked}
            held = {*stocks} - self._stocks.keys()
            rows = [row for row in rows if (row["tenant_id"], row["sku"]) not in held]
        for row in rows:
            place = row["tenant_id"], row["id"]
            self._skus[place] = row["tenant_id"], row["sku"]
            self._cases[place] = Case(
                status=row["status"],
                quantity=row["quantity"],
                amount_micros=row["amount_micros"],
                currency=row["currency"],
                policy=saga.STRICT
                if row["late"] is None
                else Policy(late=row["late"], other_amount=row["other_amount"]),
                receipts=tuple(receipts.get(place, ())),
                # Of a SKU that was not locked, what is free can change: nobody may ask for it.
                available=self._stocks.get((row["tenant_id"], row["sku"])),
            )

    def postpone_held(self, places: Mapping[int, OrderName]) -> None:
        """Events whose order could not be locked: whoever holds it must not keep the others from being PAID."""
        if self._postpone_held is not None:
            held = [number for number, place in places.items() if place not in self._cases]
            self.outcomes |= dict.fromkeys(held, Postponed(HELD, self._postpone_held))

    def undecided(self, told: Sequence[tuple[ClaimedEvent, Movement]]) -> list[tuple[ClaimedEvent, Movement]]:
        """Without those that are postponed."""
        return [pair for pair in told if pair[0].number not in self.outcomes]

    async def _again(self, found: Mapping[int, FoundCharge]) -> dict[int, FoundCharge]:
        """The charges as they stand under the orders' locks."""
        names = sorted({(charge.tenant.number, charge.key) for charge in found.values()})
        if not names:
            return {}
        rows = await self._connection.fetch(
            _SQL["charges_again"], numbers([tenant for tenant, _ in names]), [key for _, key in names]
        )
        now = {(tenant, key): (status, id_) for tenant, key, status, id_ in rows}
        current = {}
        for number, charge in found.items():
            status, id_ = now[charge.tenant.number, charge.key]
            is_same = charge.status == status and charge.payment_intent_id == id_
            current[number] = (
                charge if is_same else msgspec.structs.replace(charge, status=status, payment_intent_id=id_)
            )
        return current

    def _take(
        self, event: ClaimedEvent, movement: Movement, charge: FoundCharge | None, ours: Ours | None, decision: Decision
    ) -> None:
        """Note what a decision asks for, and what becomes of the event."""
        outcome: EventOutcome = Ok()
        self._note_unexplained(event, movement, ours)
        if charge is not None and ours is not None and ours.status == "PENDING" and movement.state != "failed":
            self._learned[charge.tenant.number, charge.key] = movement
            self._touch(charge)
        match decision:
            case Ignore():
                self._counts["payment.ignored"] += 1
            case ToldBefore(receipt):
                self._counts["payment.told_again"] += receipt.event_number != event.number
                outcome = self._told(event, charge, receipt)
            case Break(kind):
                self._counts[f"payment.{kind}"] += 1
                self._breaks.append((kind, event, movement, None if charge is None else charge.place))
            case Pay() | GiveBack() | Review() | FailCharge():
                if charge is None:
                    raise InvariantBroken("money of nobody's charge was decided about")
                self._touch(charge)
                self._decided(event, movement, charge, decision)
        # What waits for its refund has its end with that.
        if not isinstance(decision, GiveBack):
            self.outcomes[event.number] = outcome

    def _note_unexplained(self, event: ClaimedEvent, movement: Movement, ours: Ours | LoggedRefund | None) -> None:
        """Perhaps nothing was sent for it from here: a row that waits does not explain it."""
        if movement.reference and (ours is None or ours.status == "PENDING"):
            self._unexplained.setdefault(event.provider, []).append(movement)

    def _decided(
        self,
        event: ClaimedEvent,
        movement: Movement,
        charge: FoundCharge,
        decision: Pay | GiveBack | Review | FailCharge,
    ) -> None:
        match decision:
            case Pay(is_backordered=is_backordered):
                self._counts["payment.backordered" if is_backordered else "payment.paid"] += 1
                self._paid.append((charge, event, movement, is_backordered))
            case GiveBack(reason) | Review(reason):
                self._counts[f"payment.{reason}"] += 1
                self._held.append((charge, event, movement, decision))
            case FailCharge(reason):
                self._counts["payment.failed"] += 1
                self._failed[charge.tenant.number, charge.key] = reason

    def _told(self, event: ClaimedEvent, charge: FoundCharge | None, receipt: Receipt) -> EventOutcome:
        if charge is None or receipt.fate != "REFUND" or receipt.event_number != event.number:
            return Ok()
        if receipt.refund == "COMPLETED" or (charge.place, receipt.payment_intent_id) in self._given_back:
            return Compensated()
        return Postponed(PENDING_REFUND, self._look_again)

    def _touch(self, charge: FoundCharge) -> None:
        self._touched[charge.place] = charge.tenant

    # --- refunds

    async def refunds(
        self,
        told: Sequence[tuple[ClaimedEvent, Movement]],
        found: Mapping[int, FoundRefund],
        ours: Mapping[int, OrderName],
    ) -> None:
        """Decide what is told of refunds. `ours`: the order whose payment the refund gives back."""
        if not told:
            return
        names = sorted({(one.key, one.tenant.number) for one in found.values()})
        rows = await self._connection.fetch(
            _REFUND_SQL["lock"], [tenant for _, tenant in names], [key for key, _ in names]
        )
        logged = {
            (row["tenant_id"], row["idempotency_key"]): LoggedRefund(status=row["status"], refund_id=row["refund_id"])
            for row in rows
        }
        payments = {(row["tenant_id"], row["idempotency_key"]): row["payment_intent_id"] for row in rows}
        for event, movement in sorted(told, key=lambda pair: pair[0].number):
            one = found.get(event.number)
            name = None if one is None else (one.tenant.number, one.key)
            decision = saga.decide_refund(
                movement, None if name is None else logged.get(name), is_payment_ours=event.number in ours
            )
            self.outcomes[event.number] = Ok()
            self._note_unexplained(event, movement, None if name is None else logged.get(name))
            match decision:
                case Ignore():
                    self._counts["refund.told_again"] += 1
                case Break(kind):
                    self._counts[f"refund.{kind}"] += 1
                    self._breaks.append((kind, event, movement, ours.get(event.number)))
                case Complete() | FailRefund():
                    if one is None or name is None:
                        raise InvariantBroken("a refund of nobody's was decided about")
                    is_done = isinstance(decision, Complete)
                    self._counts["refund.completed" if is_done else "refund.failed"] += 1
                    entry = Happened(movement.id) if isinstance(decision, Complete) else Failed(decision.reason)
                    self._results[name] = RefundResult(
                        tenant=one.tenant,
                        key=one.key,
                        claim_number=None,
                        entry=entry,
                        response=_said(event, movement),
                        failed_as=None if is_done else movement.id,
                    )
                    logged[name] = LoggedRefund(status="COMPLETED" if is_done else "FAILED", refund_id=movement.id)
                    if is_done:
                        self._given_back.add((one.place, payments[name]))
                    else:
                        self._given_back.discard((one.place, payments[name]))
                    self._touched[one.place] = one.tenant

    # --- both

    async def write(self, events: Sequence[ClaimedEvent]) -> Settled:
        """All of it, and the events' ends with it."""
        await self._write_log()
        await self._receive()
        begun = await self._begin()
        if self._breaks:
            await self._connection.execute(payment_break.ADD, *_break_columns(self._breaks))
        if self._counts:
            names = sorted(self._counts)
            await self._connection.execute(_SQL["count"], names, [self._counts[name] for name in names])
        await self._record()
        await post(
            self._connection,
            [
                *(_moved(charge, movement, "paid") for charge, _, movement, _ in self._paid),
                *(_moved(charge, movement, "held") for charge, _, movement, _ in self._held),
            ],
        )
        await self._finish(events)
        return Settled(
            outcomes=self.outcomes,
            begun=begun,
            changed=tuple((tenant, id_) for (_, id_), tenant in self._touched.items()),
            unexplained=self._unexplained,
        )

    async def _write_log(self) -> None:
        if self._learned:
            names = sorted(self._learned, key=lambda name: (name[1], name[0]))
            await self._connection.execute(
                _SQL["learn"],
                [tenant for tenant, _ in names],
                [key for _, key in names],
                [intents.storable(self._learned[name].id) for name in names],
                [self._learned[name].state == "waiting" for name in names],
            )
        if self._failed:
            names = sorted(self._failed, key=lambda name: (name[1], name[0]))
            reasons = [self._failed[name] for name in names]
            await self._connection.execute(
                _SQL["fail_charges"], [tenant for tenant, _ in names], [key for _, key in names], reasons
            )

    async def _receive(self) -> None:
        taken = [
            *((charge, event, movement, "PAID", None) for charge, event, movement, _ in self._paid),
            *(
                (charge, event, movement, "REFUND" if isinstance(held, GiveBack) else "REVIEW", held.reason)
                for charge, event, movement, held in self._held
            ),
        ]
        if not taken:
            return
        taken.sort(key=lambda one: (one[2].id, one[1].provider))
        await self._connection.execute(
            _SQL["receive"],
            numbers([one[0].tenant.number for one in taken]),
            uuids([one[0].order_id for one in taken]),
            texts([one[1].provider for one in taken]),
            texts([one[2].id for one in taken]),
            [one[0].key for one in taken],
            numbers([one[2].amount_micros for one in taken]),
            texts([one[2].currency for one in taken]),
            texts([one[3] for one in taken]),
            texts([one[4] for one in taken]),
            numbers([one[1].number for one in taken]),
            [one[1].received_at for one in taken],
        )
        if not self._paid:
            return
        paid = sorted(self._paid, key=lambda one: _in_order(one[0].place))
        moved = await self._connection.fetch(
            _SQL["pay"],
            numbers([one[0].tenant.number for one in paid]),
            uuids([one[0].order_id for one in paid]),
            booleans([one[3] for one in paid]),
        )
        require(len(moved) == len(paid), "an order that was locked as payable could not be paid")

    async def _begin(self) -> tuple[tuple[ClaimedEvent, Begun], ...]:
        owed = {
            (charge.tenant.number, event.provider, movement.id): (
                event,
                Debt(
                    tenant=charge.tenant,
                    order_id=charge.order_id,
                    provider=event.provider,
                    payment_intent_id=movement.id,
                    amount_micros=movement.amount_micros,
                    currency=movement.currency,
                    reason=held.reason,
                    # With the news of the payment: a life of this database that was lost may have given it back then.
                    since=event.received_at,
                ),
            )
            for charge, event, movement, held in self._held
            if isinstance(held, GiveBack)
        }
        begun = await refund.begin(self._connection, [debt for _, debt in owed.values()], self._terms)
        sent = tuple((owed[one.tenant.number, one.owed.provider, one.owed.payment_intent_id][0], one) for one in begun)
        for number in {event.number for event, _ in owed.values()} - {event.number for event, _ in sent}:
            # The sweeper asks the provider's books first, and ends the event with the refund.
            self.outcomes[number] = Postponed(PENDING_REFUND, self._look_again)
        return sent

    async def _record(self) -> None:
        if not self._results:
            return
        recorded = await refund.record(self._connection, list(self._results.values()))
        require(all(recorded), "a refund that was locked could not be recorded")

    async def _finish(self, events: Sequence[ClaimedEvent]) -> None:
        """Those that are done, in this very commit; and all of them must still be ours."""
        ended = []
        for event in events:
            outcome = self.outcomes.get(event.number)
            if isinstance(outcome, Ok | Compensated):
                end = End("PROCESSED_OK" if isinstance(outcome, Ok) else "PROCESSED_COMPENSATED", event.tries)
                ended.append((event, end))
        mine = await inbox.finish(self._connection, ended) if ended else set()
        held = [event for event in events if not isinstance(self.outcomes.get(event.number), Ok | Compensated)]
        kept = await inbox.hold(self._connection, held) if held else set()
        lost = {event.number for event in events} - mine - kept
        if lost:
            raise ClaimsLost(lost)
        for event, _ in ended:
            self.outcomes[event.number] = Recorded()


def _in_order(place: OrderName) -> tuple[int, bytes]:
    """As the ids sort themselves, and several times faster."""
    return place[0], place[1].bytes


def _moved(charge: FoundCharge, movement: Movement, move: str) -> PaymentMoved:
    item = PaymentItem(order_name(charge.order_id.bytes), movement.id, movement.amount_micros)
    return PaymentMoved(charge.tenant, move, movement.provider, movement.currency, item)  # type: ignore[arg-type]


def _break_columns(breaks_: Sequence[tuple[str, ClaimedEvent, Movement, OrderName | None]]) -> tuple[list[object], ...]:
    return (
        [kind for kind, *_ in breaks_],
        [event.provider for _, event, _, _ in breaks_],
        [movement.purpose for _, _, movement, _ in breaks_],
        [movement.id for _, _, movement, _ in breaks_],
        [_word(movement) for _, _, movement, _ in breaks_],
        [movement.amount_micros for _, _, movement, _ in breaks_],
        [movement.currency for _, _, movement, _ in breaks_],
        [None if place is None else place[0] for *_, place in breaks_],
        [None if place is None else place[1] for *_, place in breaks_],
        [event.number for _, event, _, _ in breaks_],
    )


def _word(movement: Movement) -> str:
    """What tells one break of an object from another. A payment is disputed by things with ids of their own."""
    is_taken = movement.purpose == "charge" and movement.parent
    return f"{movement.status} {movement.parent}" if is_taken else movement.status


def _said(event: ClaimedEvent, movement: Movement) -> bytes:
    return msgspec.json.encode(
        {"what": "told", "event": event.event_id, "type": event.type, "refund": movement.id, "status": movement.status}
    )
