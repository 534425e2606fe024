"""Checkout as a whole, for the tests: the service as it runs in production, and both halves of its money compared.

till     everything that `tally up` has, on a real database against a real simulator, without its loops
deliver  a webhook, signed, through the receiver itself
compare  the provider's own books against ours, payment by payment
"""

import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg
import httpx2

from tallystick import app
from tallystick.access.store import ensure_tenant
from tallystick.ledger.claims import Tenant
from tallystick.settings import LIMITS, Limits, Settings
from tallystick.webhooks.flow import Backfill
from tallystick.webhooks.receiver import PREFIX, WebhookReceiver
from tests.deliveries import TRUSTED, headers
from tests.payments import age
from tests.providers.worlds import Control
from tests.settlements import superuser

NAME = "simulator"
CARD = "pm_card_visa"
# Of minor units: every currency here has two decimals.
_CENT_MICROS = 10_000


@dataclass(frozen=True)
class Till:
    """One process's worth of the service, as one tenant."""

    dsn: str
    control: Control
    service: app.Service
    tenant: Tenant
    receiver: WebhookReceiver

    async def deliver(self, event: dict[str, Any]) -> int:
        """One of the provider's events, through the receiver; the status it is answered with."""
        return await deliver(self.receiver, json.dumps(event["body"]).encode())

    async def backfill(self) -> int:
        return await Backfill(self.service.database, NAME, self.service.providers[NAME]).run_once()

    def told(self, *objects: str) -> list[dict[str, Any]]:
        """What the provider has to tell of these objects, or of all; the oldest first."""
        found = self.control.call("GET", "events?dialect=stripe&limit=10000")
        return [event for event in reversed(found) if not objects or event["object_id"] in objects]

    async def halves(self) -> "Halves":
        entries = [*self.control.made("stripe", "payment_intent"), *self.control.made("stripe", "refund")]
        return await compare(self.dsn, entries)


@asynccontextmanager
async def till(
    dsn: str, control: Control, *, ttl_seconds: float = 600.0, limits: Limits = LIMITS, migrating: bool = True
) -> AsyncIterator[Till]:
    """Open for business. A reservation has no grace here: when its time is over it may be swept."""
    settings = Settings(
        database_url=dsn,
        reservation_ttl_seconds=ttl_seconds,
        reservation_grace_seconds=0.0,
        simulator_webhook_secret=TRUSTED,
    )
    async with app.running(settings, limits=limits, migrating=migrating, simulator_url=control.url) as service:
        owner = await ensure_tenant(service.database, "default")
        yield Till(dsn, control, service, owner, WebhookReceiver(service))


async def deliver(receiver: WebhookReceiver, raw: bytes) -> int:
    """These bytes, signed now. The receiver is an ASGI application: it is called as one."""
    given = {**headers(raw), "content-length": str(len(raw))}
    answers: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Any) -> None:
        answers.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"{PREFIX}{NAME}",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    await receiver(scope, receive, send)
    return int(answers[0]["status"])


async def pass_time(dsn: str, span: timedelta, *, in_one_snapshot: bool = False) -> None:
    """What was sent, what is owed and what was claimed becomes older. Orders, which would expire, do not."""
    await age(dsn, span, in_one_snapshot=in_one_snapshot)
    connection = await asyncpg.connect(superuser(dsn))
    try:
        await connection.execute(
            "UPDATE tally.webhook_events SET due_at = due_at - $1::interval, processing_until = processing_until"
            " - $1::interval WHERE status IN ('UNPROCESSED', 'IN_PROCESSING')",
            span,
        )
        await connection.execute(
            "UPDATE tally.order_hold SET due_at = due_at - $1::interval WHERE closed_as IS NULL"
            " AND (verdict IS NULL OR verdict IN ('given_up', 'absent'))",
            span,
        )
    finally:
        await connection.close()


async def expire(dsn: str, *orders: str) -> None:
    """The time of these orders is over, by the database's clock."""
    connection = await asyncpg.connect(superuser(dsn))
    try:
        async with connection.transaction():
            # Without the trigger that keeps a deadline as it was promised.
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(
                "UPDATE tally.orders SET expires_at = created_at + interval '1 microsecond' WHERE id = ANY($1::uuid[])",
                [order.removeprefix("or_") for order in orders],
            )
    finally:
        await connection.close()


async def given_up(dsn: str, *orders: str) -> None:
    """The provider could not be asked for as long as these orders were held for it, nor later: they may be swept."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(
            "INSERT INTO tally.order_hold (tenant_id, order_id, verdict, closed_as)"
            " SELECT tenant_id, id, 'given_up', 'unanswered'"
            " FROM tally.orders WHERE id = ANY($1::uuid[]) ON CONFLICT DO NOTHING",
            [order.removeprefix("or_") for order in orders],
        )
    finally:
        await connection.close()


async def authorise(url: str, payment: str) -> None:
    """On the provider's own page, by the customer: the card is charged."""
    async with httpx2.AsyncClient(base_url=url, timeout=60) as page:
        answer = await page.post(
            f"/stripe/v1/payment_intents/{payment}/confirm",
            data={"payment_method": CARD},
            headers={"authorization": f"Bearer {app.SIMULATOR_API_KEY}"},
        )
    assert answer.json()["status"] == "succeeded", answer.text


