"""A restored backup: what it shows as unsent may have been paid. Nothing is sent before the provider was asked."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import asyncpg
import msgspec
import pytest

from tallystick import app
from tallystick.audit.author import acting
from tallystick.authority import store as authority
from tallystick.authority.rules import Ceiling, Policy
from tallystick.errors import ProviderUnreachable, RestoredDatabase
from tallystick.keys.derived import settlement_key
from tallystick.ledger.decisions import Reviewed
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import Answer, Done, Sending, Transfer
from tallystick.recovery.flow import Recovered
from tallystick.settings import LIMITS
from tallystick.settlement.store import SettlementView
from tallystick.simulator.process import start
from tests import servers
from tests.ledgers import broken
from tests.providers.worlds import WORLDS, Control
from tests.recoveries import AT_ONCE, recovering
from tests.settlements import A_DAY, A_WHILE, Shop, pass_time, shop, superuser

QUICK = msgspec.structs.replace


@asynccontextmanager
async def quick(control: Control, name: str = "simulator") -> AsyncIterator[Mapping[str, Provider]]:
    """A provider of which nothing is in flight for long."""
    if name == "simulator":
        provider = app.simulator(control.url)
    else:
        provider = next(world for world in WORLDS if world.name == name).make(control.url, "", "")
    provider.facts = QUICK(provider.facts, longest_in_flight=timedelta(0), list_lag=timedelta(0))
    try:
        yield {name: provider}
    finally:
        await provider.close()


async def back_up(dsn: str, name: str) -> str:
    """A copy of the database as it is now. Nobody may be connected to it."""
    connection = await asyncpg.connect(superuser(dsn).replace(_database(dsn), "postgres"))
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", _database(dsn)
        )
        await connection.execute(f"CREATE DATABASE {name} TEMPLATE {_database(dsn)} OWNER tally")
    finally:
        await connection.close()
    return dsn.replace(_database(dsn), name)


def _database(dsn: str) -> str:
    return dsn.split("@/")[1].split("?", maxsplit=1)[0]


async def recovered(till: Shop, *without: str) -> Recovered:
    return await recovering(till.database, till.providers, settler=till.settler, limits=AT_ONCE, without=without)


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
def punctual(tmp_path: Path) -> Iterator[Control]:
    """A provider whose clock agrees with the database's: its list is asked for by time."""
    running = start(tmp_path / "books.sqlite", log=tmp_path / "log")
    yield Control(running.url)
    running.stop()


async def test_a_backup_taken_before_the_sends_pays_nobody_twice(dsn: str, control: Control) -> None:
    async with quick(control) as providers:
        async with shop(dsn, control, providers=providers) as before:
            await before.create_many(20)
            await before.tick(most=5)
        backup = await back_up(dsn, _database(dsn) + "_backup")
        async with shop(dsn, control, providers=providers) as before:
            await before.tick(most=10)
        # The first five were paid before the backup, ten after it, five never.
        async with shop(backup, control, providers=providers) as restored:
            await restored.pass_time(A_DAY * 2)
            found = await recovered(restored)
            assert (found.marked, found.transferred, found.cleared, found.disputed) == (15, 10, 5, 0)
            assert found.is_confirmed
            assert len((await restored.halves()).open) == 5, "recovery itself sends nothing"
            await restored.pass_time(A_WHILE)
            ticked = await restored.tick()
            assert (ticked.sent, ticked.transferred) == (5, 5)
            halves = await restored.halves()
            assert halves.is_equal
            assert halves.statuses == {"transferred": 20}
            assert await broken(backup) == {}


