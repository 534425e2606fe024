"""Settlements from Python: the same promise as over HTTP, on PostgreSQL alone."""

import pytest

import tallystick
from tallystick import sync
from tallystick.errors import Misconfigured
from tallystick.ledger.outcome import Rejected
from tests import servers
from tests.providers.worlds import Control
from tests.settlements import shop


async def _create(
    tally: tallystick.Tally, attribution: str = "a-1", *, key: str = "k-1", gross_micros: int = 12_345_678
) -> tallystick.SettlementMade | Rejected:
    return await tally.create_settlement(
        attribution_id=attribution,
        squad_id="amber",
        gross_micros=gross_micros,
        currency="EUR",
        destination="acct_good",
        idempotency_key=key,
    )


async def _fund(tally: tallystick.Tally, account: str = "settlement:clearing:EUR", micros: int = 10**9) -> None:
    """What came in, before anything goes out."""
    for name, floor in ((account, 0), ("bank", None)):
        assert not isinstance(await tally.put_account(name, currency="EUR", floor_micros=floor), Rejected)
    came_in = tallystick.TopUp(account=account, source="bank", amount_micros=micros, currency="EUR")
    assert isinstance(await tally.submit(came_in, idempotency_key=f"fund-{account}"), tallystick.Committed)


@pytest.mark.parametrize("server", ["embedded18", "postgres15"])
async def test_a_payout_is_promised_once_and_read_as_it_stands(
    server: str, request: pytest.FixtureRequest, control: Control
) -> None:
    found: servers.Server = request.getfixturevalue(server)
    dsn = found.fresh_database()
    async with tallystick.open(database_url=dsn) as tally:
        await _fund(tally)
        made = await _create(tally)
        assert isinstance(made, tallystick.SettlementMade)
        assert (made.is_new, made.is_replayed, made.view.provider) == (True, False, "simulator")
        assert (made.view.amount_micros, made.view.residue_micros) == (12_340_000, 5_678)
        async with shop(dsn, control) as worker:
            await worker.tick()
        again, other = await _create(tally), await _create(tally, key="k-2")
        assert isinstance(again, tallystick.SettlementMade)
        assert isinstance(other, tallystick.SettlementMade)
        assert (again.view, again.is_replayed) == (made.view, True)
        assert (other.is_new, other.view.status, other.view.id) == (False, "transferred", made.view.id)
        assert await tally.settlement(made.view.id) == other.view
        payable = await tally.account("settlement:payable:EUR:amber")
        assert not isinstance(payable, Rejected)
        assert payable.balance_micros == 5_678


async def test_a_refusal_is_a_value(embedded18: servers.Server) -> None:
    async with tallystick.open(database_url=embedded18.fresh_database()) as tally:
        await _fund(tally)
        await _create(tally)
        answers = [
            await _create(tally, key="k-2", gross_micros=5_000_000),
            await _create(tally, "a-2"),
            await _create(tally, "a-2", key="k-2", gross_micros=5),
            await _create(tally, "a-2", key="k-2", gross_micros=True),
            await _create(tally, "a-2", key="k-2", gross_micros=5.0),  # type: ignore[arg-type]
            await _create(tally, "a-2", key=""),
            await tally.settlement("st_1"),
        ]
        assert [answer.code if isinstance(answer, Rejected) else None for answer in answers] == [
            "settlement_conflict",
            "key_reused",
            "net_not_payable",
            "amount_not_integer",
            "amount_not_integer",
            "idempotency_key_missing",
            "settlement_unknown",
        ]


async def test_a_settlement_of_another_tenant_is_not_found(embedded18: servers.Server, control: Control) -> None:
    dsn = embedded18.fresh_database()
    async with shop(dsn, control, tenant="other"), tallystick.open(database_url=dsn) as tally:
        await _fund(tally)
        made = await _create(tally)
        assert isinstance(made, tallystick.SettlementMade)
        async with tallystick.open(database_url=dsn, tenant="other") as stranger:
            answer = await stranger.settlement(made.view.id)
            assert isinstance(answer, Rejected)
            assert answer.code == "settlement_unknown"


async def test_on_mariadb_settlements_are_refused_in_plain_words(mariadb: servers.Server) -> None:
    async with tallystick.open(database_url=mariadb.fresh_database()) as tally:
        with pytest.raises(Misconfigured, match=r"Settlements and orders need PostgreSQL.*Nothing was created"):
            await _create(tally)
        with pytest.raises(Misconfigured, match="Settlements and orders need PostgreSQL"):
            await tally.settlement("st_" + "0" * 32)


def test_the_synchronous_twin_promises_payouts_too(embedded18: servers.Server) -> None:
    with sync.open(database_url=embedded18.fresh_database()) as tally:
        tally.put_account("seller:amber", currency="USD", floor_micros=-5_000_000)
        made = tally.create_settlement(
            attribution_id="a-1",
            squad_id="amber",
            gross_micros=5_000_000,
            currency="USD",
            destination="acct_good",
            provider="simulator",
            source="seller:amber",
            idempotency_key="k-1",
        )
        assert isinstance(made, tallystick.SettlementMade)
        assert made.view.source == "seller:amber"
        assert tally.settlement(made.view.id) == made.view


@pytest.mark.parametrize("server", ["embedded18", "mariadb"])
async def test_an_account_of_settlements_cannot_be_made_by_hand(server: str, request: pytest.FixtureRequest) -> None:
    found: servers.Server = request.getfixturevalue(server)
    async with tallystick.open(database_url=found.fresh_database()) as tally:
        for name, code in (
            ("settlement:payable:EUR:amber", "account_reserved"),
            ("settlement:in_transit:EUR:simulator", "account_reserved"),
            ("settlement:paid_out:EUR:simulator", "account_reserved"),
            ("settlement:clearing:USD", "currency_mismatch"),
            ("settlement:fees:USD", "currency_mismatch"),
        ):
            answer = await tally.put_account(name, currency="EUR", floor_micros=None)
            assert isinstance(answer, Rejected), name
            assert answer.code == code, name
        clearing = await tally.put_account("settlement:clearing:EUR", currency="EUR")
        assert not isinstance(clearing, Rejected)
