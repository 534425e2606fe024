"""The contract for webhooks: what to believe, and which deliveries are one and the same.

The simulator signs, loses, doubles and forges as each provider's wire allows.
"""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tallystick.money.currencies import Purpose
from tallystick.providers.port import Provider
from tallystick.providers.words import Done, Event, Forged
from tests.providers.worlds import HEX, Control, World, leave, send
from tests.simulator.station import Receiver

DAY = 86_400
# Adyen tells of a transfer only when it goes on; this is past all that happens by itself within a minute.
A_MINUTE = 60


@pytest.fixture(scope="module")
def wise_key() -> tuple[str, str]:
    """A key pair in Wise's place: private and public, as text."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()


@pytest.fixture
def hook(world: World, books: Control, wise_key: tuple[str, str]) -> Iterator[Receiver]:
    receiver = Receiver()
    secret = {"stripe": "whsec_contract", "adyen": HEX, "square": "sigkey", "wise": wise_key[0]}[world.name]
    books.call("PUT", f"endpoints/{world.name}", {"url": receiver.url, "secrets": [secret]})
    yield receiver
    books.call("DELETE", f"endpoints/{world.name}")
    receiver.close()


@pytest.fixture
async def listening(world: World, books: Control, hook: Receiver, wise_key: tuple[str, str]) -> AsyncIterator[Provider]:
    made = world.make(books.url, hook.url, wise_key[1])
    yield made
    await made.close()


def received(provider: Provider, hook: Receiver) -> list[tuple[Event, ...] | Forged]:
    """What the adapter makes of each delivery. They are signed in real time, however far the simulated clock is."""
    now = datetime.now(UTC)
    return [provider.receive(list(headers.items()), body, now=now) for headers, body in hook.received]


def believed(answers: list[tuple[Event, ...] | Forged]) -> list[Event]:
    return [event for answer in answers if not isinstance(answer, Forged) for event in answer]


async def move(world: World, provider: Provider, books: Control, *, fault: str = "", seconds: float = A_MINUTE) -> Done:
    """One movement, and the time it takes to be told of."""
    if fault:
        books.plan(f"{world.name}.webhook:{fault}")
    sent = await send(provider, world.instruction())
    assert isinstance(sent, Done), sent
    books.advance(seconds=seconds)
    return sent


async def test_what_the_provider_signs_is_believed(
    world: World, listening: Provider, hook: Receiver, books: Control
) -> None:
    sent = await move(world, listening, books)
    answers = received(listening, hook)
    assert answers
    assert not any(isinstance(answer, Forged) for answer in answers), answers
    events = believed(answers)
    assert {event.object_id for event in events} == {sent.id}
    assert len({event.dedup_key for event in events}) == len(events)
    told = [event.movement for event in events if event.movement is not None]
    # Wise names no amount: it must be asked.
    assert bool(told) == (world.name != "wise")
    assert all((one.id, one.amount_micros, one.currency) == (sent.id, 12_340_000, "EUR") for one in told)


async def test_a_doubled_delivery_is_one_event(
    world: World, listening: Provider, hook: Receiver, books: Control
) -> None:
    await move(world, listening, books, fault="webhook_doubled")
    events = believed(received(listening, hook))
    assert len(events) == len({event.dedup_key for event in events}) + 1


async def test_a_delivery_that_is_tried_again_is_one_event(
    world: World, listening: Provider, hook: Receiver, books: Control
) -> None:
    """Wise's delivery id is another each time."""
    hook.statuses[:] = [500] * 20
    # Less than the first gap of any of them.
    await move(world, listening, books, seconds=10)
    refused = {event.dedup_key for event in believed(received(listening, hook))}
    assert refused
    hook.received.clear()
    hook.statuses.clear()
    books.advance(seconds=DAY)
    again = believed(received(listening, hook))
    assert again
    assert refused <= {event.dedup_key for event in again}


@pytest.mark.parametrize("world", ["stripe", "square"], indirect=True)
async def test_two_events_about_one_change_have_one_change_key(
    world: World, listening: Provider, hook: Receiver, books: Control
) -> None:
    await move(world, listening, books, fault="webhook_two_events")
    events = believed(received(listening, hook))
    assert len({event.change_key for event in events}) == len(events) - 1


