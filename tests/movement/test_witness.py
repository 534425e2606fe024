"""What a provider's books show of a life that this database lost stops sending there, until they have been read."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tallystick import app
from tallystick.errors import PartlyUnreadable
from tallystick.movement.life import rules as lives
from tallystick.movement.life import store as whereabouts
from tallystick.movement.mark import FROM_MEMORY, UNEXPLAINED
from tallystick.providers.port import Provider
from tallystick.providers.words import Charge, Done, Event, Instruction, Movement, Sending, Transfer
from tallystick.reconciliation.flow import reconcile
from tallystick.recovery.reading import Reader
from tallystick.simulator.process import start
from tallystick.webhooks import inbox
from tallystick.webhooks.flow import Events, SettlementNews
from tests import servers
from tests.checkout.refund.request.test_flow import given
from tests.checkouts import authorise
from tests.ledgers import broken, fetchval
from tests.movement.life.test_flow import read
from tests.movement.test_memory import unnoticed
from tests.payments import age, charged
from tests.providers.worlds import WORLDS, Control, World, leave
from tests.recovery.test_flow import recovered
from tests.sagas import LEASE, Told, desk
from tests.settlements import A_WHILE, Shop, books, shop

BY_NAME = {world.name: world for world in WORLDS}
PAYING = [world for world in WORLDS if world.destination]
LIFE = "SELECT why FROM tally.life WHERE shown_by IS NOT NULL"


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """A provider whose clock agrees with the database's: its list is asked for by time."""
    running = start(tmp_path / "books.sqlite", log=tmp_path / "log")
    yield Control(running.url)
    running.stop()


@pytest.fixture
async def providers(control: Control) -> AsyncIterator[Mapping[str, Provider]]:
    stripe, other = app.simulator(control.url), BY_NAME["adyen"].make(control.url, "", "")
    yield {"simulator": stripe, "adyen": other}
    await stripe.close()
    await other.close()


def fields(world: World) -> dict[str, Any]:
    return {"provider": world.name, "destination": world.destination.replace(" ", ""), "currency": world.currency}


async def installation(dsn: str) -> str:
    return str(await fetchval(dsn, "SELECT id::text FROM tally.installation"))


def marks(control: Control, kind: str) -> list[str | None]:
    """Of what the provider has, whoever made it."""
    rows = control.call("GET", f"objects?dialect=stripe&kind={kind}&limit=1000")
    return [row["body"]["metadata"].get("tally_mark") for row in rows]


async def told(till: Shop, movement: Movement, event: str = "evt_1") -> None:
    """By a webhook, which has no mark."""
    bare = msgspec.structs.replace(movement, mark="", created_at=None)
    news = Event(
        provider=movement.provider,
        type="transfer.created",
        dedup_key=event,
        change_key=event,
        object_id=movement.id,
        occurred_at=None,
        movement=bare,
        body=b"{}",
    )
    async with till.database.writing() as connection:
        await inbox.append(connection, [Told(movement.provider, (news,))])
    news_of_payouts = SettlementNews(till.reviews, till.sender.witness)
    await Events(till.database, {"transfer": news_of_payouts}, lease=LEASE, by="one").run_once()


async def made_elsewhere(provider: Provider, number: int = 1, *, mark: str) -> Movement:
    """A transfer under a key that could be ours, made by somebody with this mark."""
    instruction = Transfer(
        key=number.to_bytes(32, "big"), destination="acct_good", amount_micros=5_000_000, currency="EUR"
    )
    sent = await provider.send(instruction, msgspec.structs.replace(leave(), mark=mark))
    assert isinstance(sent, Done), sent
    # The simulator is configured under its own name, and speaks as Stripe.
    return msgspec.structs.replace(sent.movement, provider="simulator")


@asynccontextmanager
async def lost(dsn: str, control: Control, providers: Mapping[str, Provider]) -> AsyncIterator[tuple[Shop, Movement]]:
    """A backup that knows nothing of one payout; and how the provider shows that one."""
    async with shop(dsn, control, providers=providers) as before:
        await before.create("early")
        await before.tick()
    # Nothing hints at the restore: the books alone tell.
    backup = await unnoticed(dsn)
    async with shop(dsn, control, providers=providers) as before:
        view = await before.create("lost")
        assert (await before.tick()).transferred == 1
        fetched = await providers["simulator"].fetch("transfer", (await before.read(view.id)).transfer_id or "")
        assert isinstance(fetched, Done)
    async with shop(backup, control, providers=providers) as after:
        # Nothing that is asked for now is inside the memory of a key that the lost life may have used.
        await after.pass_time(timedelta(days=2), also_there=False)
        yield after, msgspec.structs.replace(fetched.movement, provider="simulator")


