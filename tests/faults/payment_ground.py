"""Where clicks are killed: the victim's work, and the ground it is done on.

A case: an order is brought into the state that a scenario begins with, a victim pays it or collects and is ended, time
passes, a collector and a buyer who clicks again come after it; then the provider's books have one payment for it.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, Literal

import asyncpg
import msgspec

from tallystick.checkout.order.store import OrderView
from tallystick.checkout.payment.rules import Paying
from tests.faults.matrix import Victim, Victims, is_done_beside, until_gone
from tests.faults.points import End
from tests.faults.victims import Watched, known_as_victim
from tests.ledgers import broken
from tests.payments import CHARGING, Checkout, age, charged, checkout
from tests.providers.worlds import Control

PAY: Final = "tests.faults.payment_ground:pay"
# More than a claim (15 s), and more than a permit and the longest time in flight (130 s).
_SPAN: Final = timedelta(seconds=180)
_MOST_ROUNDS: Final = 4

# A first click; one on a charge that was sent and not recorded; one on a charge that was logged and not sent; and the
# collector on each of the last two.
Scenario = Literal["first click", "click, sent", "click, unsent", "collect, sent", "collect, unsent"]
SCENARIOS: Final[tuple[Scenario, ...]] = (
    "first click",
    "click, sent",
    "click, unsent",
    "collect, sent",
    "collect, unsent",
)
_WAYS: Final[Mapping[str, End]] = {
    "sent": End(side="after", begins="http read"),
    "unsent": End(side="before", begins="http write"),
}


async def pay(job: Mapping[str, Any], watched: Watched) -> str:
    """A victim's work: one click, or one run of the collector."""
    known_as_victim()
    world = next(world for world in CHARGING if world.name == job["world"])
    async with checkout(job["dsn"], Control(job["simulator"]), world, answer_seconds=10) as shop:
        with watched():
            if job["collects"]:
                return str(await shop.payments.collect())
            answer = await shop.payments.pay(
                shop.tenant,
                job["order"],
                job["token"],
                idempotency_key=job["key"],
                payment_method=world.payment_method,
            )
            return type(answer).__name__


def _key(order: OrderView) -> str:
    return f"pay-{order.id}"


class Ground:
    """One database, one simulator, and victims. Its shop makes the orders and comes after the victims."""

    def __init__(self, shop: Checkout, victims: Victims) -> None:
        self._shop = shop
        self.victims = victims
        self.made = 0

    async def prepare(self, scenario: Scenario) -> OrderView:
        """An order as the scenario begins with."""
        self.made += 1
        order = await self._shop.order(f"k{self.made}")
        _, _, state = scenario.partition(", ")
        if state:
            victim = await self.run(order, _WAYS[state])
            assert victim.was_killed, self.victims.said()
            await age(self._shop.dsn, _SPAN)
        return order

    async def run(self, order: OrderView, end: End | None, *, collects: bool = False) -> Victim:
        """One victim that ends there."""
        victim = self.victims.run(self._job(order, collects=collects), end)
        await self._until_gone()
        return victim

    async def pause(self, order: OrderView, end: End, *, collects: bool = False) -> Victim:
        """One that is stopped there, past its claim and its permit, while another finishes; then it goes on."""
        stops = msgspec.structs.replace(end, stops=True, span_seconds=_SPAN.total_seconds())
        first = self.victims.begin(self._job(order, collects=collects), stops)
        self.victims.wait(lambda: first.is_stopped or first.is_ended)
        if first.is_stopped:
            if await self._try_to_age():
                first.skip()
                # Beside it, and perhaps waiting for what it holds.
                second = asyncio.create_task(self._shop.pay(order, key=_key(order)))
                is_done = await is_done_beside(second, self._shop.database)
                first.resume()
                answer = await second
                first.is_overtaken = is_done and isinstance(answer, Paying)
            else:
                first.resume()
            await asyncio.to_thread(self.victims.wait, lambda: first.is_ended)
        assert first.status == 0, self.victims.said()
        await self._until_gone()
        return first

    async def recover(self, order: OrderView) -> None:
        """A collector and a buyer who clicks again, until the payment is known."""
        for _ in range(_MOST_ROUNDS):
            await age(self._shop.dsn, _SPAN)
            await self._shop.payments.collect()
            # Under the victim's own key, as its buyer repeats it: what was recovered is that key's answer.
            if isinstance(await self._shop.pay(order, key=_key(order)), Paying):
                again = await self._shop.paying(order, key=_key(order))
                assert again.is_replayed, again
                return
        raise AssertionError(f"not paid after {_MOST_ROUNDS} rounds: {await self._shop.log(order)}")

    async def check(self, order: OrderView) -> None:
        """One payment object for every order so far, and the log names it."""
        (row,) = await self._shop.log(order)
        objects = charged(self._shop.control, self._shop.world)
        assert len(objects) == self.made, objects
        assert (row.status, row.attempt) == ("COMPLETED", 1)
        assert row.payment_intent_id in {found["id"] for found in objects}

    async def verify(self) -> None:
        assert await broken(self._shop.dsn) == {}

    def said(self) -> str:
        return self.victims.said()

    def _job(self, order: OrderView, *, collects: bool) -> dict[str, Any]:
        return {
            "dsn": self._shop.dsn,
            "simulator": self._shop.control.url,
            "world": self._shop.world.name,
            "order": order.id,
            "token": order.reservation_token,
            "key": _key(order),
            "collects": collects,
        }

    async def _try_to_age(self) -> bool:
        """Not past an open transaction: what it has locked cannot be made older, and nobody can take it over."""
        try:
            await age(f"{self._shop.dsn}&lock_timeout=50", _SPAN)
        except asyncpg.LockNotAvailableError:
            return False
        return True

    async def _until_gone(self) -> None:
        """A killed process's statements end with its connections; the provider has what had left it."""
        await until_gone(self._shop.database)
        for _ in range(2):
            self._shop.control.call("GET", "clock")
