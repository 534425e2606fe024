"""Whose money a payout is: its source is debited in the commit that promises it, and nothing is promised without it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

import tallystick
from tallystick.authority import store as authority
from tallystick.authority.rules import Ceiling, Policy
from tallystick.errors import CallerTransaction, InFlight
from tallystick.ledger.outcome import Rejected
from tests import servers
from tests.ledgers import broken, fetchval, ledger
from tests.providers.worlds import Control
from tests.settlements import shop

SELLER = "seller:amber"
GROSS = 12_340_000


@pytest.fixture(params=["embedded18", "postgres15"])
def dsn(request: pytest.FixtureRequest) -> str:
    server: servers.Server = request.getfixturevalue(request.param)
    return server.fresh_database()


@pytest.fixture
async def tally(dsn: str) -> AsyncIterator[tallystick.Tally]:
    async with tallystick.open(database_url=dsn) as opened:
        await opened.put_account("bank", currency="EUR", floor_micros=None)
        yield opened


@pytest.fixture
async def connection(dsn: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    opened = await asyncpg.connect(dsn)
    yield opened
    await opened.close()


async def _hold(tally: tallystick.Tally, account: str, micros: int) -> None:
    await tally.put_account(account, currency="EUR")
    came_in = tallystick.TopUp(account=account, source="bank", amount_micros=micros, currency="EUR")
    assert isinstance(await tally.submit(came_in, idempotency_key=f"fund-{account}"), tallystick.Committed)


async def _pay(
    tally: tallystick.Tally,
    attribution: str = "a-1",
    *,
    source: str | None = SELLER,
    key: str = "",
    gross_micros: int = GROSS,
    connection: "asyncpg.Connection[asyncpg.Record] | None" = None,
) -> tallystick.SettlementMade | Rejected:
    return await tally.create_settlement(
        attribution_id=attribution,
        squad_id="amber",
        gross_micros=gross_micros,
        currency="EUR",
        destination="acct_good",
        source=source,
        idempotency_key=key or f"pay-{attribution}",
        connection=connection,
    )


async def _balance(tally: tallystick.Tally, account: str) -> int:
    found = await tally.account(account)
    assert not isinstance(found, Rejected), found
    return found.balance_micros


def _code(answer: tallystick.SettlementMade | Rejected) -> str:
    return answer.code if isinstance(answer, Rejected) else "made"


async def test_a_payout_debits_its_source_and_never_clearing(
    tally: tallystick.Tally, dsn: str, control: Control
) -> None:
    await _hold(tally, SELLER, 20_000_000)
    made = await _pay(tally)
    assert isinstance(made, tallystick.SettlementMade)
    assert made.view.source == SELLER
    assert await _balance(tally, SELLER) == 20_000_000 - GROSS
    assert await fetchval(dsn, "SELECT count(*) FROM tally.account WHERE id LIKE 'settlement:clearing:%'") == 0
    async with shop(dsn, control) as worker:
        await worker.tick()
        assert [one.amount_micros for one in worker.moved(made.view)] == [GROSS]
    assert await _balance(tally, "settlement:paid_out:EUR:simulator") == GROSS
    assert await broken(dsn) == {}


@pytest.mark.parametrize("source", [SELLER, None])
async def test_what_is_not_there_is_not_promised(tally: tallystick.Tally, dsn: str, source: str | None) -> None:
    """Refused, it leaves no trace, and the key may be used again."""
    account = source or "settlement:clearing:EUR"
    if source is not None:
        await _hold(tally, account, GROSS - 1)
    before = await fetchval(dsn, "SELECT count(*) FROM tally.account")
    refused = await _pay(tally, source=source)
    assert _code(refused) == "insufficient_funds"
    assert await fetchval(dsn, "SELECT count(*) FROM tally.settlement") == 0
    assert await fetchval(dsn, "SELECT count(*) FROM tally.account") == before
    if source is None:
        await _hold(tally, account, GROSS)
    else:
        more = tallystick.TopUp(account=account, source="bank", amount_micros=1, currency="EUR")
        await tally.submit(more, idempotency_key="more")
    assert _code(await _pay(tally, source=source)) == "made"
    assert await _balance(tally, account) == 0


async def test_of_a_batch_only_what_there_is_money_for_is_promised(tally: tallystick.Tally, dsn: str) -> None:
    await _hold(tally, SELLER, 3 * GROSS)
    answers = await asyncio.gather(*(_pay(tally, f"a-{number}") for number in range(40)))
    assert sorted(map(_code, answers)) == ["insufficient_funds"] * 37 + ["made"] * 3
    assert await _balance(tally, SELLER) == 0
    assert await fetchval(dsn, "SELECT count(*) FROM tally.settlement_state") == 3
    assert await broken(dsn) == {}


async def test_another_source_is_another_payout(tally: tallystick.Tally) -> None:
    await _hold(tally, SELLER, 2 * GROSS)
    await _hold(tally, "seller:birch", 2 * GROSS)
    made = await _pay(tally)
    again, other_key, other_source = (
        await _pay(tally),
        await _pay(tally, key="another"),
        await _pay(tally, key="third", source="seller:birch"),
    )
    assert isinstance(made, tallystick.SettlementMade)
    assert isinstance(again, tallystick.SettlementMade)
    assert isinstance(other_key, tallystick.SettlementMade)
    assert (again.view, again.is_replayed, other_key.is_new) == (made.view, True, False)
    assert isinstance(other_source, Rejected)
    assert (other_source.code, other_source.fields) == ("settlement_conflict", ("source",))
    reused = await _pay(tally, source="seller:birch")
    assert isinstance(reused, Rejected)
    assert (reused.code, reused.fields) == ("key_reused", ("source",))
    assert (await _balance(tally, SELLER), await _balance(tally, "seller:birch")) == (GROSS, 2 * GROSS)


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("nobody", "account_unknown"),
        ("settlement:payable:EUR:amber", "account_reserved"),
        ("checkout:taken:EUR", "account_reserved"),
        ("no such id", "account_invalid"),
        ("dollars", "currency_mismatch"),
    ],
)
async def test_a_source_is_an_account_of_the_tenants_own_in_that_currency(
    tally: tallystick.Tally, source: str, code: str
) -> None:
    await tally.put_account("dollars", currency="USD", floor_micros=None)
    assert _code(await _pay(tally, source=source)) == code


async def test_a_payout_in_the_callers_transaction_is_committed_with_his_rows(
    tally: tallystick.Tally, dsn: str, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await _hold(tally, SELLER, 2 * GROSS)
    await connection.execute("CREATE TABLE invoice (id text)")
    with pytest.raises(ZeroDivisionError):
        async with connection.transaction():
            await connection.execute("INSERT INTO invoice VALUES ('lost')")
            assert _code(await _pay(tally, connection=connection)) == "made"
            raise ZeroDivisionError
    assert await fetchval(dsn, "SELECT count(*) FROM tally.settlement") == 0
    assert await _balance(tally, SELLER) == 2 * GROSS
    async with connection.transaction():
        await connection.execute("INSERT INTO invoice VALUES ('paid')")
        assert _code(await _pay(tally, connection=connection)) == "made"
        # Refused, it takes nothing of his with it.
        assert _code(await _pay(tally, "a-2", gross_micros=3 * GROSS, connection=connection)) == "insufficient_funds"
    assert await fetchval(dsn, "SELECT string_agg(id, ' ') FROM invoice") == "paid"
    assert await fetchval(dsn, "SELECT count(*) FROM tally.settlement_state WHERE status = 'pending'") == 1
    assert await _balance(tally, SELLER) == GROSS
    assert await fetchval(dsn, "SELECT count(*) FROM tally.journal WHERE author LIKE 'unknown%'") == 0
    again = await _pay(tally)
    assert isinstance(again, tallystick.SettlementMade)
    assert again.is_replayed
    assert await broken(dsn) == {}


async def _bound(dsn: str, **policy: Any) -> None:
    async with ledger(dsn) as books:
        assert await authority.put(books.database, books.tenant, Policy(**policy), by="test") is None


async def test_a_tenants_policy_binds_payouts_in_the_callers_transaction_too(
    tally: tallystick.Tally, dsn: str, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """And what he does to his transaction afterwards: rolled back, it counts for no day."""
    await _hold(tally, SELLER, 4 * GROSS)
    await _bound(dsn, known_destinations=True)
    async with connection.transaction():
        assert _code(await _pay(tally, connection=connection)) == "destination_unknown"
    await _bound(dsn, ceilings=(Ceiling(currency="EUR", payout_micros=GROSS, day_micros=GROSS),))
    await connection.execute("BEGIN")
    assert _code(await _pay(tally, gross_micros=GROSS + 1, connection=connection)) == "payout_above_ceiling"
    assert _code(await _pay(tally, connection=connection)) == "made"
    # The same day's ceiling, in another transaction and alone: whoever comes second sees what the first promised.
    beside = asyncio.create_task(_pay(tally, "a-2"))
    done, _ = await asyncio.wait([beside], timeout=0.2)
    assert not done
    await connection.execute("COMMIT")
    assert _code(await beside) == "day_ceiling_reached"
    async with connection.transaction():
        assert _code(await _pay(tally, "a-3", connection=connection)) == "day_ceiling_reached"
    await _bound(dsn, ceilings=(Ceiling(currency="EUR", day_micros=2 * GROSS),))
    with pytest.raises(ZeroDivisionError):
        async with connection.transaction():
            assert _code(await _pay(tally, "a-4", connection=connection)) == "made"
            raise ZeroDivisionError
    assert _code(await _pay(tally, "a-5")) == "made"
    assert await fetchval(dsn, "SELECT used_micros FROM tally.authority_ceiling") == 2 * GROSS
    assert await broken(dsn) == {}


async def test_nobody_waits_long_for_a_payout_in_a_callers_transaction(
    tally: tallystick.Tally, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    """He holds his seller's account; another seller's payout is promised meanwhile."""
    await _hold(tally, SELLER, 2 * GROSS)
    await _hold(tally, "seller:birch", 2 * GROSS)
    # The accounts that both need are there before.
    assert _code(await _pay(tally, "a-0", source="seller:birch")) == "made"
    await connection.execute("BEGIN")
    assert _code(await _pay(tally, connection=connection)) == "made"
    waiting = asyncio.create_task(_pay(tally, "a-2"))
    await asyncio.sleep(0)
    assert not waiting.done()
    await connection.execute("ROLLBACK")
    assert _code(await waiting) == "made"


async def test_a_connection_without_a_transaction_is_refused(
    tally: tallystick.Tally, connection: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    await _hold(tally, SELLER, GROSS)
    with pytest.raises(CallerTransaction):
        await _pay(tally, connection=connection)
    with pytest.raises((CallerTransaction, InFlight)):
        await _pay(tally, connection=object())  # type: ignore[arg-type]
    assert await _balance(tally, SELLER) == GROSS
