"""Settling: interleavings forced, and what becomes of money and row in each. Real database, real provider's books."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from tallystick.errors import Unreachable
from tallystick.movement.steps import Patience
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import Done, Looked, Lookup, Sending, Transfer
from tallystick.settings import Limits
from tallystick.settlement.store import figures
from tallystick.settlement.tick import store as settling
from tallystick.settlement.tick.flow import Ticked
from tests import servers
from tests.faults.wire import Cut, wire
from tests.ledgers import broken
from tests.providers.worlds import Control, leave
from tests.sends import send_alone
from tests.settlements import A_DAY, A_WHILE, Shop, books, ledger_differences, pass_time, shop

AMOUNT = 12_340_000
IN_TRANSIT = "in_transit:EUR:simulator"
PAID_OUT = "paid_out:EUR:simulator"
STUCK_AFTER = timedelta(seconds=300)
ONE_LANE = Limits(settlement_lanes=1)


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
def worker(dsn: str, control: Control) -> Callable[..., AbstractAsyncContextManager[Shop]]:
    """A process that settles; several on one database are several workers."""

    def worker(name: str = "a", **options: Any) -> AbstractAsyncContextManager[Shop]:
        return shop(dsn, control, by=name, **options)

    return worker


Worker = Callable[..., AbstractAsyncContextManager[Shop]]


class Held:
    """A place where a worker is held: it says that it is there, and goes on when it is let go."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._let_go = asyncio.Event()

    async def wait(self) -> None:
        self._reached.set()
        await self._let_go.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(30):
            await self._reached.wait()

    def let_go(self) -> None:
        self._let_go.set()


def around(one: Shop, *, before: Callable[[], Awaitable[None]] | None = None, held: Held | None = None) -> list[bytes]:
    """Have something done before a worker's sends, or hold it after their answers. Returns the keys that it sends."""
    provider: Any = one.providers["simulator"]
    original, keys = provider.send, []

    async def send(instruction: Transfer, sending: Sending) -> Any:
        if before is not None:
            await before()
        keys.append(instruction.key)
        answer = await original(instruction, sending)
        if held is not None:
            await held.wait()
        return answer

    provider.send = send
    return keys


def facts(one: Shop, **changed: Any) -> None:
    """Have the provider's facts be others."""
    provider: Any = one.providers["simulator"]
    provider.facts = msgspec.structs.replace(provider.facts, **changed)


def simulated(one: Shop) -> Provider:
    return one.providers["simulator"]


async def state(one: Shop, name: str) -> tuple[str, int, int]:
    """Status, claim number and tries of a row."""
    async with one.database.owning() as connection:
        row = await connection.fetchrow(
            "SELECT status, claim_number, tries FROM tally.settlement_state JOIN tally.settlement s"
            " USING (tenant_id, number) WHERE s.id = $1",
            name.removeprefix("st_"),
        )
    assert row is not None
    return row["status"], row["claim_number"], row["tries"]


async def is_sound(dsn: str) -> bool:
    return not await broken(dsn) and not await ledger_differences(dsn)


# --- claims


async def test_two_claims_at_once_share_no_row_and_neither_waits(worker: Worker) -> None:
    """The second comes while the first's transaction is open: it takes what is left, at once."""
    async with worker("a") as a, worker("b") as b:
        made = {(await a.create(f"p{number}")).id for number in range(4)}

        async def claim(connection: Any, most: int) -> set[str]:
            claimed = await settling.claim(
                connection, "simulator", after=0, most=most, stuck_after=STUCK_AFTER, token=uuid4(), by="test"
            )
            assert all(row.claim_number == 1 for row in claimed)
            return {row.name for row in claimed}

        async with a.database.writing() as first:
            mine = await claim(first, 2)
            async with b.database.writing() as second:
                others = await claim(second, 4)
                assert await claim(second, 4) == set()
        assert len(mine) == len(others) == 2
        assert mine | others == made


