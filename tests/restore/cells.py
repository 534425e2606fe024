"""The restore matrix: what was going on when the backup was taken, and what the callers do when it has come to life.

    older       the row is in the backup, unsent or unanswered; the lost life paid it
    recreated   the row is not; the lost life made and paid it, and whoever asked for it asks again
    again       the lost life was refused first, and paid another attempt (charge), generation (payout, refund) or key
                of the caller's (part); whoever asks again begins where he began
    fee         like recreated; the fee was changed meanwhile, so that the payout asked for again has another key

Each cell has an amount of its own, by which the provider's books are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from tallystick.checkout.order.store import OrderView
from tallystick.checkout.payment.rules import Paying
from tallystick.movement.steps import MOVED_UNDER_ANOTHER_KEY, UNPROVEN
from tallystick.providers.port import Provider
from tallystick.providers.words import Charge, Instruction, Refund, Transfer
from tallystick.settlement.store import SettlementView
from tests.restore.life import WORLD, Life

MovementKind = Literal["payout", "charge", "refund", "part"]
Situation = Literal["older", "recreated", "again", "fee"]
MOVEMENTS: Final[tuple[MovementKind, ...]] = ("payout", "charge", "refund", "part")
SITUATIONS: Final[tuple[Situation, ...]] = ("older", "recreated", "again", "fee")
DIALECTS: Final = ("stripe", "adyen", "square", "wise")
FEE_CENTS: Final = 100
_CLICKS: Final = 4
# Stripe's declines leave an intent, which must be there to be cancelled.
_DECLINED: Final = {"stripe": "pm_card_chargeDeclined"}
_A_MOMENT: Final = timedelta(minutes=1)
# An order of which a part is given back cost this much more: the provider would let it be given back twice.
_THE_REST_CENTS: Final = 30_000
PAST_THE_HORIZON: Final = "past_the_horizon"
# Why a person has it, after a restore. Any other reason is none for leaving it to one.
WITH_A_PERSON: Final = frozenset({MOVED_UNDER_ANOTHER_KEY, UNPROVEN, PAST_THE_HORIZON})
# What each provider's books call the movement.
_BOOKED: Final = {"payout": ("transfer", "payout"), "charge": ("charge",), "refund": ("refund",), "part": ("refund",)}
# A final no, in each provider's words, by the operation of a fault plan.
REFUSED: Final[Mapping[tuple[str, str], str]] = {
    ("stripe", "transfer"): "account_closed",
    ("adyen", "transfer"): "30_081",
    ("wise", "transfer"): "error.currency.unsupported",
    ("stripe", "charge"): "card_declined",
    ("adyen", "charge"): "FRAUD",
    ("square", "charge"): "CARD_DECLINED",
    ("stripe", "refund"): "charge_disputed",
    ("adyen", "refund"): "167",
    ("square", "refund"): "REFUND_DECLINED",
}


def instruction(movement: MovementKind, dialect: str) -> Instruction:
    world = WORLD[dialect]
    key, micros = bytes(32), 12_340_000
    match movement:
        case "payout":
            return Transfer(
                key=key,
                destination=world.destination.replace(" ", "") or "somebody",
                amount_micros=micros,
                currency=world.currency,
            )
        case "charge":
            return Charge(key=key, amount_micros=micros, currency=world.currency, payment_method=world.payment_method)
        case "refund" | "part":
            return Refund(key=key, payment_id="pi_of_nobody", amount_micros=micros, currency=world.currency)


def impossible(movement: MovementKind, situation: Situation, dialect: str, provider: Provider) -> str | None:
    """Why there is no such cell, as the product itself says it; None: there is."""
    refused = provider.refusal(instruction(movement, dialect))
    if refused is not None:
        return f"{dialect} has no {movement}: {refused.code}"
    if situation == "fee" and movement != "payout":
        return f"a {movement} has no fee: its amount is the caller's"
    return None


@dataclass
class Cell:
    """One cell, and what is known of it on the way."""

    movement: MovementKind
    situation: Situation
    dialect: str
    cents: int
    view: SettlementView | None = None
    order: OrderView | None = None
    payment: str = ""

    @property
    def name(self) -> str:
        return f"{self.movement}-{self.situation}-{self.dialect}"

    def moved(self, movements: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Its movements in the provider's own books, whoever asked for them."""
        amounts = {self.cents, self.cents - FEE_CENTS} if self.situation == "fee" else {self.cents}
        return [
            row
            for row in movements
            if row["dialect"] == self.dialect and row["kind"] in _BOOKED[self.movement] and _cents(row) in amounts
        ]