async def test_every_payout_says_whose_it_is(dsn: str, control: Control, providers: Mapping[str, Provider]) -> None:
    async with shop(dsn, control, providers=providers) as till:
        view = await till.create("a")
        await till.tick()
        assert marks(control, "transfer") == [f"{await installation(dsn)}/settlement/{view.id}"]


async def test_charges_and_refunds_say_whose_they_are(dsn: str, own_control: Control) -> None:
    async with desk(dsn, own_control) as till:
        order, payment = await till.ghost()
        await till.tell(payment)
        await till.run()
        ours = f"{await installation(dsn)}/order/{order.id}"
        assert marks(own_control, "charge") == [ours]
        assert marks(own_control, "refund") == [ours]


async def test_a_further_attempt_has_the_same_bytes(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    """Stripe refuses a key that comes again with other bytes."""
    async with shop(dsn, control, providers=providers) as till:
        control.plan("stripe.transfer:drop_before@1")
        view = await till.create("a")
        await till.tick()
        await till.until_quiet(also_there=False)
        assert await till.attempts(view) == ["unknown", "done"]
        assert (await till.read(view.id)).status == "transferred"


async def test_an_intent_from_before_there_were_marks_is_sent_again_as_it_was(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    async with shop(dsn, control, providers=providers) as till:
        control.plan("stripe.transfer:drop_before@1")
        view = await till.create("a")
        await till.tick()
        # As the release before has written it.
        async with till.database.owning() as connection:
            await connection.execute("ALTER TABLE tally.intent DISABLE TRIGGER identity")
            await connection.execute("UPDATE tally.intent SET mark = NULL")
            await connection.execute("ALTER TABLE tally.intent ENABLE TRIGGER identity")
        await till.until_quiet(also_there=False)
        assert (await till.read(view.id)).status == "transferred"
        assert marks(control, "transfer") == [None]


async def test_a_webhook_about_what_a_lost_life_paid_stops_that_provider_until_its_books_are_read(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    async with lost(dsn, control, providers) as (till, movement):
        await told(till, movement)
        assert await fetchval(till.dsn, LIFE) == UNEXPLAINED
        assert await fetchval(till.dsn, "SELECT provider_id FROM tally.orphan") == movement.id
        waits = await till.create("waits")
        goes = await till.create("goes", **fields(BY_NAME["adyen"]))
        await till.tick()
        assert (await till.read(waits.id)).status == "processing"
        assert await till.attempts(waits) == []
        assert (await till.read(goes.id)).status == "transferred", "another provider is not stopped"
        # However often it is asked about.
        for _ in range(3):
            await till.pass_time(timedelta(seconds=40), also_there=False)
            await till.tick()
        assert await till.attempts(waits) == []
        await till.pass_time(A_WHILE, also_there=False)
        assert (await read(till))[0] >= 1
        await till.until_quiet(also_there=False)
        assert (await till.read(waits.id)).status == "transferred"
        # What is known stops nobody again.
        await told(till, movement, "evt_2")
        assert await fetchval(till.dsn, "SELECT count(*) FROM tally.life WHERE shown_by IS NOT NULL") == 1
        again = await till.create("lost")
        await till.until_quiet(also_there=False)
        assert (await till.read(again.id)).transfer_id == movement.id
        assert len(books(control, "stripe")) == 3
        assert await broken(till.dsn) == {}


async def test_reconciling_shows_it_as_well(dsn: str, control: Control, providers: Mapping[str, Provider]) -> None:
    async with lost(dsn, control, providers) as (till, movement):
        await reconcile(till.database, {"simulator": providers["simulator"]}, till.reviews, by="tests")
        assert await fetchval(till.dsn, LIFE) == UNEXPLAINED
        assert await fetchval(till.dsn, "SELECT shown_by FROM tally.life WHERE shown_by IS NOT NULL") == movement.id
        assert await whereabouts.stopped(till.database) == ["simulator"]


async def test_what_another_installation_paid_is_theirs(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    async with shop(dsn, control, providers=providers) as till:
        await told(till, await made_elsewhere(providers["simulator"], mark="somebody-else/settlement/stl_1"))
        await told(till, await made_elsewhere(providers["simulator"], 2, mark=""), "evt_2")
        assert await fetchval(dsn, "SELECT count(*) FROM tally.life WHERE shown_by IS NOT NULL") == 0
        await till.create("a")
        assert (await till.tick()).transferred == 1


async def test_a_provider_that_does_not_show_it_proves_nothing(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    async with lost(dsn, control, providers) as (till, movement):
        control.plan("stripe.lookup:error_500_no_object@*")
        await told(till, movement)
        assert await fetchval(till.dsn, "SELECT count(*) FROM tally.life WHERE shown_by IS NOT NULL") == 0
        assert await fetchval(till.dsn, "SELECT status FROM tally.webhook_events") == "PROCESSED_OK"


async def test_what_was_found_for_a_payout_that_was_never_sent_is_of_a_lost_life(
    dsn: str, control: Control, providers: Mapping[str, Provider]
) -> None:
    async with lost(dsn, control, providers) as (till, movement):
        again = await till.create("lost")
        await till.pass_time(timedelta(days=40), also_there=False)
        await till.until_quiet(also_there=False)
        assert (await till.read(again.id)).transfer_id == movement.id
        assert await fetchval(till.dsn, LIFE) == UNEXPLAINED


@pytest.mark.parametrize("world", PAYING, ids=lambda world: world.name)
async def test_an_answer_from_memory_to_the_first_attempt_is_of_a_lost_life(
    dsn: str, control: Control, world: World
) -> None:
    """The key protects the money; the proof protects what the key does not cover."""
    provider = world.make(control.url, "", "")
    try:
        async with shop(dsn, control, providers={world.name: provider}) as before:
            await before.create("early", **fields(world))
            await before.tick()
        # Nothing hints at the restore, and the provider remembers the key.
        backup = await unnoticed(dsn)
        async with shop(dsn, control, providers={world.name: provider}) as before:
            view = await before.create("lost", **fields(world))
            assert (await before.tick()).transferred == 1
            moved = (await before.read(view.id)).transfer_id
        control.advance(seconds=1_200)
        async with shop(backup, control, providers={world.name: provider}) as after:
            again = await after.create("lost", **fields(world))
            ticked = await after.tick()
            assert (ticked.sent, ticked.transferred) == (1, 1)
            assert (await after.read(again.id)).transfer_id == moved
            assert await fetchval(backup, LIFE) == FROM_MEMORY
    finally:
        await provider.close()


@pytest.mark.parametrize("method", ["pm_card_visa", None], ids=["paid at once", "by its customer, afterwards"])
async def test_an_order_that_is_made_again_is_paid_by_what_was_answered_from_memory(
    dsn: str, control: Control, method: str | None
) -> None:
    """Its webhook went to the life that was lost, and what was stored under the key is how the payment began."""
    backup = await unnoticed(dsn)
    async with desk(dsn, control) as before:
        order, payment = await before.bought("lost", by={"payment_method": method})
        if method is None:
            await authorise(control.url, payment)
    async with desk(backup, control) as after:
        again = await after.shop.order("lost")
        paying = await after.shop.paying(again, payment_method=method)
        assert (again.id, paying.payment.payment_intent_id) == (order.id, payment)
        assert paying.payment.status == "COMPLETED"
        await after.run()
        assert await after.status(again) == "PAID"
        # Told once more, by a webhook that is late, it is the same.
        await after.tell(payment)
        await after.run()
        assert (await after.status(again), after.given_back()) == ("PAID", [])
        assert len(charged(control)) == 1


@pytest.mark.parametrize("is_read_before", [True, False], ids=["read before it was made again", "read afterwards"])
async def test_what_the_lost_life_gave_back_of_an_order_that_is_paid_again_is_told(
    dsn: str, control: Control, *, is_read_before: bool
) -> None:
    """The charge is answered from memory, so the order is PAID; that its money went back stands in the books alone."""
    backup = await unnoticed(dsn)
    async with desk(dsn, control) as before:
        order, payment = await before.bought("lost")
        await before.tell(payment)
        await before.run()
        back = (await given(before, order, "r")).refund
    async with desk(backup, control) as after:
        reader = Reader(after.shop.database, {after.shop.world.name: after.shop.provider})
        if is_read_before:
            await whereabouts.begin(after.shop.database, "a hint")
            await age(backup)
            assert (await reader.run_once()).given_back == 0
        again = await after.shop.order("lost")
        await after.shop.pay(again)
        await age(backup)
        await after.shop.payments.collect()
        await after.run()
        assert await after.status(again) == "PAID"
        assert [await reader.run_once() for _ in range(2)][1].given_back == 0
        assert await after.breaks() == ["refunded_outside"]
        # Its webhook, told again, is the same.
        await after.tell(back.refund_id, "evt_back", purpose="refund", parent=payment, word="succeeded")
        await after.run()
        assert await after.breaks() == ["refunded_outside"]


async def test_a_clock_that_is_hours_ahead_of_the_providers_proves_nothing(dsn: str, own_control: Control) -> None:
    """Ours, or theirs: only the provider's own clock is held against what the provider says."""
    world = BY_NAME["wise"]
    provider = world.make(own_control.url, "", "")
    try:
        async with shop(dsn, own_control, providers={"wise": provider}) as till:
            own_control.advance(seconds=3 * 3_600)
            await till.create("a", **fields(world))
            assert (await till.tick()).transferred == 1
            assert await fetchval(dsn, "SELECT count(*) FROM tally.life") == 0
    finally:
        await provider.close()


async def test_news_of_a_payment_that_nothing_here_has_asked_for_stops_charges(dsn: str, control: Control) -> None:
    """A buyer paid in the lost life; its webhook comes to the backup."""
    async with desk(dsn, control) as till:
        await till.bought()
        await age(dsn, timedelta(days=2))
        charge = Charge(
            key=(7).to_bytes(32, "big"), amount_micros=25_000_000, currency="EUR", payment_method="pm_card_visa"
        )
        mark = f"{await installation(dsn)}/order/ord_lost"
        paid = await send_marked(till.shop.provider, charge, mark)
        await till.tell(paid.id, reference=paid.reference)
        await till.run()
        assert await fetchval(dsn, LIFE) == UNEXPLAINED
        order = await till.shop.order("new")
        pending = await till.shop.pending(order, payment_method="pm_card_visa")
        assert pending.payment.status == "PENDING"
        await age(dsn)
        await till.shop.payments.collect()
        assert await till.shop.statuses(order) == ["PENDING"]
        assert [row for row in control.call("GET", "movements?limit=10") if row["kind"] == "charge"][2:] == []


async def send_marked(provider: Provider, instruction: Instruction, mark: str) -> Movement:
    sending: Sending = msgspec.structs.replace(leave(), mark=mark)
    answer = await provider.send(instruction, sending)
    assert isinstance(answer, Done), answer
    return answer.movement


async def test_recovery_reads_as_far_back_as_the_life_that_was_proven(
    dsn: str, control: Control, providers: Mapping[str, Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this life has sent since does not hide what the lost one sent before."""
    # An hour would reach the lost life anyway: here it is seconds ago.
    monkeypatch.setattr(lives, "OVERLAP", timedelta())
    async with shop(dsn, control, providers=providers) as before:
        await before.create("early")
        await before.tick()
    backup = await unnoticed(dsn)
    async with shop(dsn, control, providers=providers) as before:
        one = await before.create("one")
        await before.create("two")
        assert (await before.tick()).transferred == 2
        fetched = await providers["simulator"].fetch("transfer", (await before.read(one.id)).transfer_id or "")
        assert isinstance(fetched, Done)
    async with shop(backup, control, providers=providers) as after:
        # Stripe's times are whole seconds: what is sent now must be of a later one.
        await fetchval(backup, "SELECT pg_sleep(2.1)")
        # As if nothing had been: nobody has noticed.
        await after.create("new")
        assert (await after.tick()).transferred == 1
        await told(after, msgspec.structs.replace(fetched.movement, provider="simulator"))
        assert await whereabouts.stopped(after.database) == ["simulator"]
        assert (await recovered(after)).is_confirmed
        await after.set_fee(percent_ppm=100_000)
        again = await after.create("two")
        await after.until_quiet(also_there=False)
        assert (await after.read(again.id)).status == "disputed"
        assert len(books(control, "stripe")) == 4


async def test_a_strangers_object_that_cannot_be_read_stops_nobody_for_ever(
    dsn: str, control: Control, providers: Mapping[str, Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a currency that we do not know: none of ours is."""
    async with lost(dsn, control, providers) as (till, movement):
        await told(till, movement)
        await till.pass_time(A_WHILE, also_there=False)
        movements = type(providers["simulator"]).movements

        async def odd(self: Any, **span: Any) -> AsyncIterator[Movement]:
            async for one in movements(self, **span):
                yield one
            raise PartlyUnreadable("stripe", "cannot be read: tr_9")

        monkeypatch.setattr(type(providers["simulator"]), "movements", odd)
        assert (await read(till))[0] >= 1
        assert await whereabouts.stopped(till.database) == []
