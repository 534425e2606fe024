"""The same payouts over Stripe's, Adyen's and Wise's wires: whatever each of them does, both halves end up equal.

Where they differ, the difference is theirs: Stripe and Adyen can be asked for one transfer, Wise only for a list; Adyen
accepts first and decides later; at Wise a repeat is recognised by the transfer itself.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tallystick import app
from tallystick.checkout.saga.flow import Saga
from tallystick.http import api, server
from tallystick.keys.derived import hex64, uuid_form
from tallystick.movement.steps import Patience
from tallystick.providers.declared import ProviderSettings
from tallystick.providers.port import Provider
from tallystick.providers.words import Forged, Movement
from tallystick.secret import Secret
from tallystick.settings import Settings
from tallystick.settlement.review.flow import Reviews
from tallystick.settlement.store import SettlementView
from tallystick.webhooks import inbox
from tallystick.webhooks.flow import Events, Processed
from tallystick.webhooks.log.port import Delivery
from tallystick.webhooks.worker import EventsWorker
from tests.acceptance.function import terminated
from tests.ledgers import broken
from tests.providers.worlds import HEX, WORLDS, Control, World, impatient
from tests.settlements import Moved, Shop, ledger_differences, shop
from tests.simulator.station import Receiver

PAYING = [world for world in WORLDS if world.name in ("stripe", "adyen", "wise")]
# Past a claim, a permit and what may be in flight; still within the shortest memory, which is Wise's.
A_WHILE = timedelta(minutes=12)
# Past every memory of a key.
A_MONTH = timedelta(days=31)
# Fewer than the failures in a row that open the breaker, and over within Wise's memory.
PATIENCE = Patience(stuck_after=timedelta(minutes=5), budget=3)


class Heard:
    """Reviews that say whom they disputed."""

    def __init__(self, reviews: Reviews) -> None:
        self._reviews = reviews
        self.disputed: list[str] = []

    async def observe(self, provider: str, movement: Movement, *, alarm: str | None = None) -> str | None:
        name = await self._reviews.observe(provider, movement, alarm=alarm)
        self.disputed += [] if name is None else [name]
        return name


@dataclass
class Payer:
    """A shop that pays by one of them."""

    world: World
    shop: Shop
    provider: Provider
    control: Control
    hook: Receiver

    async def create(self, attribution: str = "bounty-1", **fields: Any) -> SettlementView:
        words = {"provider": self.world.name, "destination": self.world.destination, **fields}
        return await self.shop.create(attribution, **words)

    def plan(self, fault: str, operation: str = "transfer") -> None:
        self.control.plan(f"{self.world.name}.{operation}:{fault}")

    async def later(self) -> None:
        await self.shop.pass_time(A_WHILE, also_there=False)
        await self.shop.tick()

    def made(self, kind: str = "transfer") -> list[dict[str, Any]]:
        """Everything in the provider's books, whatever became of it."""
        return self.control.made(self.world.name, kind)

    async def told(self) -> list[str]:
        """Take what the provider's webhooks say, as often as it says it. The settlements that became disputed."""
        now = datetime.now(UTC)
        deliveries = []
        for headers, body in self.hook.received:
            events = self.provider.receive(list(headers.items()), body, now=now)
            assert not isinstance(events, Forged), events
            deliveries.append(Delivery(self.world.name, events))
        async with self.shop.database.writing() as connection:
            await inbox.append(connection, deliveries)
        reviews = Heard(self.shop.reviews)
        # Of payouts alone: nothing here is bought.
        handlers = app.handlers(cast("Reviews", reviews), cast("Saga", None), self.shop.sender.witness)
        known = {self.world.name: self.provider}
        worker = Events(self.shop.database, handlers, providers=known, lease=timedelta(minutes=5), by="tests")
        while (done := await worker.run_once()).claimed:
            assert done == Processed(claimed=done.claimed, ok=done.ok), done
        return reviews.disputed

    def a_minute_later(self) -> None:
        """What is accepted is carried out, or not. Its clock stays: lists are asked for by our own time."""
        for row in self.made():
            for action in {"stripe": (), "adyen": ("authorise", "book"), "wise": ("convert", "send")}[self.world.name]:
                self.control.call("POST", "act", {"dialect": self.world.name, "action": action, "id": row["id"]})

    async def paid_once(self, view: SettlementView) -> SettlementView:
        """Both halves say that it was paid, exactly once."""
        self.a_minute_later()
        now = await self.shop.read(view.id)
        assert now.status == "transferred", now
        (movement,) = self.shop.moved(view)
        assert movement == Moved(
            dialect=self.world.name,
            kind=movement.kind,
            id=str(now.transfer_id).rpartition("/")[2],
            reference=_reference(self.provider, view),
            amount_micros=view.amount_micros,
            currency=view.currency,
            state="moved",
        )
        await self.nothing_is_wrong()
        return now

    async def nothing_moved(self, view: SettlementView, status: str, reason: str) -> None:
        self.a_minute_later()
        now = await self.shop.read(view.id)
        assert (now.status, now.reason, self.shop.moved(view)) == (status, reason, [])
        await self.nothing_is_wrong()

    async def nothing_is_wrong(self) -> None:
        assert (await self.shop.halves()).is_equal
        assert await ledger_differences(self.shop.dsn) == {}
        assert await broken(self.shop.dsn) == {}