def _cents(row: Mapping[str, Any]) -> int:
    """Wise writes decimals, which the simulator keeps in micros; the others write minor units."""
    return int(row["amount"] // 10_000 if row["dialect"] == "wise" else row["amount"])


# --- payouts


async def payouts_before(life: Life, cells: Sequence[Cell]) -> None:
    for cell in cells:
        if cell.situation in ("older", "again"):
            cell.view = await life.payout(cell.name, cell.dialect, cell.cents)


async def payouts_lost(life: Life, cells: Sequence[Cell]) -> None:
    by = {(cell.situation, cell.dialect): cell for cell in cells}
    for dialect in sorted({cell.dialect for cell in cells}):
        life.ground.control.plan(f"{dialect}.transfer:refused({REFUSED[dialect, 'transfer']})@1")
    await life.main.settler.tick()
    if await _status(life, by["older", "wise"]) == "processing":
        # After a restart its list counts once everything has settled.
        life.pass_time()
        await life.read_books()
        await life.main.settler.tick()
    for dialect in sorted({cell.dialect for cell in cells}):
        older, again = by["older", dialect], by["again", dialect]
        # One of the two was refused, whichever came first: that one is paid by another generation.
        if await _status(life, older) == "failed":
            older.view, again.view = again.view, older.view
            older.cents, again.cents = again.cents, older.cents
        assert (await _status(life, older), await _status(life, again)) == ("transferred", "failed"), dialect
        await life.another_generation(await life.read_payout(_id(again)))
    await payouts_asked(life, cells)
    await life.main.settler.tick()


async def payouts_asked(life: Life, cells: Sequence[Cell]) -> None:
    """Whoever asked for a payout asks again, under the same key; whoever decided about one decides again."""
    for cell in cells:
        if cell.situation == "recreated":
            cell.view = await life.payout(cell.name, cell.dialect, cell.cents)
        elif cell.situation == "fee":
            cell.view = await life.payout(cell.name, cell.dialect, cell.cents, life.fees)
        elif cell.situation == "again" and (found := await life.read_payout(_id(cell))).status == "failed":
            await life.another_generation(found)


def _id(cell: Cell) -> str:
    assert cell.view is not None
    return cell.view.id


async def _status(life: Life, cell: Cell) -> str:
    return (await life.read_payout(_id(cell), life.fees if cell.situation == "fee" else None)).status


# --- charges


async def charges_before(life: Life, cells: Sequence[Cell]) -> None:
    for cell in cells:
        if cell.situation in ("older", "again"):
            cell.order = await life.reserve(cell.name, cell.dialect, cell.cents)


async def charges_lost(life: Life, cells: Sequence[Cell]) -> None:
    for cell in cells:
        if cell.situation == "again":
            if cell.dialect != "stripe":
                life.ground.control.plan(f"{cell.dialect}.charge:refused({REFUSED[cell.dialect, 'charge']})@1")
            assert cell.order is not None
            refused = await life.pay(cell.order, cell.dialect, _DECLINED.get(cell.dialect))
            assert getattr(refused, "code", "") == "payment_refused", (cell.name, refused)
        paid = await _click(life, cell)
        for _ in range(_CLICKS):
            if isinstance(paid, Paying):
                break
            # The attempt before is ended at the provider first.
            life.ground.pass_time(_A_MOMENT)
            await life.services[cell.dialect].payments.collect()
            paid = await _click(life, cell)
        assert isinstance(paid, Paying), (cell.name, paid)


async def charges_asked(life: Life, cells: Sequence[Cell]) -> None:
    """The buyer comes back: he reserves under the same key, and pays."""
    for cell in cells:
        await _click(life, cell)


async def _click(life: Life, cell: Cell) -> Any:
    if cell.situation == "recreated":
        cell.order = await life.reserve(cell.name, cell.dialect, cell.cents)
    assert cell.order is not None
    return await life.pay(cell.order, cell.dialect)


# --- refunds


async def refunds_before(life: Life, cells: Sequence[Cell]) -> None:
    """Each was charged, and its order is cancelled: when the provider tells of the money, it goes back."""
    for cell in cells:
        cell.order = await life.reserve(cell.name, cell.dialect, cell.cents)
        paid = await life.pay(cell.order, cell.dialect)
        assert isinstance(paid, Paying), (cell.name, paid)
        cell.payment = paid.payment.payment_intent_id or ""
        await life.main.orders.cancel(life.tenant, cell.order.id)
    for cell in cells:
        if cell.situation == "older":
            # Its first attempt is lost on the way: nobody knows what became of it.
            life.ground.control.plan(f"{cell.dialect}.refund:drop_before@1")
            await life.tell(cell.dialect, cell.payment, cell.cents, f"event-{cell.name}")
    await life.main.events.run_once()
    for cell in cells:
        if cell.situation == "older":
            assert await refund_statuses(life, cell) == ["PENDING"], cell.name
        if cell.situation == "again":
            await life.tell(cell.dialect, cell.payment, cell.cents, f"event-{cell.name}")


async def refunds_lost(life: Life, cells: Sequence[Cell]) -> None:
    for dialect in sorted({cell.dialect for cell in cells}):
        life.ground.control.plan(f"{dialect}.refund:refused({REFUSED[dialect, 'refund']})@1")
    await life.main.events.run_once()
    for cell in cells:
        if cell.situation == "again":
            assert await refund_statuses(life, cell) == ["FAILED"], cell.name
    await refunds_asked(life, cells)
    await life.main.events.run_once()
    await life.main.refunds.sweep_all()


async def refunds_asked(life: Life, cells: Sequence[Cell]) -> None:
    """The provider tells again; where a refund was refused, a person has it made under another key."""
    for cell in cells:
        assert cell.order is not None
        if cell.situation == "recreated":
            await life.tell(cell.dialect, cell.payment, cell.cents, f"event-{cell.name}")
        elif cell.situation == "again" and (await refund_statuses(life, cell))[-1:] == ["FAILED"]:
            await life.refund_again(cell.order, cell.payment)


async def refund_statuses(life: Life, cell: Cell) -> list[str]:
    assert cell.order is not None
    return [row.view.status for row in await life.refunds(cell.order)]


# --- parts of a paid order


async def parts_before(life: Life, cells: Sequence[Cell]) -> None:
    """Each order is paid. Of the older ones a part was asked for, and its first attempt is lost on the way."""
    for cell in cells:
        whole = cell.cents + _THE_REST_CENTS
        cell.order = await life.reserve(cell.name, cell.dialect, whole)
        paid = await life.pay(cell.order, cell.dialect)
        assert isinstance(paid, Paying), (cell.name, paid)
        await life.tell(cell.dialect, paid.payment.payment_intent_id or "", whole, f"event-{cell.name}")
    await life.main.events.run_once()
    for cell in cells:
        assert cell.order is not None
        assert (await life.order(cell.order)).status == "PAID", cell.name
        if cell.situation == "older":
            life.ground.control.plan(f"{cell.dialect}.refund:drop_before@1")
            await life.give_back(cell.order, cell.cents, f"part-{cell.name}")
            assert await refund_statuses(life, cell) == ["PENDING"], cell.name


async def parts_lost(life: Life, cells: Sequence[Cell]) -> None:
    for cell in cells:
        if cell.situation == "again":
            assert cell.order is not None
            life.ground.control.plan(f"{cell.dialect}.refund:refused({REFUSED[cell.dialect, 'refund']})@1")
            await life.give_back(cell.order, cell.cents, f"part-{cell.name}")
            for _ in range(_CLICKS):
                if await refund_statuses(life, cell) == ["FAILED"]:
                    break
                await life.work()
            assert await refund_statuses(life, cell) == ["FAILED"], cell.name
    await parts_asked(life, cells)


async def parts_asked(life: Life, cells: Sequence[Cell]) -> None:
    """Whoever asked for a part asks again, under the same key; where that was refused, under another."""
    for cell in cells:
        assert cell.order is not None
        await life.give_back(cell.order, cell.cents, f"part-{cell.name}")
        if cell.situation == "again" and (await refund_statuses(life, cell))[:1] == ["FAILED"]:
            await life.give_back(cell.order, cell.cents, f"part-{cell.name}-again")


# --- what became of them


async def end_of(life: Life, cell: Cell, moved: Sequence[Mapping[str, Any]]) -> str:
    """Found; with a person, and his reason, or how it stands and should not."""
    ids = {row["id"] for row in moved} | {row["parent"] for row in moved}
    match cell.movement:
        case "payout":
            view = await life.read_payout(_id(cell), life.fees if cell.situation == "fee" else None)
            stands = (view.status, view.reason)
            if view.status == "transferred" and view.transfer_id in ids:
                return "found"
            is_with_person = view.status == "disputed" and view.reason in WITH_A_PERSON
            return f"person: {view.reason}" if is_with_person else f"undecided {stands}"
        case "charge":
            assert cell.order is not None
            payment = (await life.order(cell.order)).payment
            if payment is None:
                return "undecided: never asked for"
            if payment.status == "COMPLETED" and payment.payment_intent_id in ids:
                return "found"
            return f"person: {payment.reason}" if payment.reason in WITH_A_PERSON else f"undecided {payment}"
        case "refund" | "part":
            assert cell.order is not None
            rows = [row.view for row in await life.refunds(cell.order)]
            if not rows:
                return "undecided: never owed"
            if rows[-1].status == "COMPLETED" and rows[-1].refund_id in ids:
                return "found"
            # Without a reason of its own, a refund shows why it is owed.
            return f"person: {rows[-1].reason}" if rows[-1].reason in WITH_A_PERSON else f"undecided {rows[-1]}"