async def test_a_payout_in_flight_at_the_backup_is_asked_about(dsn: str, control: Control) -> None:
    """Claimed and sent, its answer not yet recorded: the backup has the attempt, and the provider the money."""
    async with quick(control) as providers:
        async with shop(dsn, control, providers=providers) as before:
            control.plan("stripe.transfer:execute_then_drop@1, stripe.transfer:drop_before@2")
            await before.create_many(2)
            await before.tick()
        backup = await back_up(dsn, _database(dsn) + "_backup")
        async with shop(backup, control, providers=providers) as restored:
            await restored.pass_time(A_WHILE)
            found = await recovered(restored)
            assert (found.marked, found.transferred, found.cleared) == (2, 1, 1)
            assert (await restored.tick()).transferred == 1
            assert (await restored.halves()).is_equal
            assert await broken(backup) == {}


async def test_while_the_provider_cannot_be_asked_nothing_is_sent(dsn: str, control: Control) -> None:
    async with quick(control) as providers:
        async with shop(dsn, control, providers=providers) as before:
            await before.create_many(3)
        backup = await back_up(dsn, _database(dsn) + "_backup")
        async with shop(backup, control, providers=providers) as restored:
            control.plan("stripe.list:error_500_no_object@*, stripe.lookup:error_500_no_object@*")
            found = await recovered(restored)
            assert not found.is_confirmed
            assert found.undecided == 3
            with pytest.raises(RestoredDatabase):
                await restored.tick()
            control.call("DELETE", "faults")
            await restored.pass_time(A_WHILE)
            found = await recovered(restored)
            assert found.is_confirmed
            assert (await restored.tick()).transferred == 3


async def test_where_there_is_no_exact_look_up_a_complete_list_is_read(dsn: str, punctual: Control) -> None:
    """Wise has no lookup by our reference: all that was made since is listed, once nothing can be on its way."""
    world = next(world for world in WORLDS if world.name == "wise")
    fields = {"provider": "wise", "destination": world.destination, "currency": world.currency}
    async with quick(punctual, "wise") as providers:
        async with shop(dsn, punctual, providers=providers) as before:
            await before.create("a", **fields)
            await before.create("b", **fields)
        backup = await back_up(dsn, _database(dsn) + "_backup")
        async with shop(dsn, punctual, providers=providers) as before:
            await before.tick(most=1)
        async with shop(backup, punctual, providers=providers) as restored:
            found = await recovered(restored)
            assert (found.transferred, found.disputed, found.cleared) == (1, 0, 1)
            assert found.is_confirmed
            assert (await restored.tick()).sent == 1
            halves = await restored.halves()
            assert halves.is_equal
            assert halves.statuses == {"transferred": 2}


async def test_a_payout_that_was_lost_with_its_row_is_not_sent_again_when_it_is_created_again(
    dsn: str, punctual: Control
) -> None:
    """Created and paid after the backup: the row is gone, the money too. The event that caused it comes again."""
    async with quick(punctual) as providers:
        async with shop(dsn, punctual, providers=providers) as before:
            await before.create("early")
        backup = await back_up(dsn, _database(dsn) + "_backup")
        async with shop(dsn, punctual, providers=providers) as before:
            await before.create("lost")
            await before.tick()
        async with shop(backup, punctual, providers=providers) as restored:
            found = await recovered(restored)
            assert (found.transferred, found.orphans, found.is_confirmed) == (1, 1, True)
            # The provider's memory of the key is over.
            await restored.pass_time(A_DAY * 2)
            again = await restored.create("lost")
            ticked = await restored.tick()
            assert (ticked.sent, ticked.looked_up, ticked.transferred) == (0, 1, 1)
            assert (await restored.read(again.id)).status == "transferred"
            assert (await restored.halves()).is_equal
            assert await broken(backup) == {}


