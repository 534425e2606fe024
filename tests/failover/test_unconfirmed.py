"""A primary that waits for no standby is killed under load; the standby that is promoted lacks what it did last.

Money was moved that the promoted server knows nothing of. What is inside its key's memory goes on by itself; what is
past it is asked about first. Either way every movement is there once, and everybody's wish is fulfilled by it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import asyncpg
import pytest

from tallystick.checkout.order.store import Reserved
from tallystick.ledger.outcome import Rejected
from tallystick.movement.life import store as whereabouts
from tallystick.workers.crew import crew, working
from tests import clocks, settlements
from tests.checkouts import till
from tests.failover.cluster import Cluster, Member
from tests.failover.promotion import promote
from tests.failover.test_failover import FLOWS, SECONDS, Load, judged
from tests.orders import wish
from tests.providers.worlds import Control

# Of each flow: so many were begun before the standbys were cut off, and so many more are asked for after that.
PREPARED: Final = 5
FRESH: Final = 5
KINDS: Final = {"payout": "transfer", "charge": "payment_intent", "refund": "refund"}
# Longer than the provider remembers a key; an order can be paid for longer than that.
A_DAY: Final = timedelta(hours=26)
TTL: Final = timedelta(days=90)
# Ten minutes each, until everything that was asked about has been answered.
ROUNDS: Final = 30


@dataclass
class Lasting(Load):
    """Callers who remember what they were told is done, and come again when they hear that it was lost."""

    # What was asked for, in the middle of it or not; and what they were told is done.
    begun: list[tuple[str, str]] = field(default_factory=list)
    fulfilled: list[tuple[str, str]] = field(default_factory=list)

    # Payments of which a caller who wanted them back was told that his order is paid.
    bought: set[str] = field(default_factory=set)
    # Cleared: nobody begins to give something back.
    refunding: asyncio.Event = field(default_factory=asyncio.Event)

    async def _until_done(self, flow: str, name: str) -> bool:
        if flow == "refund":
            await self.refunding.wait()
        self.begun.append((flow, name))
        done = await super()._until_done(flow, name)
        if done:
            self.fulfilled.append((flow, name))
        return done

    async def refunds_end(self) -> None:
        """Payouts and charges go on.

        A caller within a refund would tell the promoted server of the payment, and not of the cancellation, which he
        takes for done: his order would be paid, and rightly so.
        """
        self.refunding.clear()
        await self.until(lambda: _count(self.begun, "refund") == _count(self.fulfilled, "refund"), 30.0)

    async def charge(self, name: str) -> bool:
        """Told so, and so it is: an answer that came as the server died was given, and is recorded nowhere."""
        paid = await self._paid(name)
        if paid is None:
            return False
        order = await self.one.service.payments.order(self.one.tenant, paid.order_id)
        if isinstance(order, Rejected):
            return self.vanished(order)
        return order.payment is not None and order.payment.payment_intent_id == paid.payment.payment_intent_id

    def vanished(self, refused: Rejected) -> bool:
        """The promotion came in between: it is asked for again from the beginning."""
        self.told[refused.code] += 1
        return False

    def is_bought(self, payment: str) -> bool:
        """Made again, and PAID by what the provider has, before he cancelled it again: the lost life gave it back.

        That refund is nobody's here until the books are read, or its webhook is told again: then a person hears of it.
        """
        self.bought.add(payment)
        return True

    async def prepare(self) -> None:
        """Begun, and nothing of it sent: payouts that wait, orders that nobody has paid, refunds that are owed."""
        for number in range(PREPARED):
            assert not await self.payout(f"prepared-payout-{number}")
            made = await self.one.service.orders.reserve(self.one.tenant, wish(), f"reserve-prepared-charge-{number}")
            assert isinstance(made, Reserved)
            assert not await self.refund(f"prepared-refund-{number}")

    @property
    def prepared(self) -> list[tuple[str, str]]:
        return [(flow, f"prepared-{flow}-{number}") for flow in FLOWS for number in range(PREPARED)]

    async def all_of(self, wishes: list[tuple[str, str]], *, within: float) -> dict[tuple[str, str], float]:
        """They are asked for until they are fulfilled: how long each took. Those that were not are missing."""
        began, took = time.monotonic(), dict[tuple[str, str], float]()
        if not wishes:
            return took

        async def one(flow: str, name: str) -> None:
            if await Load._until_done(self, flow, name):
                took[flow, name] = time.monotonic() - began

        asking = [asyncio.create_task(one(flow, name)) for flow, name in wishes]
        _, late = await asyncio.wait(asking, timeout=within)
        for task in late:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        return took


@dataclass
class Lost:
    """What the provider has, and the standby knows no end of: ids in the provider's books, by flow."""

    ids: dict[str, set[str]]
    wishes: list[tuple[str, str]]


