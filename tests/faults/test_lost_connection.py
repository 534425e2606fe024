"""The database goes away before, during and after COMMIT: exact all the same."""

import asyncio

import pytest

from tallystick.errors import OutcomeUnknown, TallystickError, Unreachable
from tallystick.ledger.kinds import Transfer
from tallystick.ledger.outcome import Committed, Duplicate
from tallystick.settings import Limits
from tests import servers
from tests.faults.wire import Cut, wire
from tests.ledgers import broken, fetchval, ledger

SHORT_OUTAGE = Limits(lanes=1, outage_seconds=0.3)


def move(amount: int = 1) -> Transfer:
    return Transfer(debit="a", credit="b", amount_micros=amount, currency="USD")


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.mark.parametrize("size", [1, 40], ids=["statement path", "copy path"])
@pytest.mark.parametrize("cut", Cut)
async def test_a_cut_wire_is_repaired_without_the_callers_noticing(dsn: str, cut: Cut, size: int) -> None:
    """The batch is run again; the keys make it happen once, whether or not the COMMIT had arrived."""
    async with wire(dsn) as (cable, address), ledger(address, limits=Limits(lanes=1)) as one:
        await one.account("a", 1_000)
        await one.account("b")
        cable.cut_next = cut
        answers = await asyncio.gather(*(one.submit(move(), f"k{i}") for i in range(size)))
        assert cable.cuts == 1
        expected = Duplicate if cut is Cut.AFTER_COMMIT else Committed
        assert {type(answer) for answer in answers[1:]} <= {Committed, expected}
        assert all(isinstance(answer, Committed | Duplicate) for answer in answers)
        again = await asyncio.gather(*(one.submit(move(), f"k{i}") for i in range(size)))
        assert [answer.body for answer in again] == [answer.body for answer in answers]
        assert await one.balance("b") == size
    assert await broken(dsn) == {}


@pytest.mark.parametrize(
    ("cut", "told", "then"),
    [
        (Cut.AT_BEGIN, Unreachable, Committed),
        (Cut.BEFORE_COMMIT, OutcomeUnknown, Committed),
        (Cut.AFTER_COMMIT, OutcomeUnknown, Duplicate),
    ],
)
async def test_a_caller_is_told_what_is_known_and_the_same_key_is_exact(
    dsn: str, cut: Cut, told: type[TallystickError], then: type
) -> None:
    """After an outage around COMMIT nobody can say what happened; saying "failed" would invite a second payment."""
    async with wire(dsn) as (cable, address), ledger(address, limits=SHORT_OUTAGE) as one:
        await one.account("a", 1_000)
        await one.account("b")
        cable.cut_next, cable.down_after_cut = cut, True
        with pytest.raises(told, match="same key"):
            await one.submit(move(), "k")
        cable.is_down = False
        assert isinstance(await one.submit(move(), "k"), then)
        assert isinstance(await one.submit(move(), "k"), Duplicate)
        assert await one.balance("b") == 1
    assert await broken(dsn) == {}


async def test_a_database_that_was_never_there_moves_nothing(dsn: str) -> None:
    async with wire(dsn) as (cable, address), ledger(address, limits=SHORT_OUTAGE) as one:
        await one.account("a", 10)
        await one.account("b")
        async with one.database.connection() as connection:
            connection.terminate()
        cable.is_down = True
        for lost in range(3):
            with pytest.raises((Unreachable, OutcomeUnknown)):
                await one.submit(move(), f"k{lost}")
        assert await fetchval(dsn, "SELECT count(*) FROM tally.operation WHERE key LIKE 'k%'") == 0