async def test_two_recoveries_at_once_share_no_row_and_neither_waits(worker: Worker, control: Control) -> None:
    async with worker("a") as a, worker("b") as b:
        made = {(await a.create(f"p{number}")).id for number in range(4)}
        control.plan("stripe.transfer:drop_before@1-4")
        assert (await a.tick()).waiting == 4
        await pass_time(a.dsn, A_WHILE)

        async def reclaim(connection: Any, most: int, by: str) -> set[str]:
            rows, _ = await settling.reclaim(
                connection,
                "simulator",
                most=most,
                stuck_after=STUCK_AFTER,
                token=uuid4(),
                by=by,
                due_before=None,
            )
            return {row.name for row in rows}

        async with a.database.writing() as first:
            mine = await reclaim(first, 2, "a")
            async with b.database.writing() as second:
                others = await reclaim(second, 4, "b")
        assert len(mine) == len(others) == 2
        assert mine | others == made


async def test_what_is_sent_is_claimed_and_posted_before_its_first_byte_leaves(worker: Worker) -> None:
    """Asked over a connection of its own, at the moment before the bytes leave."""
    seen: list[Any] = []

    async with worker() as one:
        view = await one.create("p")

        async def look() -> None:
            connection = await asyncpg.connect(one.dsn)
            seen.append(
                await connection.fetchrow(
                    "SELECT st.status, st.claim_number, a.number, a.answer, a.not_after > clock_timestamp() AS may,"
                    "       i.key = s.key AS same_key, t.balance_micros"
                    "  FROM tally.settlement s JOIN tally.settlement_state st USING (tenant_id, number)"
                    "  LEFT JOIN tally.intent i ON i.tenant_id = s.tenant_id AND i.subject = s.id"
                    "  LEFT JOIN tally.attempt a ON a.tenant_id = s.tenant_id AND a.key = i.key"
                    "  LEFT JOIN tally.account t ON t.id = $1",
                    f"settlement:{IN_TRANSIT}",
                )
            )
            await connection.close()

        around(one, before=look)
        assert (await one.tick()).transferred == 1
        assert [tuple(row) for row in seen] == [("processing", 1, 1, None, True, True, AMOUNT)]
        assert len(one.moved(view)) == 1


# --- fences, late answers


async def stuck_behind(a: Shop, b: Shop, control: Control, held: Held) -> "asyncio.Task[Ticked]":
    """Worker a has its answer and is held; b has taken the row over, asked, and could not be answered."""
    around(a, held=held)
    late = asyncio.create_task(a.tick())
    await held.reached()
    await pass_time(a.dsn, A_WHILE)
    control.plan("stripe.list:gateway_503@1")
    took = await b.tick()
    assert (took.reclaimed, took.looked_up, took.waiting, took.sent) == (1, 1, 1, 0)
    return late


async def test_the_worker_that_lost_its_claim_changes_nothing(worker: Worker, control: Control) -> None:
    async with worker("a") as a, worker("b") as b:
        view, held = await a.create("p"), Held()
        late = await stuck_behind(a, b, control, held)
        before = await state(a, view.id)
        held.let_go()
        ticked = await late
        assert (ticked.sent, ticked.transferred, ticked.late) == (1, 0, 1)
        assert await state(a, view.id) == before
        assert before[:2] == ("processing", 2)
        assert (await a.balances())[IN_TRANSIT] == AMOUNT
        assert await is_sound(a.dsn)


async def test_a_late_answer_is_kept_as_evidence_and_believed(worker: Worker, control: Control) -> None:
    async with worker("a") as a, worker("b") as b:
        view, held = await a.create("p"), Held()
        late = await stuck_behind(a, b, control, held)
        held.let_go()
        await late
        assert await a.attempts(view) == ["done"]
        assert [event.what for event in await a.history(view)] == ["looked_up", "late_answer"]
        await pass_time(a.dsn, A_WHILE)
        ticked = await b.tick()
        # Nobody has to be asked again, and nothing is sent.
        assert (ticked.looked_up, ticked.sent, ticked.transferred) == (0, 0, 1)
        (moved,) = a.moved(view)
        assert (await a.read(view.id)).transfer_id == moved.id
        assert await is_sound(a.dsn)


async def test_a_late_answer_after_the_row_was_finished_changes_nothing(worker: Worker) -> None:
    """The successor found it in the books; the answer says the same."""
    async with worker("a") as a, worker("b") as b:
        view, held = await a.create("p"), Held()
        around(a, held=held)
        late = asyncio.create_task(a.tick())
        await held.reached()
        await pass_time(a.dsn, A_WHILE)
        assert (await b.tick()).transferred == 1
        before = await state(a, view.id), await a.balances()
        held.let_go()
        assert (await late).late == 1
        assert (await state(a, view.id), await a.balances()) == before
        assert len(a.moved(view)) == 1
        assert await is_sound(a.dsn)


