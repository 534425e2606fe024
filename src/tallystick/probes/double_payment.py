"""Probe 1: make a tick pay twice, by retrying it in every way.

The attacker controls when ticks run and die, and what the provider and the wire do. He wins when the provider's own
books show two transfers for one payout; and also when a payout that we call transferred was never made, or when our
own books no longer add up.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from tallystick import queries
from tallystick.probes.contender import Contender, Paused, Point, account, stopped_at
from tallystick.probes.ground import Books, Ground, broken_invariants, connected
from tallystick.probes.naive import SQL, Key, Naive
from tallystick.probes.ours import Ours
from tallystick.probes.report import Outcome, Tried
from tallystick.probes.trying import judged

_SQL = queries.load(__package__, "probes.sql")
_HOUR: Final = 3_600.0
# Past the 24 hours that Stripe remembers a key.
_PAST_HORIZON: Final = 25 * _HOUR
# A takeover, and another look at what it left open.
_ROUNDS: Final = 2

Schedule = Callable[[Contender, Books, Sequence[str]], Awaitable[None]]

# What the provider or the wire does to the first call for each payout. The money has moved, or moves later.
_FAULTS: Final = (
    "execute_then_drop",
    "execute_then_reset",
    "cut_body",
    "hang",
    "html_200",
    "empty_200",
    "execute_then_500",
    "gateway_502_after",
    "gateway_504_after",
)
# Seconds: longer than a worker waits for an answer.
_LATE: Final = 0.8


async def two_at_once(contender: Contender, _books: Books, names: Sequence[str]) -> None:
    """A second tick runs from beginning to end while the first is about to send."""
    await contender.create(names)
    held = Paused("before_send")
    first = asyncio.create_task(contender.tick(held))
    await held.reached()
    await contender.tick()
    held.release()
    await first


async def overtaken(contender: Contender, _books: Books, names: Sequence[str]) -> None:
    """The first tick's payout is made, and it hears of that only after the others took its row over."""
    await contender.create(names[:1])
    held = Paused("after_answer")
    first = asyncio.create_task(contender.tick(held))
    await held.reached()
    await contender.pass_time(_HOUR)
    await asyncio.gather(contender.tick(), contender.tick())
    held.release()
    await first


def killed(point: Point) -> Schedule:
    """SIGKILL at that point; then the others take over."""

    async def schedule(contender: Contender, _books: Books, names: Sequence[str]) -> None:
        await contender.create(names)
        worker = await stopped_at(point, contender)
        await worker.kill()
        await _until_quiet(contender)

    return schedule


async def created_again(contender: Contender, _books: Books, names: Sequence[str]) -> None:
    """Whoever creates them never heard back, and repeats himself, also after they were paid."""
    await asyncio.gather(contender.create(names), contender.create(names))
    await contender.tick()
    await contender.create(names)
    await contender.tick()


async def set_back(contender: Contender, _books: Books, names: Sequence[str]) -> None:
    """They were paid; somebody edits the rows so that the next tick pays them again."""
    await contender.create(names)
    await contender.tick()
    await contender.set_back(names)
    await _until_quiet(contender)


def unanswered(fault: str, *, silent_for: float = _HOUR, asking: str = "", late_seconds: float = 0.0) -> Schedule:
    """The first call for each payout meets the fault, and perhaps every question another; ticks go on after that."""

    async def schedule(contender: Contender, books: Books, names: Sequence[str]) -> None:
        await contender.create(names)
        sends, questions = f"stripe.transfer:{fault}@1-{len(names)}", f", stripe.list:{asking}@1-1000" if asking else ""
        await books.plan(sends + questions)
        await contender.tick()
        await books.advance(silent_for)
        await contender.pass_time(silent_for)
        await _until_quiet(contender)
        if late_seconds:
            # What the provider does late, it has done by now: on its own clock, or on the wall's.
            await books.advance(late_seconds)
            await asyncio.sleep(min(late_seconds, _LATE))
            await _until_quiet(contender)
        idle = await books.idle_rules()
        if sends in idle or (idle and contender.kind == "ours"):
            raise RuntimeError(f"the attack did not happen: {idle} never struck")

    return schedule


