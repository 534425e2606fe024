"""Where checkout is killed: the victim's work, and the ground it is done on.

A case: orders are brought into the state that a scenario begins with, a victim does the scenario's steps and is ended,
time passes; then everybody comes again: the buyer with the same keys, the provider with the same webhooks, sweepers and
workers, until nothing is left to do. Then the provider's books and ours are compared, all of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal, Self

import asyncpg
import msgspec

from tallystick.checkout.order.store import OrderView, Reserved
from tallystick.checkout.payment.rules import Paying
from tallystick.checkout.refund.request.rules import RefundGiven, RefundPending
from tests.checkouts import CARD, Till, authorise, expire, given_up, pass_time, till
from tests.faults.matrix import Victim, Victims, is_done_beside, until_gone
from tests.faults.points import End
from tests.faults.victims import Watched, known_as_victim
from tests.ledgers import broken
from tests.orders import wish
from tests.providers.worlds import Control

CHECK_OUT: Final = "tests.faults.checkout_ground:check_out"
# More than every lease (300 s), and more than a permit and the longest time in flight.
_SPAN: Final = timedelta(seconds=420)
_MOST_ROUNDS: Final = 6
# Every case compares all of its ground.
_MOST_ORDERS: Final = 60

Step = Literal["reserve", "pay", "receive", "backfill", "events", "sweep", "refunds", "give back"]
# What a paid order's tenant gives back of it, in parts: under which keys, and what goes back for sale.
PARTS: Final = (("a", 5_000_000, True), ("b", 5_000_000, False))
# How an order stands when a scenario begins. "owed": its event was taken, and whoever began its refund was killed.
# "expired": the provider was out of reach for as long as an order is held for it. "authorised": it answers, and its
# customer has paid a moment ago.
State = Literal["nothing", "bought", "paid", "swept", "expired", "authorised", "owed, unsent", "owed, sent"]


@dataclass(frozen=True)
class Scenario:
    """Orders in these states, what a victim then does, and what the orders have become when all is quiet."""

    begins: tuple[State, ...]
    steps: tuple[Step, ...]
    ends: tuple[str, ...]


_LATE: Final = "CANCELLED_BY_SWEEPER"
SCENARIOS: Final[Mapping[str, Scenario]] = {
    "sale": Scenario(("nothing",), ("reserve", "pay", "receive", "events"), ("PAID",)),
    "missed webhook": Scenario(("bought",), ("backfill", "events"), ("PAID",)),
    "untold payment": Scenario(("authorised",), ("sweep", "events"), ("PAID",)),
    "late payment": Scenario(("expired",), ("sweep", "receive", "events"), (_LATE,)),
    "one in time, one late": Scenario(("bought", "swept"), ("receive", "events"), ("PAID", _LATE)),
    "refund, unsent": Scenario(("owed, unsent",), ("refunds", "events"), (_LATE,)),
    "refund, sent": Scenario(("owed, sent",), ("refunds", "events"), (_LATE,)),
    "given back in parts": Scenario(("paid",), ("give back", "refunds"), ("PAID",)),
    "refund, told": Scenario(("owed, sent",), ("receive", "events"), (_LATE,)),
}
_ENDS: Final[Mapping[State, End]] = {
    "owed, unsent": End(side="before", begins="http write"),
    "owed, sent": End(side="after", begins="http read"),
}


class Buying(msgspec.Struct):
    """One buyer: his key, and what he was told so far."""

    key: str
    order: str = ""
    token: str = ""
    payment: str = ""


@dataclass(frozen=True)
class Work:
    """Whose steps these are, and where the provider notes which of its webhooks were acknowledged."""

    buyers: Sequence[Buying]
    acknowledged: Path

    def heard(self) -> set[str]:
        return set(self.acknowledged.read_text().split())


async def check_out(job: Mapping[str, Any], watched: Watched) -> list[str]:
    """A victim's work: steps of checkout, one after the other."""
    known_as_victim()
    work = Work([msgspec.convert(one, Buying) for one in job["buyers"]], Path(job["acknowledged"]))
    async with till(job["dsn"], Control(job["simulator"]), migrating=False) as one:
        with watched():
            return [str(await STEPS[step](one, work)) for step in job["steps"]]


async def _reserve(one: Till, work: Work) -> None:
    for buyer in work.buyers:
        made = await one.service.orders.reserve(one.tenant, wish(), buyer.key)
        assert isinstance(made, Reserved), made
        buyer.order, buyer.token = made.view.id, made.view.reservation_token