async def test_the_sender_that_lost_its_claim_while_asking_does_not_send(worker: Worker, control: Control) -> None:
    """Both find it absent; the first was held over its question, and the second has sent it."""
    async with worker("a") as a, worker("b") as b:
        view, held = await a.create("p"), Held()
        control.plan("stripe.transfer:drop_before@1")
        await a.tick()
        await pass_time(a.dsn, A_WHILE)
        provider: Any = simulated(a)
        ask = provider.look_up

        async def look_up(*arguments: Any, **more: Any) -> Looked:
            looked: Looked = await ask(*arguments, **more)
            await held.wait()
            return looked

        provider.look_up = look_up
        keys = around(a)
        late = asyncio.create_task(a.tick())
        await held.reached()
        await pass_time(a.dsn, A_WHILE)
        assert (await b.tick()).transferred == 1
        held.let_go()
        ticked = await late
        assert (ticked.looked_up, ticked.sent, keys) == (1, 0, [])
        assert len(a.moved(view)) == 1
        assert await is_sound(a.dsn)


# --- the permit to send


async def test_a_worker_that_was_stopped_before_its_bytes_sends_nothing(worker: Worker) -> None:
    """Stopped between commit and write: its permit has run out, by the clock that goes on while it is stopped."""
    async with worker(limits=Limits(send_seconds=0.2)) as one:
        view = await one.create("p")

        async def stop() -> None:
            until = steady() + 0.2
            while steady() < until:
                await asyncio.sleep(0.01)

        around(one, before=stop)
        ticked = await one.tick()
        assert (ticked.waiting, ticked.transferred) == (1, 0)
        assert one.moved(view) == []
        assert await one.attempts(view) == ["busy"]
        assert await state(one, view.id) == ("processing", 1, 0)


async def test_while_one_may_be_writing_its_successor_neither_asks_nor_sends(worker: Worker) -> None:
    """Taken over sooner than its permit ends: its absence would prove nothing, and two could write at once."""
    hasty = Patience(stuck_after=timedelta(0), budget=8)
    async with worker("a", patience=hasty) as a, worker("b", patience=hasty) as b:
        view, held = await a.create("p"), Held()
        around(a, before=held.wait)
        first = asyncio.create_task(a.tick())
        await held.reached()
        ticked = await b.tick()
        assert (ticked.reclaimed, ticked.looked_up, ticked.sent, ticked.waiting) == (1, 0, 0, 1)
        held.let_go()
        assert (await first).late == 1
        assert len(a.moved(view)) == 1


# --- unknown outcomes


@pytest.mark.parametrize("fault", ["error_500_no_object", "execute_then_500", "gateway_503", "in_flight", "html_200"])
async def test_an_unknown_outcome_is_not_a_failure(worker: Worker, control: Control, fault: str) -> None:
    """Calling it failed would give back money that the provider may have paid."""
    async with worker() as one:
        view = await one.create("p")
        control.plan(f"stripe.transfer:{fault}@1")
        ticked = await one.tick()
        assert (ticked.waiting, ticked.failed) == (1, 0)
        assert await state(one, view.id) == ("processing", 1, 1)
        assert (await one.balances())[IN_TRANSIT] == AMOUNT


async def test_what_is_proven_absent_is_sent_once_more_under_the_same_key(worker: Worker, control: Control) -> None:
    async with worker() as one:
        view = await one.create("p")
        keys = around(one)
        control.plan("stripe.transfer:drop_before@1")
        assert (await one.tick()).waiting == 1
        await pass_time(one.dsn, A_WHILE)
        ticked = await one.tick()
        assert (ticked.looked_up, ticked.sent, ticked.transferred) == (1, 1, 1)
        assert keys == [bytes.fromhex(view.idempotency_key)] * 2
        # The evidence that it might be sent was stored with the attempt.
        assert [event.what for event in await one.history(view)] == ["looked_up"]
        assert (await one.balances())[PAID_OUT] == AMOUNT
        assert len(one.moved(view)) == 1
        assert await is_sound(one.dsn)


