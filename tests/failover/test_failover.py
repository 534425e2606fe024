"""A primary is killed under load and a standby promoted, by the very script that ships.

What lost nothing goes on by itself, in every flow; nothing is paid twice. The ten seconds that are promised for it are
asked for by TALLY_TEST_FULL, on a machine that does nothing else: beside the rest of the tests a run is given three
times as long, and prints what it took.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tallystick.checkout.order.store import Reserved
from tallystick.checkout.payment.rules import Paying
from tallystick.errors import TallystickError
from tallystick.ledger.outcome import Rejected
from tallystick.settlement import store as payouts
from tallystick.settlement.postings import SettlementCreated
from tallystick.settlement.store import Made
from tallystick.workers.crew import crew, working
from tests import settlements
from tests.checkouts import CARD, Till, till
from tests.failover.cluster import Cluster, Member
from tests.failover.promotion import promote
from tests.ledgers import broken
from tests.orders import wish
from tests.providers.worlds import Control

# By itself: nobody runs a command.
SECONDS: Final = 10.0 if os.environ.get("TALLY_TEST_FULL") == "1" else 30.0
FLOWS: Final = ("payout", "charge", "refund")


@dataclass
class Load:
    """Callers who never give up, and when each of their wishes was fulfilled, by the steady clock."""

    one: Till
    # (flow, when it was asked for, when it was done)
    done: list[tuple[str, float, float]] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    stopping: bool = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for flow in FLOWS:
                for worker in range(2):
                    group.create_task(self._ask(flow, f"{flow}-{worker}"))

    async def _ask(self, flow: str, name: str) -> None:
        number = 0
        while not self.stopping:
            number += 1
            asked = time.monotonic()
            if await self._until_done(flow, f"{name}-{number}"):
                self.done.append((flow, asked, time.monotonic()))

    async def _until_done(self, flow: str, name: str) -> bool:
        """The same wish under the same key, until it is fulfilled; False: everybody stops before."""
        while not self.stopping:
            try:
                if await getattr(self, flow)(name):
                    return True
            except TallystickError as error:
                self.told[type(error).__name__] += 1
            await asyncio.sleep(0.05)
        return False

    async def payout(self, name: str) -> bool:
        service, tenant = self.one.service, self.one.tenant
        asked = SettlementCreated(attribution_id=name, squad_id="amber", **settlements.SIMULATED)  # type: ignore[arg-type]
        made = await service.settlements.create(tenant, asked, f"create-{name}")
        assert isinstance(made, Made), made
        view = await payouts.read(service.database, tenant, made.view.id)
        if isinstance(view, Rejected):
            return self.vanished(view)
        return view.status == "transferred"

    async def charge(self, name: str) -> bool:
        return await self._paid(name) is not None

    async def refund(self, name: str) -> bool:
        """Paid, cancelled, and told of: it goes back."""
        service, tenant = self.one.service, self.one.tenant
        paid = await self._paid(name)
        if paid is None:
            return False
        cancelled = await service.orders.cancel(tenant, paid.order_id)
        payment = paid.payment.payment_intent_id or ""
        if isinstance(cancelled, Rejected) and cancelled.code == "order_paid" and self.is_bought(payment):
            return True
        for event in await asyncio.to_thread(self.one.told, payment):
            await self.one.deliver(event)
        order = await service.payments.order(tenant, paid.order_id)
        if isinstance(order, Rejected):
            return self.vanished(order)
        return order.refund is not None and order.refund.status == "COMPLETED"

    def vanished(self, refused: Rejected) -> bool:
        """What was made a moment ago is not there."""
        raise AssertionError(refused)

    def is_bought(self, payment: str) -> bool:
        """Whether a payment that came before the cancellation is an end for this caller."""
        del payment
        return False

    async def _paid(self, name: str) -> Paying | None:
        service, tenant = self.one.service, self.one.tenant
        made = await service.orders.reserve(tenant, wish(), f"reserve-{name}")
        if not isinstance(made, Reserved):
            self.told[made.code] += 1
            return None
        view = made.view
        answer = await service.payments.pay(
            tenant, view.id, view.reservation_token, payment_method=CARD, idempotency_key=f"pay-{name}"
        )
        if isinstance(answer, Paying):
            return answer
        self.told[getattr(answer, "code", type(answer).__name__)] += 1
        return None

    def since(self, moment: float) -> dict[str, float]:
        """By flow: how long after that moment the first wish that was asked for after it was fulfilled."""
        found: dict[str, float] = {}
        for flow, asked, done in self.done:
            if asked >= moment:
                found.setdefault(flow, done - moment)
        return found

    async def until(self, is_true: Any, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_true() and time.monotonic() < deadline:
            await asyncio.sleep(0.05)


@asynccontextmanager
async def under_load(cluster: Cluster, control: Control) -> AsyncIterator[Load]:
    """One process with all of its workers, told of all three servers; and callers who never give up."""
    dsn = cluster.addresses(cluster.primary.fresh_database())
    async with till(dsn, control) as one:
        await one.service.orders.set_stock(one.tenant, "lamp", 100_000)
        await settlements.open_clearing(one.service.database, one.tenant, "EUR")
        load = Load(one)
        async with working(crew(one.service)):
            running = asyncio.create_task(load.run())
            try:
                # Every flow is in the middle of something.
                await load.until(lambda: len({flow for flow, *_ in load.done}) == len(FLOWS), 30.0)
                await load.until(lambda: len(load.done) >= 30, 30.0)
                yield load
            finally:
                load.stopping = True
                await running


@pytest.fixture
def confirmed() -> Iterator[Cluster]:
    made = Cluster()
    made.start()
    yield made
    made.remove()


async def judged(load: Load, at: Member, *, bought: Collection[str] = ()) -> None:
    """When all is quiet: nothing doubled, nothing lost, and the books of the promoted server hold.

    `bought`: payments that a lost life gave back, of orders that are PAID here.
    """
    name = load.one.dsn.split("@/")[1].split("?", maxsplit=1)[0]
    halves = await settlements.halves(at.dsn(name), load.one.control)
    assert halves.doubled == []
    assert halves.lost == []
    checkout = await load.one.halves()
    assert [one for one in checkout.doubled if not any(payment in one for payment in bought)] == []
    assert await broken(at.dsn(name)) == {}


async def test_what_lost_nothing_goes_on_by_itself_within_seconds(
    confirmed: Cluster, control: Control, record_property: Any
) -> None:
    async with under_load(confirmed, control) as load:
        before = len(load.done)
        confirmed.primary.kill()
        promoted = await asyncio.to_thread(promote, confirmed, "anna", "bert")
        since = time.monotonic()
        await load.until(lambda: len(load.since(since)) == len(FLOWS), SECONDS)
        went_on = load.since(since)
    assert set(went_on) == set(FLOWS), f"these never went on: {set(FLOWS) - set(went_on)}; told: {load.told}"
    assert max(went_on.values()) < SECONDS, went_on
    assert len(load.done) > before
    record_property(
        "counted", f"failover, confirmed: went on after { ({k: round(v, 1) for k, v in went_on.items()}) } s"
    )
    await judged(load, promoted)


def _short(seconds: dict[str, float]) -> str:
    return ", ".join(f"{flow} {after:.1f}" for flow, after in seconds.items())