async def _pay(one: Till, work: Work) -> None:
    for buyer in work.buyers:
        paid = await one.service.payments.pay(
            one.tenant, buyer.order, buyer.token, idempotency_key=buyer.key, payment_method=CARD
        )
        if isinstance(paid, Paying):
            buyer.payment = paid.payment.payment_intent_id or ""


async def _receive(one: Till, work: Work) -> None:
    """The provider tells of these buyers' payments and refunds: all that was not acknowledged, and nothing else."""
    payments = {buyer.payment for buyer in work.buyers}
    refunds = {made["id"] for made in one.control.made("stripe", "refund") if made["parent"] in payments}
    heard = work.heard()

    async def tell(event: dict[str, Any]) -> None:
        if await one.deliver(event) == HTTPStatus.OK:
            # With the kernel before anything else happens: it outlives a kill.
            with work.acknowledged.open("a") as notes:
                notes.write(f"{event['id']}\n")

    # Side by side, as a provider does.
    await asyncio.gather(*(tell(event) for event in one.told(*payments, *refunds) if event["id"] not in heard))


async def _events(one: Till, _work: Work) -> None:
    while (await one.service.events.run_once()).claimed:
        pass


async def _give_back(one: Till, work: Work) -> None:
    for buyer in work.buyers:
        for part, micros, restock in PARTS:
            answer = await one.service.refund_requests.refund(
                one.tenant,
                buyer.order,
                amount_micros=micros,
                reason="it came broken",
                restock=restock,
                idempotency_key=f"{buyer.key}-{part}",
            )
            assert isinstance(answer, RefundGiven | RefundPending), answer


STEPS: Final[Mapping[Step, Callable[[Till, Work], Awaitable[Any]]]] = {
    "reserve": _reserve,
    "pay": _pay,
    "receive": _receive,
    "backfill": lambda one, _work: one.backfill(),
    "events": _events,
    "sweep": lambda one, _work: one.service.orders.sweep(),
    "refunds": lambda one, _work: one.service.refunds.sweep(),
    "give back": _give_back,
}