@pytest.mark.parametrize("name", ["stripe", "adyen", "wise"])
async def test_a_payout_that_was_lost_with_its_fee_is_not_sent_again_under_another_key(
    dsn: str, punctual: Control, name: str
) -> None:
    """The fee was changed after the backup: created again, it has another net amount and so another key."""
    world = next(world for world in WORLDS if world.name == name)
    wish: dict[str, Any] = {
        "provider": name,
        "destination": world.destination.replace(" ", ""),
        "currency": world.currency,
        "gross_micros": 10_000_000,
    }
    async with quick(punctual, name) as providers:
        async with shop(dsn, punctual, providers=providers):
            pass
        backup = await back_up(dsn, _database(dsn) + "_backup")
        async with shop(dsn, punctual, providers=providers) as before:
            await before.set_fee(world.currency, fixed_micros=1_000_000)
            lost = await before.create("lost", **wish)
            await before.tick()
        async with shop(backup, punctual, providers=providers) as restored:
            found = await recovered(restored)
            assert (found.orphans, found.is_confirmed) == (1, True)
            again = await restored.create("lost", **wish)
            assert (again.id, again.idempotency_key == lost.idempotency_key) == (lost.id, False)
            await restored.pass_time(A_WHILE * 2)
            ticked = await restored.tick()
            assert (ticked.sent, ticked.disputed) == (0, 1)
            assert (await restored.read(again.id)).reason == "moved_under_another_key"
            assert await broken(backup) == {}


async def test_a_key_that_is_not_its_content_s_is_never_asked_with(dsn: str, control: Control) -> None:
    """A key that was changed would look absent, and the payout be sent a second time."""
    async with quick(control) as providers, shop(dsn, control, providers=providers) as till:
        view = await till.create("a")
        connection = await asyncpg.connect(superuser(dsn))
        await connection.execute(
            "SET session_replication_role = replica; UPDATE tally.settlement SET key = sha256('forged')"
        )
        await connection.close()
        found = await recovered(till)
        assert (found.keys_differ, found.disputed) == (1, 1)
        assert (await till.read(view.id)).reason == "key_differs"
        assert (await till.tick()).sent == 0


async def test_it_waits_until_nothing_can_be_on_its_way(dsn: str, control: Control) -> None:
    async with shop(dsn, control) as till:
        await till.create("a")
        found = await recovering(till.database, till.providers, settler=till.settler, wait=False)
        assert not found.is_confirmed
        in_flight = till.providers["simulator"].facts.longest_in_flight.total_seconds()
        assert in_flight < found.wait_seconds <= in_flight + LIMITS.send_seconds
        assert found.looked_up == 0
        await till.pass_time(A_WHILE)
        found = await recovering(till.database, till.providers, settler=till.settler, wait=False)
        assert (found.cleared, found.is_confirmed) == (1, True)
        assert (await till.tick()).transferred == 1


async def test_it_waits_for_what_was_lost_with_its_row_too(dsn: str, control: Control) -> None:
    """Nothing here is unfinished. What the lost life sent last may be on its way all the same, and is in no list."""
    async with shop(dsn, control) as till:
        await till.create("a")
        await till.tick()
        found = await recovering(till.database, till.providers, settler=till.settler, wait=False)
        assert (found.is_confirmed, found.undecided) == (False, 0)
        in_flight = till.providers["simulator"].facts.longest_in_flight.total_seconds()
        assert in_flight < found.wait_seconds <= in_flight + LIMITS.send_seconds
        with pytest.raises(RestoredDatabase):
            await till.tick()
        # Who runs it again goes on with the wait that began.
        again = await recovering(till.database, till.providers, settler=till.settler, wait=False)
        assert (again.is_confirmed, again.wait_seconds < found.wait_seconds) == (False, True)
        await till.pass_time(A_WHILE)
        assert (await recovering(till.database, till.providers, settler=till.settler, wait=False)).is_confirmed
        await till.tick()


async def test_a_finished_recovery_is_over(dsn: str, control: Control) -> None:
    """Something was sent since: the next run has a wait of its own."""
    async with shop(dsn, control) as till:
        await till.create("a")
        assert (await recovered(till)).is_confirmed
        await till.tick()
        assert not (await recovering(till.database, till.providers, settler=till.settler, wait=False)).is_confirmed