async def test_what_was_paid_and_never_answered_is_found_not_sent(worker: Worker, control: Control) -> None:
    async with worker() as one:
        view = await one.create("p")
        control.plan("stripe.transfer:execute_then_drop@1")
        assert (await one.tick()).waiting == 1
        await pass_time(one.dsn, A_WHILE)
        ticked = await one.tick()
        assert (ticked.looked_up, ticked.sent, ticked.transferred) == (1, 0, 1)
        (moved,) = one.moved(view)
        assert (await one.read(view.id)).transfer_id == moved.id


async def test_absence_proves_nothing_while_the_first_may_be_on_its_way(worker: Worker, control: Control) -> None:
    """The request lies in a proxy for minutes; the books show nothing; then it arrives."""
    async with worker() as one:
        view = await one.create("p")
        facts(one, longest_in_flight=timedelta(minutes=30))
        control.plan("stripe.transfer:drop_before@1")
        await one.tick()
        await pass_time(one.dsn, A_WHILE)
        ticked = await one.tick()
        assert (ticked.looked_up, ticked.sent, ticked.waiting) == (1, 0, 1)
        instruction = Transfer(
            key=bytes.fromhex(view.idempotency_key),
            destination=view.destination,
            amount_micros=view.amount_micros,
            currency=view.currency,
            description=view.id,
        )
        assert isinstance(await simulated(one).send(instruction, leave()), Done)
        await pass_time(one.dsn, A_WHILE)
        ticked = await one.tick()
        assert (ticked.looked_up, ticked.sent, ticked.transferred) == (1, 0, 1)
        assert len(one.moved(view)) == 1


async def test_a_busy_provider_neither_resolves_an_unknown_nor_spends_its_budget(
    worker: Worker, control: Control
) -> None:
    """The last word is "too many requests", and the first attempt may have been paid all the same."""
    async with worker(patience=Patience(stuck_after=STUCK_AFTER, budget=2)) as one:
        view = await one.create("p")
        control.plan("stripe.transfer:drop_before@1")
        await one.tick()
        for _ in range(3):
            status, _, tries = await state(one, view.id)
            assert (status, tries) == ("processing", 1)
            await pass_time(one.dsn, A_WHILE)
            control.plan("stripe.transfer:rate_limited@1")
            ticked = await one.tick()
            # Asked again each time: a Busy says nothing of the attempt before it.
            assert (ticked.looked_up, ticked.sent, ticked.waiting, ticked.failed) == (1, 1, 1, 0)
        await pass_time(one.dsn, A_WHILE)
        assert (await one.tick()).transferred == 1
        assert await one.attempts(view) == ["unknown", "busy", "busy", "busy", "done"]
        assert len(one.moved(view)) == 1


# --- the horizon


async def test_past_the_horizon_nothing_is_sent_blindly(worker: Worker, control: Control) -> None:
    """Paid, never answered, nobody to ask, and the provider has forgotten the key: a second send would pay twice."""
    async with worker() as one:
        view = await one.create("p")
        facts(one, lookup=dict.fromkeys(simulated(one).facts.lookup, Lookup.NONE))
        control.plan("stripe.transfer:execute_then_drop@1")
        assert (await one.tick()).waiting == 1
        await one.pass_time(A_DAY + A_WHILE)
        keys = around(one)
        ticked = await one.tick()
        assert (ticked.sent, ticked.disputed, keys) == (0, 1, [])
        found = await one.read(view.id)
        assert (found.status, found.reason) == ("disputed", "past_the_horizon")
        assert (await one.balances())[IN_TRANSIT] == AMOUNT
        assert len(one.moved(view)) == 1
        assert await is_sound(one.dsn)


async def test_the_horizon_may_pass_while_the_provider_is_asked(worker: Worker, control: Control) -> None:
    """The decision to send was right when it was made; what stands at the row forbids it."""
    async with worker() as one:
        view = await one.create("p")
        control.plan("stripe.transfer:drop_before@1")
        await one.tick()
        await one.pass_time(A_WHILE)
        provider: Any = simulated(one)
        ask = provider.look_up

        async def look_up(*arguments: Any, **more: Any) -> Looked:
            looked: Looked = await ask(*arguments, **more)
            await one.pass_time(A_DAY)
            return looked

        provider.look_up = look_up
        keys = around(one)
        ticked = await one.tick()
        # Asked once more past the horizon, and then it is clear that nobody can tell.
        assert (ticked.looked_up, ticked.sent, ticked.disputed, keys) == (2, 0, 1, [])
        assert (await one.read(view.id)).reason == "past_the_horizon"
        assert one.moved(view) == []