class Ground:
    """One database, one simulator, and victims. Its till prepares, and comes after the victims."""

    def __init__(self, one: Till, victims: Victims, acknowledged: Path) -> None:
        """Use `Grounds`."""
        self._till = one
        self._victims = victims
        self._acknowledged = acknowledged
        self.made = 0

    async def prepare(self, scenario: Scenario) -> list[Buying]:
        """Buyers, as far as the scenario has them when it begins."""
        return [await self._brought(state) for state in scenario.begins]

    async def _brought(self, state: State) -> Buying:
        self.made += 1
        buyer = Buying(f"k{self.made}")
        if state == "nothing":
            return buyer
        await _reserve(self._till, self._work([buyer]))
        if state == "authorised":
            return await self._authorised(buyer)
        await _pay(self._till, self._work([buyer]))
        if state == "bought":
            return buyer
        if state == "paid":
            await _receive(self._till, self._work([buyer]))
            await _events(self._till, self._work([buyer]))
            return buyer
        await expire(self._till.dsn, buyer.order)
        await given_up(self._till.dsn, buyer.order)
        if state == "expired":
            return buyer
        await self._till.service.orders.sweep()
        if state != "swept":
            victim = await self.run([buyer], ("receive", "events"), _ENDS[state])
            assert victim.was_killed, self.said()
            await pass_time(self._till.dsn, _SPAN)
        return buyer

    async def _authorised(self, buyer: Buying) -> Buying:
        paying = await self._till.service.payments.pay(
            self._till.tenant, buyer.order, buyer.token, idempotency_key=buyer.key
        )
        assert isinstance(paying, Paying), paying
        await authorise(self._till.control.url, str(paying.payment.payment_intent_id))
        await expire(self._till.dsn, buyer.order)
        return buyer

    async def run(self, buyers: Sequence[Buying], steps: Sequence[Step], end: End | None) -> Victim:
        """One victim that ends there."""
        victim = self._victims.run(self._job(buyers, steps), end)
        await self._until_gone()
        return victim

    async def pause(self, buyers: Sequence[Buying], scenario: Scenario, end: End) -> Victim:
        """One that is stopped there, past its lease and its permit, while others do everything; then it goes on."""
        stops = msgspec.structs.replace(end, stops=True, span_seconds=_SPAN.total_seconds())
        first = self._victims.begin(self._job(buyers, scenario.steps), stops)
        self._victims.wait(lambda: first.is_stopped or first.is_ended)
        if first.is_stopped:
            if await self._try_to_age():
                first.skip()
                # Beside it, and perhaps waiting for what it holds.
                beside = asyncio.create_task(self._again(buyers, scenario))
                is_done = await is_done_beside(beside, self._till.service.database)
                first.resume()
                # What it met half done, or waited for too long, is done again by `recover`.
                await asyncio.wait([beside])
                first.is_overtaken = is_done and beside.exception() is None
            else:
                first.resume()
            await asyncio.to_thread(self._victims.wait, lambda: first.is_ended)
        assert first.status == 0, self.said()
        await self._until_gone()
        return first

    async def age(self) -> None:
        """Time passes: what was claimed is free, and nothing can still be on its way."""
        await pass_time(self._till.dsn, _SPAN)

    async def recover(self, buyers: Sequence[Buying], scenario: Scenario) -> None:
        """Everybody comes again, until nothing is left to do."""
        for _ in range(_MOST_ROUNDS):
            await pass_time(self._till.dsn, _SPAN)
            await self._again(buyers, scenario)
            if not (await self._till.halves()).undecided:
                return
        raise AssertionError(f"not quiet after {_MOST_ROUNDS} rounds: {(await self._till.halves()).undecided}")

    async def _again(self, buyers: Sequence[Buying], scenario: Scenario) -> None:
        one, work = self._till, self._work(buyers)
        if "reserve" in scenario.steps:
            await _reserve(one, work)
            await _pay(one, work)
        if "give back" in scenario.steps:
            await _give_back(one, work)
        await one.service.orders.sweep()
        await one.service.payments.collect()
        # What was acknowledged is not told again: if it is not durable, it is lost.
        await _receive(one, work)
        await _events(one, work)
        await one.service.refunds.sweep()
        await _events(one, work)

    def _work(self, buyers: Sequence[Buying]) -> Work:
        return Work(buyers, self._acknowledged)

    async def check(self, buyers: Sequence[Buying], scenario: Scenario) -> None:
        """Both halves, to the micro: charged is PAID and refunded; and each order ended as it should."""
        found = await self._till.halves()
        assert found.is_equal, found
        assert found.payments == self.made, found
        ends = []
        for buyer in buyers:
            order = await self._till.service.payments.order(self._till.tenant, buyer.order)
            assert isinstance(order, OrderView), order
            ends.append(order.status)
            if "give back" in scenario.steps:
                given = [(one.amount_micros, one.status) for one in order.refunds]
                assert given == [(micros, "COMPLETED") for _, micros, _ in PARTS], given
        assert tuple(ends) == scenario.ends, ends

    async def verify(self) -> None:
        """The whole constitution."""
        found = await broken(self._till.dsn)
        assert not found, found

    def said(self) -> str:
        return self._victims.said()

    def _job(self, buyers: Sequence[Buying], steps: Sequence[Step]) -> dict[str, Any]:
        return {
            "dsn": self._till.dsn,
            "simulator": self._till.control.url,
            "buyers": [msgspec.to_builtins(buyer) for buyer in buyers],
            "steps": list(steps),
            "acknowledged": str(self._acknowledged),
        }

    async def _try_to_age(self) -> bool:
        """Not past an open transaction: what it has locked cannot be made older, and nobody can take it over."""
        try:
            await pass_time(f"{self._till.dsn}&lock_timeout=50", _SPAN)
        except asyncpg.LockNotAvailableError:
            return False
        return True

    async def _until_gone(self) -> None:
        """A killed process's statements end with its connections; the provider has what had left it."""
        await until_gone(self._till.service.database)
        for _ in range(2):
            self._till.control.call("GET", "clock")


class Grounds:
    """One ground after another: a fresh one when the last has become too large to be compared quickly."""

    def __init__(
        self, fresh_database: Callable[[], str], control: Control, victims: Victims, acknowledged: Path
    ) -> None:
        """`acknowledged` is a file of the provider's."""
        self._fresh_database = fresh_database
        self._control = control
        self.victims = victims
        self._acknowledged = acknowledged
        self._stack = AsyncExitStack()
        self._ground: Ground | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    async def take(self) -> Ground:
        if self._ground is None or self._ground.made > _MOST_ORDERS:
            await self.finish()
            await self._stack.aclose()
            self._control.call("POST", "reset")
            one = await self._stack.enter_async_context(till(self._fresh_database(), self._control))
            await one.service.orders.set_stock(one.tenant, "lamp", 1_000)
            self._acknowledged.write_text("")
            self._ground = Ground(one, self.victims, self._acknowledged)
        return self._ground

    async def finish(self) -> None:
        """The whole constitution of the last ground: what was broken by any of its cases is broken still."""
        if self._ground is not None:
            await self._ground.verify()