@pytest.mark.parametrize("fault", ["webhook_forged", "webhook_other_endpoint"])
async def test_what_another_secret_signed_is_not_believed(
    world: World, listening: Provider, hook: Receiver, books: Control, fault: str
) -> None:
    sent = await move(world, listening, books, fault=fault)
    answers = received(listening, hook)
    forged = [answer for answer in answers if isinstance(answer, Forged)]
    assert [answer.code for answer in forged] == ["signature_wrong"]
    assert {event.object_id for event in believed(answers)} == {sent.id}


@pytest.mark.parametrize("world", ["stripe"], indirect=True)
@pytest.mark.parametrize("fault", ["webhook_stale", "webhook_future"])
async def test_a_wrong_time_is_noticed_where_the_time_is_signed(
    world: World, listening: Provider, hook: Receiver, books: Control, fault: str
) -> None:
    """Where it is not, the dedup key is what stops a replay."""
    code = fault.replace("webhook", "timestamp")
    await move(world, listening, books, fault=fault, seconds=30)
    answers = received(listening, hook)
    codes = [answer.code for answer in answers if isinstance(answer, Forged)]
    assert codes == [code]


async def test_a_lost_webhook_is_found_in_the_list_of_events(
    world: World, listening: Provider, hook: Receiver, books: Control
) -> None:
    books.plan(f"{world.name}.webhook:webhook_lost@*")
    sent = await move(world, listening, books)
    assert hook.received == []
    if listening.facts.events_reach is not None:
        page = await listening.events(cursor=None, now=books.now())
        assert sent.id in {event.object_id for event in page.events}


async def test_a_webhook_that_comes_days_late_is_believed(
    world: World, listening: Provider, hook: Receiver, books: Control
) -> None:
    books.plan(f"{world.name}.webhook:webhook_late@*")
    sent = await move(world, listening, books)
    assert hook.received == []
    books.advance(seconds=3 * DAY)
    events = believed(received(listening, hook))
    assert {event.object_id for event in events} == {sent.id}


async def test_the_order_of_delivery_means_nothing(
    world: World, listening: Provider, hook: Receiver, books: Control
) -> None:
    books.plan(f"{world.name}.webhook:webhook_reordered")
    ids = set()
    for number in (1, 2):
        sent = await send(listening, world.instruction(number))
        assert isinstance(sent, Done)
        ids.add(sent.id)
        books.advance(seconds=A_MINUTE)
    events = believed(received(listening, hook))
    assert {event.object_id for event in events} == ids


class Later(NamedTuple):
    """A success that does not last: which fault of which movement, and what it has become."""

    operation: Purpose
    fault: str
    state: str
    destination: str = ""


LATER = [
    ("stripe", Later("transfer", "reversed", "returned")),
    ("stripe", Later("payout", "paid_then_failed", "failed", "ba_contract")),
    ("adyen", Later("transfer", "accepted_then_refused", "failed")),
    ("adyen", Later("transfer", "returned", "returned")),
    ("wise", Later("transfer", "bounced", "returned")),
]


@pytest.mark.parametrize(
    ("world", "later"), LATER, indirect=["world"], ids=lambda value: getattr(value, "fault", value)
)
async def test_a_success_that_turns_bad_is_seen(
    world: World, listening: Provider, books: Control, later: Later
) -> None:
    instruction: Any = world.instruction()
    if later.destination:
        instruction = msgspec.structs.replace(instruction, destination=later.destination)
    books.plan(f"{world.name}.{later.operation}:{later.fault}")
    sent = await send(listening, instruction)
    assert isinstance(sent, Done), sent
    books.advance(seconds=8 * DAY)
    now = await listening.fetch(later.operation, sent.id)
    assert isinstance(now, Done), now
    assert now.movement.state == later.state


@pytest.mark.parametrize("world", ["stripe", "adyen", "square"], indirect=True)
async def test_a_refund_that_fails_later_is_told(
    world: World, listening: Provider, hook: Receiver, books: Control
) -> None:
    paid = await listening.send(world.charge(), leave())
    assert isinstance(paid, Done), paid
    books.plan(f"{world.name}.refund:refund_failed_later")
    refunded = await listening.send(world.refund(paid.id), leave())
    assert isinstance(refunded, Done), refunded
    books.advance(seconds=2 * DAY)
    events = believed(received(listening, hook))
    states = [one.movement.state for one in events if one.movement is not None and one.movement.purpose == "refund"]
    assert states[-1] == "failed" or "failed" in states or "returned" in states