async def _until_quiet(contender: Contender) -> None:
    for _ in range(_ROUNDS):
        await contender.pass_time(_HOUR)
        await contender.tick()


WAYS: Final[Mapping[str, Schedule]] = {
    "two ticks at once": two_at_once,
    "two takeovers at once, and the late first": overtaken,
    "killed after the money moved": killed("after_answer"),
    "created again": created_again,
    "set back by hand": set_back,
    **{f"answer lost: {fault}": unanswered(fault) for fault in _FAULTS},
    "moved after everybody gave up": unanswered(f"slow_before({_LATE})", late_seconds=_LATE),
    "moved two hours after a 500": unanswered("error_500_object_later(7200)", late_seconds=7200.0),
    "answer lost, and every question's": unanswered("execute_then_drop", asking="gateway_503"),
    "answer lost, key forgotten": unanswered("execute_then_drop", silent_for=_PAST_HORIZON),
    "answer lost, key forgotten, nobody to ask": unanswered(
        "execute_then_drop", silent_for=_PAST_HORIZON, asking="gateway_503"
    ),
    "500 after the effect, key forgotten": unanswered("execute_then_500", silent_for=_PAST_HORIZON),
}


def _key_of_control(way: str) -> Key:
    """Past the horizon even a key made of the content pays twice: there the control has one."""
    return "content" if "key forgotten" in way else "random"


async def double_payment(ground: Ground, *, payouts: int = 2) -> tuple[Tried, ...]:
    """Every way, on `payouts` payouts each; then both halves are compared as a whole."""
    dsn = await ground.fresh_database()
    tried = []
    await ground.clean()
    async with Ours(dsn, ground.books.url) as ours:
        for number, (way, schedule) in enumerate(WAYS.items()):
            names = [f"dp{number}x{payout}" for payout in range(payouts)]
            async with Naive(dsn, ground.control_books.url, key=_key_of_control(way)) as naive:
                attack, control = await asyncio.gather(
                    judged(_attacked(ours, ground.books, schedule, names), otherwise=True),
                    judged(_attacked(naive, ground.control_books, schedule, names), otherwise=False),
                )
            tried.append(Tried(way=way, attack=attack, control=control))
    for books in (ground.books, ground.control_books):
        await books.plan("")
    return (
        *tried,
        Tried(
            way="the books afterwards",
            attack=await judged(_our_half(dsn, ground.books), otherwise=True),
            control=await judged(_naive_half(dsn, ground.control_books), otherwise=False),
        ),
    )


async def _attacked(contender: Contender, books: Books, schedule: Schedule, names: Sequence[str]) -> Outcome:
    await books.plan("")
    await schedule(contender, books, names)
    counted = await books.transfers()
    doubled = {name: counted[account(name)] for name in names if counted[account(name)] > 1}
    return Outcome(
        won=bool(doubled),
        told=f"transfers in the provider's books: {doubled}" if doubled else "no payout has two transfers",
    )


async def _our_half(dsn: str, books: Books) -> Outcome:
    """Nobody was paid twice: then nobody may have been forgotten either, and the ledger must agree."""
    async with connected(dsn) as connection:
        rows = await connection.fetch(_SQL["outcomes"])
    paid = await books.amounts()
    wrong = [
        f"{row['name']} is {row['status']}, and the provider paid {paid[account(row['name'])]}"
        for row in rows
        if not _agrees(row["status"], row["cents"], paid[account(row["name"])])
    ]
    wrong += [f"the invariant {broken} does not hold" for broken in await broken_invariants(dsn)]
    stands = Counter(row["status"] for row in rows)
    return Outcome(won=bool(wrong), told="; ".join(wrong[:5]) or ", ".join(f"{stands[name]} {name}" for name in stands))


def _agrees(status: str, cents: int, paid: int) -> bool:
    match status:
        case "transferred":
            return paid == cents
        case "pending" | "failed":
            return paid == 0
        case _:
            return paid in (0, cents)


async def _naive_half(dsn: str, books: Books) -> Outcome:
    async with connected(dsn) as connection:
        said = await connection.fetchval(SQL["paid_cents"])
    paid = sum((await books.amounts()).values())
    return Outcome(won=said != paid, told=f"it says {said} cents and the provider {paid}")
