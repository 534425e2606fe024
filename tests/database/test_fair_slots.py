"""Slots for reads: a share for each tenant, and turns among those who wait."""

import asyncio
from dataclasses import replace

import pytest

from tallystick.database.fair_slots import OWN, FairSlots
from tallystick.errors import ShareUsed
from tallystick.settings import LIMITS

SMALL = replace(LIMITS, readers_per_tenant=2, reads_waiting_per_tenant=3)


class Reader:
    """Reads until told to stop."""

    def __init__(self, slots: FairSlots, tenant: int) -> None:
        self.reading = asyncio.Event()
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(self._read(slots, tenant))

    async def _read(self, slots: FairSlots, tenant: int) -> None:
        async with slots.slot(tenant):
            self.reading.set()
            await self.stop.wait()

    async def end(self) -> None:
        self.stop.set()
        await self.task


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_tenant_never_has_all() -> None:
    slots = FairSlots(3, SMALL)
    greedy = [Reader(slots, 1) for _ in range(4)]
    await turns()
    assert [one.reading.is_set() for one in greedy] == [True, True, False, False]
    other = Reader(slots, 2)
    await turns()
    assert other.reading.is_set()
    for one in (other, *greedy):
        await one.end()


async def test_who_has_the_fewest_is_next() -> None:
    slots = FairSlots(3, SMALL)
    first = [Reader(slots, 1) for _ in range(2)]
    second = [Reader(slots, 2)]
    await turns()
    late = [Reader(slots, 2), Reader(slots, 3), Reader(slots, OWN)]
    await turns()
    await first[0].end()
    await turns()
    assert [one.reading.is_set() for one in late] == [False, True, False]
    for one in (first[1], *second, late[1]):
        await one.end()
    for one in late:
        await one.end()


async def test_too_many_that_wait_are_told_so_and_the_others_are_not() -> None:
    slots = FairSlots(3, SMALL)
    greedy = [Reader(slots, 1) for _ in range(5)]
    await turns()
    with pytest.raises(ShareUsed):
        async with slots.slot(1):
            pass
    async with slots.slot(2):
        pass
    for one in greedy:
        await one.end()


async def test_who_gives_up_waiting_takes_nothing_with_him() -> None:
    slots = FairSlots(1, SMALL)
    first, second, third = Reader(slots, 1), Reader(slots, 2), Reader(slots, 3)
    await turns()
    second.task.cancel()
    await turns()
    # Cancelled in the very turn in which it would have begun.
    first.stop.set()
    await asyncio.sleep(0)
    third.task.cancel()
    await turns()
    async with asyncio.timeout(5), slots.slot(4):
        pass
    assert slots._free == 1
    assert not slots._waiting