async def lost(load: Lasting, standby: Member) -> Lost:
    """Asked of the standby before it is promoted."""
    name = load.one.dsn.split("@/")[1].split("?", maxsplit=1)[0]
    connection = await asyncpg.connect(standby.dsn(name, user="postgres"))
    try:
        known = {
            row[0] for row in await connection.fetch("SELECT provider_id FROM tally.attempt WHERE answer = 'done'")
        }
    finally:
        await connection.close()
    made = {flow: load.one.control.made("stripe", kind) for flow, kind in KINDS.items()}
    moved = {flow: {one["id"] for one in found if one["state"] == "moved"} for flow, found in made.items()}
    return Lost({flow: ids - known for flow, ids in moved.items()}, [*load.prepared, *load.begun])


@asynccontextmanager
async def lost_life(cluster: Cluster, control: Control) -> AsyncIterator[Lasting]:
    """One process with all of its workers, on a primary whose standbys have nothing of what it does."""
    dsn = cluster.addresses(cluster.primary.fresh_database())
    async with till(dsn, control, ttl_seconds=TTL.total_seconds()) as one:
        await one.service.orders.set_stock(one.tenant, "lamp", 100_000)
        await settlements.open_clearing(one.service.database, one.tenant, "EUR")
        load = Lasting(one)
        await load.prepare()
        await cluster.cut()
        load.refunding.set()
        async with working(crew(one.service)):
            running = asyncio.create_task(load.run())
            try:
                assert len(await load.all_of(load.prepared, within=60.0)) == len(load.prepared)
                await load.until(lambda: all(_count(load.fulfilled, flow) >= FRESH for flow in FLOWS), 60.0)
                await load.refunds_end()
                yield load
            finally:
                load.stopping = True
                load.refunding.set()
                await running


def _count(wishes: list[tuple[str, str]], flow: str) -> int:
    return sum(of == flow for of, _ in wishes)


def floors(found: Lost) -> None:
    """Without these a run in which nothing was lost would pass."""
    for flow in FLOWS:
        assert len(found.ids[flow]) >= PREPARED + FRESH, f"only {len(found.ids[flow])} of {flow} were lost"
        assert _count(found.wishes, flow) >= PREPARED + FRESH, flow


async def known_as(load: Lasting, at: Member) -> dict[str, set[str]]:
    """The provider's ids that the promoted server has by now, by flow."""
    name = load.one.dsn.split("@/")[1].split("?", maxsplit=1)[0]
    log = "SELECT {0} FROM tally.payment_idempotency_log WHERE operation_type = '{1}' AND {0} IS NOT NULL"
    asked = {
        "payout": "SELECT transfer_id FROM tally.settlement_state WHERE status = 'transferred'",
        "charge": log.format("payment_intent_id", "CHARGE"),
        "refund": log.format("refund_id", "REFUND") + " AND status = 'COMPLETED'",
    }
    connection = await asyncpg.connect(at.dsn(name))
    try:
        return {flow: {row[0] for row in await connection.fetch(question)} for flow, question in asked.items()}
    finally:
        await connection.close()


@pytest.fixture
def unconfirmed() -> Iterator[Cluster]:
    made = Cluster(confirmed=False, clock=clocks.required())
    made.start()
    yield made
    made.remove()


