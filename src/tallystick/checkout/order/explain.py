"""Explain an order: reserved under which key, until when, how it was charged, and how it ended."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import asyncpg
import msgspec
from asyncpg.pgproto.pgproto import UUID

from tallystick import queries
from tallystick.checkout.order import store as order
from tallystick.checkout.order.rules import Status, order_id, order_name
from tallystick.checkout.order.store import OrderView
from tallystick.checkout.payment import store as payment
from tallystick.checkout.payment.store import ChargeRow
from tallystick.checkout.refund import store as refund
from tallystick.checkout.refund.store import ReceiptRow, RefundRow
from tallystick.database.explain.explanation import ExplainedStep, Explanation, approval_steps, attempt_steps, waiting
from tallystick.database.pool import Database
from tallystick.keys.derived import operation_id
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.money.amounts import format_amount
from tallystick.movement import store as intent
from tallystick.movement.evidence import Evidence

_SQL = queries.load(__package__, "explain.sql")

_WHERE: Final[dict[Status, str]] = {
    "PENDING": "the stock is held for its buyer, who has not paid",
    "PAID": "the stock is sold",
    "CANCELLED": "somebody gave it up, and the stock is for sale again",
    "CANCELLED_BY_SWEEPER": "nobody paid in time, and the stock is for sale again",
}


async def explain_order(database: Database, tenant: Tenant, name: str) -> Explanation | None:
    """The order of that id, reserved or paid under that key, or with that payment of the provider's."""
    id_ = order_id(name)
    if id_ is None and not name.isascii():
        return None
    found = await order.read(database, tenant, name if id_ else order_name(operation_id(tenant.name, name)))
    if isinstance(found, Rejected):
        paid = (
            None if id_ else await payment.order_of(database, tenant, name) or await _paid_under(database, tenant, name)
        )
        found = found if paid is None else await order.read(database, tenant, order_name(paid.bytes))
    if isinstance(found, Rejected):
        return None
    async with database.reading(tenant.number) as connection:
        ((key, now),) = await connection.fetch(_SQL["order_key"], tenant.number, UUID(found.id.removeprefix("or_")))
        clicks = await connection.fetch(_SQL["payment_keys"], tenant.number, UUID(found.id.removeprefix("or_")))
        approvals = await connection.fetch(_SQL["order_approvals"], tenant.number, found.id)
    charges = await payment.read(database, tenant, UUID(found.id.removeprefix("or_")))
    steps = [*_steps(found, key), *(_click_step(click) for click in clicks)]
    for charge in charges:
        steps += _charge_steps(charge)
        for asked in await intent.read(database, tenant, charge.key):
            steps += attempt_steps(asked)
    receipts = await refund.receipts(database, tenant, UUID(found.id.removeprefix("or_")))
    refunds = await refund.read(database, tenant, UUID(found.id.removeprefix("or_")))
    for receipt in receipts:
        steps += _receipt_steps(receipt)
    for given in refunds:
        steps += _refund_steps(given)
        for asked in await intent.read(database, tenant, given.key):
            steps += attempt_steps(asked)
    steps += [step for approval in approvals for step in approval_steps(approval)]
    steps.sort(key=lambda step: step.at)
    summary = _summary(found, now) + _charged(charges) + _given_back(refunds) + _for_a_person(refunds)
    summary += waiting(approvals)
    return Explanation("order", found.id, summary, tuple(steps))


async def _paid_under(database: Database, tenant: Tenant, key: str) -> UUID | None:
    """The order that a caller's key of a payment was used for."""
    async with database.reading(tenant.number) as connection:
        found: UUID | None = await connection.fetchval(_SQL["order_of_payment_key"], tenant.number, key)
    return found


def _click_step(click: asyncpg.Record) -> ExplainedStep:
    told = "" if click["told"] is None else f", which was {click['told']}"
    return ExplainedStep(
        click["created_at"], f"key {click['key']!r} of a payment is bound to attempt {click['attempt']}{told}"
    )


def _given_back(refunds: list[RefundRow]) -> str:
    if not refunds:
        return ""
    last = refunds[-1]
    amount = format_amount(last.view.amount_micros, last.view.currency)
    text = f"; the refund of {amount} ({last.why}) is {last.view.status}"
    if last.view.status == "COMPLETED" and last.view.completed_at is not None:
        took = (last.view.completed_at - last.received_at).total_seconds()
        since = "the payment was told of" if last.asked_under is None else "it was asked for"
        return f"{text}, {took:,.1f} s after {since}"
    return text + (f": {last.view.reason}" if last.view.reason != last.why else "")