async def test_payouts_of_a_provider_that_is_away_are_asked_about_when_it_returns(dsn: str, control: Control) -> None:
    async with quick(control) as providers:
        async with shop(dsn, control, providers=providers) as before:
            view = await before.create("a")
        backup = await back_up(dsn, _database(dsn) + "_backup")
        async with shop(dsn, control, providers=providers) as before:
            await before.tick()
        async with shop(backup, control, providers={}) as restored:
            found = await recovered(restored)
            assert (found.is_confirmed, dict(found.elsewhere)) == (False, {"simulator": 1})
            assert (await recovered(restored, "simulator")).is_confirmed, "left out on purpose"
        async with shop(backup, control, providers=providers) as restored:
            await restored.pass_time(A_DAY * 2)
            ticked = await restored.tick()
            assert (ticked.sent, ticked.transferred) == (0, 1)
            assert (await restored.read(view.id)).status == "transferred"


async def test_a_payout_created_again_while_recovery_runs_is_asked_about(dsn: str, punctual: Control) -> None:
    """After the marking and before the confirmation: nobody marks it, and its movement is then no orphan."""
    async with quick(punctual) as providers:
        async with shop(dsn, punctual, providers=providers) as before:
            await before.create("early")
        backup = await back_up(dsn, _database(dsn) + "_backup")
        async with shop(dsn, punctual, providers=providers) as before:
            await before.create("lost")
            await before.tick()
        async with shop(backup, punctual, providers=providers) as restored:
            ask = restored.settler.ask

            async def created_meanwhile() -> object:
                await restored.create("lost")
                return await ask()

            cast("Any", restored.settler).ask = created_meanwhile
            assert (await recovered(restored)).is_confirmed
            await restored.pass_time(A_DAY * 2)
            assert (await restored.tick()).sent == 0
            halves = await restored.halves()
            assert halves.is_equal
            assert [row.reason for row, _ in halves.disputed] == ["moved_before_it_was_sent"]


async def test_what_the_backup_calls_failed_and_the_lost_life_paid_is_disputed(dsn: str, punctual: Control) -> None:
    async with quick(punctual) as providers:
        async with shop(dsn, punctual, providers=providers) as before:
            punctual.plan("stripe.transfer:refused(account_closed)")
            view = await before.create("a")
            await before.tick()
        backup = await back_up(dsn, _database(dsn) + "_backup")
        async with shop(dsn, punctual, providers=providers) as before:
            await before.reviews.dispute(
                before.tenant, view.id, reason="r", evidence="e", by="ann", idempotency_key="d"
            )
            connection = await asyncpg.connect(superuser(dsn))
            # The lost life found out that the refusal was not final, and paid.
            await connection.execute(
                "SET session_replication_role = replica; DELETE FROM tally.attempt; DELETE FROM tally.intent"
            )
            await connection.close()
            await before.reviews.resolve(
                before.tenant,
                view.id,
                resolution="retry",
                reason="r",
                evidence="e",
                transfer_id=None,
                by="ann",
                idempotency_key="r",
            )
            punctual.plan("stripe.transfer:forget_key")
            assert (await before.tick()).transferred == 1
        async with shop(backup, punctual, providers=providers) as restored:
            assert (await restored.read(view.id)).status == "failed"
            await recovered(restored)
            after = await restored.read(view.id)
            assert (after.status, after.reason) == ("disputed", "moved_after_failed")


async def test_a_second_run_does_not_forget_what_the_first_could_not_list(dsn: str, punctual: Control) -> None:
    async with quick(punctual) as providers:
        async with shop(dsn, punctual, providers=providers) as before:
            await before.create("early")
            await before.tick()
        backup = await back_up(dsn, _database(dsn) + "_backup")
        async with shop(dsn, punctual, providers=providers) as before:
            await before.create("lost")
            await before.tick()
        async with shop(backup, punctual, providers=providers) as restored:
            await restored.create("new")
            spans = []
            simulator: Any = providers["simulator"]
            own = simulator.movements

            async def away(*, since: datetime, until: datetime) -> AsyncIterator[Any]:
                spans.append(since)
                if until > since:
                    raise ProviderUnreachable("simulator", "down")
                yield

            simulator.movements = away
            assert not (await recovered(restored)).is_confirmed

            def seen(*, since: datetime, until: datetime) -> Any:
                spans.append(since)
                return own(since=since, until=until)

            simulator.movements = seen
            found = await recovered(restored)
            assert (found.is_confirmed, found.orphans) == (True, 1)
            assert spans[0] == spans[1], "from the newest send that the backup remembers, both times"


