"""The gate: a rate that follows the provider, a bound on calls at once, and no wait longer than the permit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.providers.gate import BURST_SECONDS, Bucket, Gate, TooLong
from tallystick.providers.steady import steady


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    bucket = Bucket(100, now=0)
    waits = [bucket.take(0) for _ in range(45)]
    assert waits[: int(100 * BURST_SECONDS)] == [0] * int(100 * BURST_SECONDS)
    assert waits[-1] == pytest.approx(20 / 100)


@given(st.floats(1, 1000), st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_no_more_is_let_through_than_burst_and_rate(per_second: float, gaps: list[float]) -> None:
    bucket, now, starts = Bucket(per_second, now=0), 0.0, []
    for gap in gaps:
        now += gap
        starts.append(now + bucket.take(now))
    first, last = min(starts), max(starts)
    assert len(starts) <= max(1.0, per_second * BURST_SECONDS) + per_second * (last - first) + 1.001


def test_a_429_closes_it_for_as_long_as_asked_and_halves_the_rate() -> None:
    bucket = Bucket(100, now=0)
    bucket.slow_down(10, retry_after_seconds=3)
    assert bucket.rate == 50
    assert bucket.take(10) == pytest.approx(3)
    assert bucket.closed_for(13) == 0


def test_many_429s_of_one_burst_halve_the_rate_once() -> None:
    bucket = Bucket(100, now=0)
    for _ in range(50):
        bucket.slow_down(10, retry_after_seconds=0)
    assert bucket.rate == 50


def test_the_rate_recovers_and_never_passes_its_full_value() -> None:
    bucket = Bucket(100, now=0)
    bucket.slow_down(0, retry_after_seconds=0)
    bucket.take(1)
    assert bucket.rate == pytest.approx(60)
    bucket.take(100)
    assert bucket.rate == 100


def test_the_rate_never_falls_to_nothing() -> None:
    bucket = Bucket(4, now=0)
    for second in range(20):
        bucket.slow_down(second, retry_after_seconds=0)
    assert bucket.rate >= 1


def test_a_429_never_makes_a_slow_account_faster() -> None:
    bucket = Bucket(0.5, now=0)
    bucket.slow_down(10, retry_after_seconds=0)
    assert bucket.rate <= 0.5


@asynccontextmanager
async def turn(gate: Gate, until: float) -> AsyncIterator[None]:
    await gate.enter(until)
    try:
        yield
    finally:
        gate.leave()


async def test_whoever_gives_up_waiting_gives_his_turn_back() -> None:
    gate = Gate(10, concurrency=1000)
    tasks = [asyncio.create_task(gate.enter(steady() + 600)) for _ in range(200)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with turn(gate, steady() + 2):
        pass


async def test_no_more_than_so_many_are_inside() -> None:
    gate, inside, most = Gate(100_000, concurrency=3), 0, 0

    async def one() -> None:
        nonlocal inside, most
        async with turn(gate, steady() + 5):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(one() for _ in range(50)))
    assert most == 3


async def test_whose_turn_would_come_too_late_is_told_at_once() -> None:
    gate = Gate(1, concurrency=10)
    async with turn(gate, steady() + 1):
        pass
    with pytest.raises(TooLong):
        async with turn(gate, steady() + 0.1):
            pytest.fail("it was let in")


async def test_whoever_waits_for_a_place_waits_no_longer_than_his_leave() -> None:
    gate = Gate(100_000, concurrency=1)
    async with turn(gate, steady() + 1):
        with pytest.raises(TooLong):
            async with turn(gate, steady() + 0.05):
                pytest.fail("it was let in")
    async with turn(gate, steady() + 1):
        pass


async def test_a_place_is_given_back_by_whoever_fails_or_is_cancelled() -> None:
    gate = Gate(100_000, concurrency=1)
    with pytest.raises(RuntimeError):
        async with turn(gate, steady() + 1):
            raise RuntimeError
    async with turn(gate, steady() + 1):
        task = asyncio.create_task(gate.enter(steady() + 60))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    async with turn(gate, steady() + 1):
        pass