def _for_a_person(refunds: list[RefundRow]) -> str:
    """Which of them only a person can go on with."""
    text = ""
    for one in refunds:
        if one.view.waits_for_person is not None:
            which = "the refund" if one.asked_under is None else f"the part asked for under {one.asked_under!r}"
            text += f"; {which} waits for a person: {one.view.waits_for_person} (POST /v1/orders/{{id}}/refund/decide)"
    return text


def _receipt_steps(receipt: ReceiptRow) -> Iterator[ExplainedStep]:
    amount = format_amount(receipt.amount_micros, receipt.currency)
    yield ExplainedStep(
        receipt.received_at,
        f"{receipt.provider} told in event {receipt.event_number} that it took {amount} as {receipt.payment_intent_id}",
    )
    meant = {
        "PAID": "it pays the order: taken -> sales",
        "REFUND": f"it is given back ({receipt.reason}): taken -> owed",
        "REVIEW": f"a person must decide ({receipt.reason}): taken -> owed",
        "KEPT": f"a person let it stay ({receipt.reason}): owed -> sales",
    }
    yield ExplainedStep(receipt.recorded_at, meant[receipt.fate])


def _refund_steps(given: RefundRow) -> Iterator[ExplainedStep]:
    amount = format_amount(given.view.amount_micros, given.view.currency)
    if given.asked_under is None:
        asked = f"generation {given.generation}"
    else:
        stock = ", and its pieces are for sale again" if given.restock else ""
        asked = f"asked for under key {given.asked_under!r} ({given.why}): sales -> owed{stock}"
    yield ExplainedStep(
        given.view.created_at, f"refund of {amount} at {given.provider}, {asked}, logged under {given.key.hex()}"
    )
    if given.view.completed_at is None:
        yield ExplainedStep(
            given.due_at, f"the financial sweeper asks about it, or sends it, from here on; tries: {given.tries}"
        )
        return
    what = " ".join(filter(None, (given.view.status, given.view.refund_id)))
    yield ExplainedStep(given.view.completed_at, f"refund {what}, journaled as refund.{given.view.status.lower()}")
    if given.response is not None:
        said = msgspec.json.decode(given.response, type=Evidence)
        yield ExplainedStep(
            given.view.completed_at, f"what decided it: {said.what} {said.found} {said.detail}".rstrip()
        )


def _charged(charges: list[ChargeRow]) -> str:
    if not charges:
        return ""
    last = charges[-1]
    text = f"; attempt {last.attempt} to charge it at {last.provider} is {last.status}"
    return text + "".join(f" ({part})" for part in (last.payment_intent_id, last.reason) if part)


def _charge_steps(charge: ChargeRow) -> Iterator[ExplainedStep]:
    amount = format_amount(charge.amount_micros, charge.currency)
    yield ExplainedStep(
        charge.created_at,
        f"charge of {amount} at {charge.provider}, attempt {charge.attempt}, logged under {charge.key.hex()}",
    )
    if charge.completed_at is None:
        yield ExplainedStep(charge.due_at, f"attempt {charge.attempt} is asked about, or sent again, from here on")
    else:
        what = " ".join(filter(None, (charge.status, charge.payment_intent_id, charge.reason)))
        yield ExplainedStep(charge.completed_at, f"charge {what}, journaled as charge.{charge.status.lower()}")
    if charge.response is not None:
        kept = msgspec.json.decode(charge.response, type=Evidence)
        at = charge.completed_at or charge.due_at
        yield ExplainedStep(at, f"the provider last: {kept.what} {kept.found} {kept.detail}".rstrip())


def _summary(view: OrderView, now: datetime) -> str:
    text = (
        f"{view.status}: {view.quantity} of {view.sku} for {format_amount(view.amount_micros, view.currency)}; "
        f"{_WHERE[view.status]}"
    )
    if view.status == "PENDING" and view.expires_at <= now:
        text += "; its time is over, and the sweeper gives it back after the grace"
    return text


def _steps(view: OrderView, key: str) -> list[ExplainedStep]:
    steps = [
        ExplainedStep(view.created_at, f"reserved under key {key!r}, with token {view.reservation_token}"),
        ExplainedStep(view.expires_at, "its time ends; unpaid after the grace, it is swept"),
    ]
    if view.status != "PENDING":
        steps.append(ExplainedStep(view.changed_at, f"{view.status}, journaled as order.{view.status.lower()}"))
    return steps
