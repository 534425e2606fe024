"""The database goes away before, during and after COMMIT: reserved once, given back once all the same."""

import asyncio

import pytest
import pytest_asyncio

from tallystick.errors import OutcomeUnknown, TallystickError, Unreachable
from tallystick.ledger.outcome import Rejected
from tallystick.settings import Limits
from tests import servers
from tests.faults.wire import Cut, wire
from tests.ledgers import broken
from tests.orders import A_MOMENT, NONE, code, emptied, encoded, expired, orders_of, store, wish


@pytest.fixture(scope="module")
def fresh(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest_asyncio.fixture
async def dsn(fresh: str) -> str:
    return await emptied(fresh)


@pytest.mark.parametrize("size", [1, 40], ids=["statement", "copy"])
@pytest.mark.parametrize("cut", Cut)
async def test_a_wire_cut_around_commit_is_repaired_without_the_buyers_noticing(dsn: str, cut: Cut, size: int) -> None:
    """The batch is run again, and the keys make it happen once, whether or not the COMMIT had arrived."""
    async with store(dsn) as direct, wire(dsn) as (cable, address), store(address, limits=Limits(lanes=1)) as shop:
        # Exactly enough: a second effect would not find any.
        await shop.put(size)
        cable.cut_next = cut
        answers = await asyncio.gather(*(shop.reserve(f"k{number}") for number in range(size)))
        assert cable.cuts == 1
        assert {code(answer) for answer in answers} == {"Reserved"}
        assert await direct.figures() == (size, 0, 0)
        again = await asyncio.gather(*(direct.reserve(f"k{number}") for number in range(size)))
        assert [encoded(answer) for answer in again] == [encoded(answer) for answer in answers]
    assert await broken(dsn) == {}


@pytest.mark.parametrize(
    ("cut", "told", "is_made"),
    [
        (Cut.AT_BEGIN, Unreachable, False),
        (Cut.BEFORE_COMMIT, OutcomeUnknown, False),
        (Cut.AFTER_COMMIT, OutcomeUnknown, True),
    ],
)
async def test_a_buyer_is_told_what_is_known_and_the_same_key_is_exact(
    dsn: str,
    cut: Cut,
    told: type[TallystickError],
    is_made: bool,  # noqa: FBT001 - a column of the table
) -> None:
    async with store(dsn) as direct, wire(dsn) as (cable, address):
        async with store(address, limits=Limits(lanes=1, outage_seconds=0.3)) as shop:
            await shop.put(1)
            cable.down_after_cut, cable.cut_next = True, cut
            with pytest.raises(told):
                await shop.reserve("k")
            cable.is_down = False
            assert await orders_of(dsn) == is_made
            answer = await shop.reserve("k")
            assert not isinstance(answer, Rejected), answer
            assert answer.is_replayed is is_made
        assert await direct.figures() == (1, 0, 0)
    assert await broken(dsn) == {}


@pytest.mark.parametrize("cut", Cut)
async def test_a_cancellation_and_a_sweep_cut_around_commit_give_back_once(dsn: str, cut: Cut) -> None:
    async with store(dsn) as direct, wire(dsn) as (cable, address):
        async with store(address, ttl=A_MOMENT, grace=NONE) as shop:
            await shop.put(10)
            view = await shop.made("a", wish(quantity=2))
            await shop.made("b", wish(quantity=3))
            for act in (lambda: shop.orders.cancel(shop.tenant, view.id), shop.orders.sweep):
                await expired(dsn)
                cable.cut_next = cut
                with pytest.raises(Unreachable if cut is Cut.AT_BEGIN else OutcomeUnknown):
                    await act()
                await act()
        assert await direct.figures() == (0, 0, 10)
    assert await broken(dsn) == {}