def _reference(provider: Provider, view: SettlementView) -> str:
    form = uuid_form if provider.facts.key_form == "uuid" else hex64
    return form(bytes.fromhex(view.idempotency_key))


@pytest.fixture(scope="session")
def wise_key() -> tuple[str, str]:
    """A key pair in Wise's place: private and public, as text."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


@pytest.fixture
def hook() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(params=PAYING, ids=lambda world: world.name)
def world(request: pytest.FixtureRequest) -> World:
    """Every one in turn, or the ones a test names."""
    wanted: World | str = request.param
    return wanted if isinstance(wanted, World) else next(world for world in PAYING if world.name == wanted)


@pytest.fixture
async def payer(
    world: World, dsn: str, control: Control, hook: Receiver, wise_key: tuple[str, str]
) -> AsyncIterator[Payer]:
    secret = {"stripe": "whsec_contract", "adyen": HEX, "wise": wise_key[0]}[world.name]
    control.call("PUT", f"endpoints/{world.name}", {"url": hook.url, "secrets": [secret]})
    provider = world.make(control.url, hook.url, wise_key[1])
    async with shop(dsn, control, providers={world.name: provider}, patience=PATIENCE) as made:
        yield Payer(world, made, provider, control, hook)
    control.call("DELETE", f"endpoints/{world.name}")
    await provider.close()


async def test_paid(payer: Payer) -> None:
    view = await payer.create()
    ticked = await payer.shop.tick()
    assert (ticked.claimed, ticked.sent, ticked.transferred) == (1, 1, 1)
    await payer.paid_once(view)
    assert await payer.told() == [], "news that contradicts nothing changes nothing"


@pytest.mark.parametrize(
    ("currency", "gross", "amount"),
    [("EUR", 12_345_678, 12_340_000), ("JPY", 12_345_678, 12_000_000), ("KWD", 12_345_678, 12_345_000)],
)
async def test_what_it_cannot_write_stays_payable(payer: Payer, currency: str, gross: int, amount: int) -> None:
    # Stripe's third decimal must be 0.
    amount = 12_340_000 if (payer.world.name, currency) == ("stripe", "KWD") else amount
    view = await payer.create(currency=currency, gross_micros=gross)
    assert (view.amount_micros, view.residue_micros) == (amount, gross - amount)
    await payer.shop.tick()
    await payer.paid_once(view)
    assert (await payer.shop.balances())[f"payable:{currency}:amber"] == gross - amount


async def test_terminated_after_the_effect_and_before_it_is_recorded(payer: Payer) -> None:
    view = await payer.create()
    await terminated(payer.shop, "after_the_answer", provider=payer.world.name)
    assert len(payer.made()) == 1
    await payer.later()
    await payer.paid_once(view)
    assert await payer.shop.attempts(view) == [None], "it was found, and not sent again"


async def test_terminated_before_the_effect(payer: Payer) -> None:
    view = await payer.create()
    await terminated(payer.shop, "before_the_send", provider=payer.world.name)
    await payer.later()
    await payer.paid_once(view)
    assert await payer.shop.attempts(view) == [None, "done"]


# Done, and the answer is lost in every way an answer can be.
@pytest.mark.parametrize(
    "fault",
    ["execute_then_500", "execute_then_reset", "execute_then_drop", "hang", "html_200", "gateway_504_after"],
)
async def test_the_answer_is_lost_after_the_effect(payer: Payer, fault: str) -> None:
    impatient(payer.provider)
    view = await payer.create()
    payer.plan(fault)
    assert (await payer.shop.tick()).waiting == 1
    await payer.later()
    await payer.paid_once(view)


async def test_a_500_before_the_effect(payer: Payer) -> None:
    """Absence after a 5xx proves nothing where it could be proven at all; Wise recognises a repeat for ever."""
    view = await payer.create()
    payer.plan("error_500_no_object")
    await payer.shop.until_quiet(span=A_WHILE, also_there=False)
    if payer.world.name == "wise":
        await payer.paid_once(view)
    else:
        await payer.nothing_moved(view, "disputed", "server_error_then_absent")
        assert await payer.shop.attempts(view) == ["unknown"]


async def test_a_500_and_the_effect_comes_much_later(payer: Payer) -> None:
    """While it is only looked up, it cannot be paid beside; found at last, it is taken for what it is."""
    view = await payer.create()
    payer.plan("error_500_object_later(600)")
    await payer.shop.tick()
    if payer.world.name != "wise":
        await payer.later()
        assert await payer.shop.attempts(view) == ["unknown"], "not found, and all the same not sent again"
    payer.control.advance(minutes=11)
    await payer.shop.pass_time(timedelta(minutes=20), also_there=False)
    await payer.shop.tick()
    await payer.paid_once(view)


@pytest.mark.parametrize("fault", ["drop_before", "in_flight"])
async def test_nothing_happened_and_nobody_said_so(payer: Payer, fault: str) -> None:
    """Proven absent, or recognised by its key: sent once more, the same bytes."""
    view = await payer.create()
    payer.plan(fault)
    assert (await payer.shop.tick()).waiting == 1
    await payer.later()
    await payer.paid_once(view)
    assert await payer.shop.attempts(view) == ["unknown", "done"]


@pytest.mark.parametrize("fault", ["rate_limited", "unauthorized", "forbidden"])
async def test_turned_away_at_the_door(payer: Payer, fault: str) -> None:
    view = await payer.create()
    payer.plan(fault)
    assert (await payer.shop.tick()).waiting == 1
    await payer.later()
    await payer.paid_once(view)
    assert await payer.shop.attempts(view) == ["busy", "done"]


UNKNOWN_DESTINATIONS = [
    ("stripe", "acct_unknown", "resource_missing"),
    ("wise", "987654321", "NOT_VALID"),
]
CLOSED_AT_ONCE = [("stripe", "acct_closed", "account_closed")]


@pytest.mark.parametrize(
    ("world", "destination", "reason"), [*UNKNOWN_DESTINATIONS, *CLOSED_AT_ONCE], indirect=["world"]
)
async def test_a_destination_it_refuses_at_once(payer: Payer, destination: str, reason: str) -> None:
    view = await payer.create(destination=destination)
    assert (await payer.shop.tick()).failed == 1
    await payer.nothing_moved(view, "failed", reason)
    assert (await payer.shop.balances())["payable:EUR:amber"] == view.net_micros


@pytest.mark.parametrize("world", ["adyen"], indirect=True)
@pytest.mark.parametrize("word", ["closed", "unknown", "poor"])
async def test_a_destination_it_refuses_later(payer: Payer, word: str) -> None:
    """Adyen says received, and a moment later refused: what was believed paid is disputed."""
    view = await payer.create(destination=f"transferInstrument:{word}")
    assert (await payer.shop.tick()).transferred == 1
    payer.a_minute_later()
    assert await payer.told() == [view.id]
    await payer.nothing_moved(view, "disputed", "failed_after_transferred")
    assert (await payer.shop.balances())["in_transit:EUR:adyen"] == view.amount_micros


@pytest.mark.parametrize("world", ["adyen"], indirect=True)
async def test_a_refusal_that_recovery_finds_is_known(payer: Payer) -> None:
    """Nobody was told that it was received; looked up, it has been refused: final, and nothing moved."""
    view = await payer.create(destination="transferInstrument:closed")
    payer.plan("execute_then_drop")
    await payer.shop.tick()
    payer.a_minute_later()
    await payer.later()
    await payer.nothing_moved(view, "failed", "failed_at_the_provider")


@pytest.mark.parametrize("world", ["stripe", "wise"], indirect=True)
async def test_not_enough_money_at_the_provider(payer: Payer) -> None:
    account = "?account=1001" if payer.world.name == "wise" else ""
    payer.control.call("PUT", f"balances/{payer.world.name}{account}", {"EUR": 100})
    view = await payer.create()
    assert (await payer.shop.tick()).failed == 1
    reason = {"stripe": "balance_insufficient", "wise": "balance.insufficient-funds"}[payer.world.name]
    await payer.nothing_moved(view, "failed", reason)


async def test_refused(payer: Payer) -> None:
    view = await payer.create()
    payer.plan("refused")
    assert (await payer.shop.tick()).failed == 1
    self_said = (await payer.shop.read(view.id)).reason
    assert self_said
    await payer.nothing_moved(view, "failed", self_said)


async def test_the_key_has_expired_and_it_had_moved(payer: Payer) -> None:
    view = await payer.create()
    await terminated(payer.shop, "after_the_answer", provider=payer.world.name)
    await payer.shop.pass_time(A_MONTH)
    ticked = await payer.shop.tick()
    assert (ticked.sent, ticked.looked_up) == (0, 1)
    await payer.paid_once(view)


async def test_the_key_has_expired_and_nothing_is_there(payer: Payer) -> None:
    view = await payer.create()
    await terminated(payer.shop, "before_the_send", provider=payer.world.name)
    await payer.shop.pass_time(A_MONTH)
    assert (await payer.shop.tick()).sent == 0
    await payer.nothing_moved(view, "disputed", "past_the_horizon")
    assert payer.made() == []


async def test_the_key_has_expired_and_the_books_cannot_be_asked(payer: Payer) -> None:
    """A broken answer is no absence. It is asked again for a day after the horizon; then a person is called."""
    view = await payer.create()
    await terminated(payer.shop, "after_the_answer", provider=payer.world.name)
    await payer.shop.pass_time(payer.provider.facts.key_horizon + timedelta(hours=1))
    payer.control.plan(f"{payer.world.name}.*:gateway_503@*")
    assert (await payer.shop.tick()).waiting == 1
    await payer.shop.pass_time(timedelta(days=2))
    assert (await payer.shop.tick()).sent == 0
    now = await payer.shop.read(view.id)
    assert (now.status, now.reason) == ("disputed", "provider_cannot_be_asked")
    payer.control.call("DELETE", "faults")
    ((row, moved),) = (await payer.shop.halves()).disputed
    assert (row.name, len(moved)) == (view.id, 1), "and what the person will find there"


@dataclass(frozen=True)
class Bounce:
    """How a payout comes back after it was paid."""

    world: str
    reason: str
    destination: str
    fault: str = ""
    operation: str = "transfer"
    kind: str = "transfer"


BOUNCES = [
    Bounce("stripe", "returned_after_transferred", "acct_contract", "reversed"),
    Bounce("stripe", "failed_after_transferred", "ba_contract", "paid_then_failed", "payout", "payout"),
    Bounce("adyen", "returned_after_transferred", "transferInstrument:bounce"),
    Bounce("adyen", "failed_after_transferred", "transferInstrument:late_failure"),
    Bounce(
        "wise",
        "returned_after_transferred",
        '{"type": "iban", "accountHolderName": "Ada", "details": {"IBAN": "bounce"}}',
    ),
]


@pytest.mark.parametrize(
    ("world", "bounce"),
    [pytest.param(bounce.world, bounce, id=f"{bounce.world} {bounce.destination:.26}") for bounce in BOUNCES],
    indirect=["world"],
)
async def test_paid_and_days_later_it_comes_back(payer: Payer, bounce: Bounce) -> None:
    """The ledger follows: what came back is not paid, and not owed before a person has said so."""
    view = await payer.create(destination=bounce.destination)
    if bounce.fault:
        payer.plan(bounce.fault, bounce.operation)
    assert (await payer.shop.tick()).transferred == 1
    payer.control.advance(days=7)
    assert await payer.told() == [view.id], "also when it is told in several webhooks"
    assert await payer.told() == []
    now = await payer.shop.read(view.id)
    assert now.status == "disputed"
    assert now.reason == bounce.reason
    balances = await payer.shop.balances()
    assert balances[f"in_transit:EUR:{payer.world.name}"] == view.amount_micros
    (row,) = payer.made(bounce.kind)
    assert row["state"] in ("returned", "failed")
    await payer.nothing_is_wrong()
    written_off = await payer.shop.reviews.resolve(
        payer.shop.tenant,
        view.id,
        resolution="write_off",
        reason="it came back",
        evidence="the provider's dashboard",
        transfer_id=None,
        by="ada",
        idempotency_key="write-off",
    )
    assert written_off.is_replayed is False
    assert (await payer.shop.balances())["payable:EUR:amber"] == view.net_micros
    await payer.nothing_is_wrong()


@pytest.mark.parametrize("world", ["wise"], indirect=True)
async def test_a_bounce_reaches_its_settlement_by_webhook_alone(payer: Payer, wise_key: tuple[str, str]) -> None:
    """Over HTTP, through the receiver and the worker that ship: Wise names the transfer, and is asked for it."""
    account = ProviderSettings(
        api_key=Secret("wise"),
        api_base=f"{payer.control.url}/wise",
        webhook_secrets=(Secret(wise_key[1]),),
        requests_per_second=None,
        more={"profile_id": "1001"},
    )
    settings = Settings(database_url=payer.shop.dsn, provider="wise", providers={"wise": account})
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    stopping = asyncio.Event()
    async with app.running(settings) as service, asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(
            server.serve(api.build(service), "127.0.0.1", 0, on_listening=lambda _host, found: port.set_result(found))
        )
        tasks.create_task(EventsWorker(service.events).run(stopping))
        endpoint = {"url": f"http://127.0.0.1:{await port}/webhooks/wise", "secrets": [wise_key[0]]}
        payer.control.call("PUT", "endpoints/wise", endpoint)
        bouncing = next(bounce.destination for bounce in BOUNCES if bounce.world == "wise")
        view = await payer.create(destination=bouncing)
        assert (await payer.shop.tick()).transferred == 1
        await asyncio.to_thread(payer.control.advance, days=7)
        async with asyncio.timeout(30):
            while (await payer.shop.read(view.id)).status != "disputed":
                await asyncio.sleep(0.05)
        stopping.set()
        serving.cancel()
    now = await payer.shop.read(view.id)
    assert now.reason == "returned_after_transferred"
    assert payer.hook.received == [], "nobody else was told"
    await payer.nothing_is_wrong()


@pytest.mark.parametrize("world", ["wise"], indirect=True)
async def test_a_payout_that_wise_says_has_failed_is_for_a_person_whatever_state_its_transfer_is_in(
    payer: Payer,
) -> None:
    """The transfer stays `outgoing_payment_sent`: asked for it, Wise's books show nothing wrong."""
    view = await payer.create()
    assert (await payer.shop.tick()).transferred == 1
    payer.a_minute_later()
    assert await payer.told() == []
    (made,) = payer.made()
    payer.control.call("POST", "act", {"dialect": "wise", "action": "fail_payout", "id": made["id"]})
    assert await payer.told() == [view.id]
    now = await payer.shop.read(view.id)
    assert (now.status, now.reason) == ("disputed", "payout_failed_at_the_provider")
    assert (await payer.shop.balances())["in_transit:EUR:wise"] == view.amount_micros
    await payer.nothing_is_wrong()