async def test_a_generation_that_was_lost_with_the_backup_is_seen_by_its_movement(dsn: str, punctual: Control) -> None:
    """The backup knows generation 0 alone; asked about by that key, the payout would look absent and be sent again."""
    async with quick(punctual) as providers:
        async with shop(dsn, punctual, providers=providers) as before:
            punctual.plan("stripe.transfer:drop_before@1")
            view = await before.create("a")
            await before.tick()
        backup = await back_up(dsn, _database(dsn) + "_backup")
        paid = await _pay_next_generation(providers["simulator"], view)
        assert isinstance(paid, Done)
        async with shop(backup, punctual, providers=providers) as restored:
            await pass_time(backup, A_WHILE)
            await recovered(restored)
            after = await restored.read(view.id)
            assert (after.status, after.reason) == ("disputed", "later_generation_moved")
            assert (await restored.tick()).sent == 0


async def test_a_payout_that_is_held_in_the_backup_is_asked_about_once_it_is_approved(
    dsn: str, punctual: Control
) -> None:
    """The lost life had it approved, and paid its next generation: under the key stored here nothing is known."""
    async with quick(punctual) as providers:
        async with shop(dsn, punctual, providers=providers) as before:
            bound = Policy(ceilings=(Ceiling(currency="EUR", second_person_micros=0),))
            assert await authority.put(before.database, before.tenant, bound, by="test") is None
            with acting("ann"):
                view = await before.create("a")
            assert view.status == "held"
        backup = await back_up(dsn, _database(dsn) + "_backup")
        paid = await _pay_next_generation(providers["simulator"], view)
        assert isinstance(paid, Done)
        async with shop(backup, punctual, providers=providers) as restored:
            await pass_time(backup, A_WHILE)
            assert (await recovered(restored)).is_confirmed
            assert view.approval is not None
            agreed = await restored.reviews.decide(
                restored.tenant, view.approval, decision="approve", reason="yes", by="bob", idempotency_key="yes"
            )
            assert isinstance(agreed, Reviewed), agreed
            assert (await restored.read(view.id)).status == "pending"
            assert (await restored.tick()).sent == 0
            assert (await restored.read(view.id)).status == "disputed"


async def _pay_next_generation(provider: Provider, view: SettlementView) -> Answer:
    later = settlement_key(
        tenant="default",
        currency=view.currency,
        provider=view.provider,
        attribution_id=view.attribution_id,
        squad_id=view.squad_id,
        net_micros=view.net_micros,
        generation=1,
    )
    now = datetime.now(UTC)
    return await provider.send(
        Transfer(key=later, destination=view.destination, amount_micros=view.amount_micros, currency=view.currency),
        Sending(first_sent_at=now, not_after=now, sendable_until=steady() + 10),
    )


async def test_whoever_waits_for_it_is_told_how_long_it_still_takes(dsn: str, control: Control) -> None:
    """A wait of minutes without a word looks like a standstill, and nothing is sent meanwhile."""
    async with shop(dsn, control) as till:
        await till.create("one")
        told: list[str] = []
        limits = replace(LIMITS, recovery_told_seconds=0.1)
        running = asyncio.create_task(
            recovering(till.database, till.providers, settler=till.settler, limits=limits, wait=True, tell=told.append)
        )
        async with asyncio.timeout(10):
            while not (left := [line for line in told if line.endswith("s left")][1:]):
                await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert told[0].startswith("Nothing is sent from this database")
        assert 60 < int(left[0].split()[0]) < 200