async def test_what_was_lost_inside_its_key_s_memory_goes_on_by_itself_within_seconds(
    unconfirmed: Cluster, control: Control, record_property: Any
) -> None:
    async with lost_life(unconfirmed, control) as load:
        unconfirmed.primary.kill()
        gone = await lost(load, unconfirmed.standbys["anna"])
        promoted = await asyncio.to_thread(promote, unconfirmed, "anna", "bert")
        since = time.monotonic()
        load.refunding.set()
        went_on, took = await asyncio.gather(_went_on(load, since), load.all_of(gone.wishes, within=SECONDS))
        # Whose wish was lost with its row, and who did not come again, is found by reading the books: minutes later.
        found = await known_as(load, promoted)
    floors(gone)
    assert set(went_on) == set(FLOWS), f"these never went on: {set(FLOWS) - set(went_on)}; told: {load.told}"
    assert max(went_on.values()) < SECONDS, went_on
    assert set(took) == set(gone.wishes), f"{set(gone.wishes) - set(took)}; told: {load.told}"
    assert max(took.values()) < SECONDS, took
    given_back = _refunds_of(control, load.bought)
    for flow in FLOWS:
        nobodys = gone.ids[flow] - found[flow] - given_back
        assert not nobodys, f"{flow}: {nobodys} are nobody's here"
    record_property(
        "counted",
        f"failover, unconfirmed: {_told(gone)}; back after {max(took.values()):.1f} s; "
        f"{len(load.bought)} were PAID before they were cancelled again",
    )
    await judged(load, promoted, bought=load.bought)


async def _went_on(load: Load, since: float) -> dict[str, float]:
    await load.until(lambda: len(load.since(since)) == len(FLOWS), SECONDS)
    return load.since(since)


def _refunds_of(control: Control, payments: set[str]) -> set[str]:
    asked = "objects?dialect=stripe&kind=refund&parent={}&limit=100"
    return {one["id"] for payment in payments for one in control.call("GET", asked.format(payment))}


def _told(gone: Lost) -> str:
    return "lost " + ", ".join(f"{len(ids)} {flow}s" for flow, ids in gone.ids.items())


async def test_what_was_lost_and_forgotten_is_asked_about_and_moved_once(
    unconfirmed: Cluster, control: Control, record_property: Any
) -> None:
    """A day later: the provider has forgotten every key of the lost life, and would move the money again."""
    async with lost_life(unconfirmed, control) as load:
        unconfirmed.primary.kill()
        gone = await lost(load, unconfirmed.standbys["anna"])
        assert unconfirmed.clock is not None
        ahead = A_DAY
        unconfirmed.clock.set(ahead)
        control.advance(seconds=A_DAY.total_seconds())
        promoted = await asyncio.to_thread(promote, unconfirmed, "anna", "bert")
        # The newest send that the standby remembers is as old as that: what a caller makes anew may be what was lost,
        # so that everything waits for what the books say.
        missing = set(gone.wishes)
        waited = missing - set(await load.all_of(sorted(missing), within=5.0))
        since = time.monotonic()
        load.refunding.set()
        for _ in range(ROUNDS):
            ahead += timedelta(minutes=10)
            unconfirmed.clock.set(ahead)
            control.advance(minutes=10)
            # They pass for the process too: to it no clock has jumped.
            whereabouts._SEEN.clear()
            missing -= set(await load.all_of(sorted(missing), within=5.0))
            await load.until(lambda: len(load.since(since)) == len(FLOWS), 5.0)
            if not missing and len(load.since(since)) == len(FLOWS):
                break
        went_on = load.since(since)
        found = await known_as(load, promoted)
    floors(gone)
    assert not missing, f"{missing}; told: {load.told}"
    assert {flow for flow, _ in waited} == set(FLOWS), f"these waited for no answer: {waited}"
    assert set(went_on) == set(FLOWS), f"these never went on: {set(FLOWS) - set(went_on)}; told: {load.told}"
    for flow in FLOWS:
        assert gone.ids[flow] <= found[flow], f"{flow}: {gone.ids[flow] - found[flow]} are nobody's here"
    record_property("counted", f"failover, unconfirmed, a day later: {_told(gone)}; each found, none moved twice")
    await judged(load, promoted)