@dataclass
class Halves:
    """Both halves, in micros, and every place where they differ."""

    charged: int = 0
    paid: int = 0
    refunded: int = 0
    orders: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    payments: int = 0
    refunds: int = 0
    # Orders that were charged twice, payments that went back twice, or went back and pay an order.
    doubled: list[str] = field(default_factory=list)
    # Payments that pay nothing and did not go back; orders that are PAID by nothing the provider has.
    lost: list[str] = field(default_factory=list)
    # What nobody has decided yet: charges and refunds that are PENDING, events that are not at their end.
    undecided: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        return not (self.doubled or self.lost) and self.charged == self.paid + self.refunded


async def compare(dsn: str, entries: Iterable[dict[str, Any]]) -> Halves:
    """Payment by payment. `entries` are the payments and refunds of the provider's books, all of them."""
    connection = await asyncpg.connect(dsn)
    try:
        log = await connection.fetch(
            "SELECT idempotency_key, order_id, operation_type, status, payment_intent_id, part, amount_micros FROM"
            " tally.payment_idempotency_log"
        )
        receipts = await connection.fetch(
            "SELECT r.*, o.status AS order_status FROM tally.payment_receipt r"
            " JOIN tally.orders o ON o.id = r.order_id AND o.tenant_id = r.tenant_id"
        )
        orders = await connection.fetch("SELECT status, count(*) FROM tally.orders GROUP BY 1")
        events = await connection.fetch("SELECT status, count(*) FROM tally.webhook_events GROUP BY 1")
    finally:
        await connection.close()
    found = Halves(
        orders=Counter({row["status"]: row["count"] for row in orders}),
        events=Counter({row["status"]: row["count"] for row in events}),
    )
    found.undecided = [
        f"{row['operation_type']} of or_{row['order_id'].hex}" for row in log if row["status"] == "PENDING"
    ]
    found.undecided += [f"{count} events {name}" for name, count in found.events.items() if name in _OPEN]
    _compare(found, list(entries), log, {row["payment_intent_id"]: row for row in receipts})
    return found


_NOTHING = {"fate": None, "amount_micros": 0, "order_status": None}
_OPEN = ("UNPROCESSED", "IN_PROCESSING", "DEAD_LETTER")


def _asked_for(log: Sequence[Any]) -> dict[str, list[int]]:
    """What a tenant gave back of his payments, by the log."""
    asked: dict[str, list[int]] = defaultdict(list)
    for row in log:
        if row["part"] is not None and row["status"] == "COMPLETED":
            asked[row["payment_intent_id"]].append(row["amount_micros"])
    return asked


def _compare(found: Halves, entries: list[dict[str, Any]], log: Sequence[Any], receipts: dict[str, Any]) -> None:
    order_of = {row["idempotency_key"].hex(): row["order_id"] for row in log if row["operation_type"] == "CHARGE"}
    back: dict[str, list[int]] = defaultdict(list)
    asked = _asked_for(log)
    taken: dict[Any, list[str]] = defaultdict(list)
    moved = {}
    for entry in entries:
        if entry["state"] not in ("moved", "moving"):
            continue
        micros = entry["amount"] * _CENT_MICROS
        if entry["kind"] == "refund":
            back[entry["parent"]].append(micros)
        else:
            moved[entry["id"]] = micros
            taken[order_of.get(entry["reference"], entry["reference"])].append(entry["id"])
    found.payments, found.refunds = len(moved), sum(len(of) for of in back.values())
    found.charged = sum(moved.values())
    found.refunded = sum(sum(of) for of in back.values())
    found.doubled += [f"order {order} was charged {ids}" for order, ids in taken.items() if len(ids) > 1]
    for payment, micros in moved.items():
        receipt, given_back = receipts.get(payment, _NOTHING), back.get(payment, [])
        pays = receipt["fate"] == "PAID"
        # What is left of it: parts that were asked for went back.
        found.paid += receipt["amount_micros"] - sum(asked[payment]) if pays else 0
        if pays and sorted(given_back) != sorted(asked[payment]):
            found.doubled.append(f"{payment} of {micros}: {asked[payment]} was asked for, and {given_back} went back")
        elif sum(given_back) > micros or (not pays and len(given_back) > 1):
            found.doubled.append(f"{payment} of {micros} pays an order: {pays}, and went back: {given_back}")
        elif not pays and sum(given_back) != micros:
            found.lost.append(f"{payment} of {micros} pays nothing, and went back: {given_back}")
        elif pays and (receipt["order_status"], receipt["amount_micros"]) != ("PAID", micros):
            found.lost.append(f"{payment} of {micros} is said to pay an order that is {receipt['order_status']}")
    found.lost += [f"{payment} is believed, and the provider has it not" for payment in receipts.keys() - moved.keys()]