# --- the database goes away


@pytest.mark.parametrize("cut", Cut)
async def test_a_result_whose_commit_was_lost_is_posted_once(dsn: str, control: Control, cut: Cut) -> None:
    """The group is run again; claim and keys make it happen once, whether or not the COMMIT had arrived."""
    async with shop(dsn, control):
        pass
    # With one lane, the transaction after the claim's is the one that records the answer.
    async with wire(dsn) as (cable, address), shop(address, control, limits=ONE_LANE) as one:
        view = await one.create("p")

        async def arm() -> None:
            cable.cut_next = cut

        around(one, before=arm)
        ticked = await one.tick()
        assert cable.cuts == 1
        assert (ticked.transferred, ticked.late) == (1, 0)
        assert (await one.balances()) == {"clearing:EUR": -AMOUNT, PAID_OUT: AMOUNT}
        assert (await one.read(view.id)).status == "transferred"
        assert len(one.moved(view)) == 1
    assert await is_sound(dsn)


@pytest.mark.parametrize("cut", Cut)
async def test_nothing_is_sent_when_nobody_knows_whether_the_claim_was_committed(
    dsn: str, control: Control, cut: Cut
) -> None:
    async with shop(dsn, control):
        pass
    # With one lane, the first transaction of a tick is the claim's.
    async with wire(dsn) as (cable, address), shop(address, control, limits=ONE_LANE) as one:
        view = await one.create("p")
        keys = around(one)
        cable.cut_next = cut
        with pytest.raises(Unreachable):
            await one.tick()
        assert cable.cuts == 1
        assert keys == []
        assert one.moved(view) == []
        claimed = "processing" if cut is Cut.AFTER_COMMIT else "pending"
        assert (await one.read(view.id)).status == claimed
        await pass_time(dsn, A_WHILE)
        assert (await one.tick()).transferred == 1
        assert len(one.moved(view)) == 1
    assert await is_sound(dsn)


async def test_two_ticks_at_once_send_each_payout_once(worker: Worker) -> None:
    """Not forced: many rows, small chunks, two workers, and every single send counted."""
    small = Limits(settlement_chunk=7, settlement_lanes=2)
    async with worker("a", limits=small) as a, worker("b", limits=small) as b:
        await a.create_many(200)
        keys = around(a), around(b)
        first, second = await asyncio.gather(a.tick(), b.tick())
        assert first.claimed + second.claimed == first.transferred + second.transferred == 200
        assert len(set(keys[0]) | set(keys[1])) == len(keys[0]) + len(keys[1]) == 200
        halves = await a.halves()
        assert halves.is_equal
        assert halves.statuses == {"transferred": 200}
        assert await is_sound(a.dsn)


async def test_what_moved_twice_is_counted_where_it_wakes_somebody(worker: Worker, control: Control) -> None:
    async with worker() as one:
        view = await one.create("p")
        control.plan("stripe.transfer:execute_then_drop@1")
        await one.tick()
        again = Transfer(
            key=bytes.fromhex(view.idempotency_key),
            destination=view.destination,
            amount_micros=view.amount_micros,
            currency=view.currency,
            description=view.id,
        )
        control.plan("stripe.transfer:forget_key@1")
        assert isinstance(await simulated(one).send(again, leave()), Done)
        await pass_time(one.dsn, A_WHILE)
        await one.tick()
        assert (await one.read(view.id)).reason == "moved_twice"
        counts, _, _ = await figures(one.database)
        assert counts["doubles"] == 1


async def test_a_key_that_covers_another_instruction_is_counted_and_sends_nothing(worker: Worker) -> None:
    async with worker() as one:
        view = await one.create("p")
        other = Transfer(
            key=bytes.fromhex(view.idempotency_key),
            destination=view.destination,
            amount_micros=view.amount_micros + 10_000,
            currency=view.currency,
        )
        provider = one.providers["simulator"]
        await send_alone(one.database, one.sender, provider, one.tenant, other, since=view.created_at, name="simulator")
        await one.tick()
        await pass_time(one.dsn, A_WHILE)
        await one.tick()
        assert (await one.read(view.id)).reason == "key_collision"
        counts, _, _ = await figures(one.database)
        assert counts["key_collisions"] == 1
        assert len(books(one.control)) == 1
