"""Faults that one provider alone has, and the proof that no fault of the catalogue goes unseen from our side."""

import asyncio
from pathlib import Path

import pytest

from tallystick.providers.port import Provider
from tallystick.providers.words import Busy, Done, Found, Refused, Unknown
from tallystick.simulator.catalogue import CATALOGUE
from tests.providers.test_contract import made
from tests.providers.worlds import Control, World, impatient, leave, send

stripe = pytest.mark.parametrize("world", ["stripe"], indirect=True)
adyen = pytest.mark.parametrize("world", ["adyen"], indirect=True)
square = pytest.mark.parametrize("world", ["square"], indirect=True)
wise = pytest.mark.parametrize("world", ["wise"], indirect=True)


@stripe
@pytest.mark.parametrize(("fault", "kind"), [("lock_timeout", Busy), ("error_424", Unknown)])
async def test_stripes_own_troubles(
    world: World, provider: Provider, books: Control, fault: str, kind: type[Busy | Unknown]
) -> None:
    books.plan(f"stripe.transfer:{fault}")
    assert isinstance(await send(provider, world.instruction()), kind)
    assert made(books, world, provider, world.instruction()) == []
    assert isinstance(await send(provider, world.instruction()), Done)


@adyen
@pytest.mark.parametrize("fault", ["error_703", "error_704", "error_without_transient"])
async def test_adyens_own_troubles_are_unknown(world: World, provider: Provider, books: Control, fault: str) -> None:
    books.plan(f"adyen.transfer:{fault}")
    assert isinstance(await send(provider, world.instruction()), Unknown)
    assert books.struck() == {fault: 1}


@square
async def test_squares_temporary_error_is_overcome_by_the_same_key(
    world: World, provider: Provider, books: Control
) -> None:
    books.plan("square.charge:temporary_error")
    assert isinstance(await send(provider, world.instruction()), Busy | Unknown)
    assert made(books, world, provider, world.instruction()) == []
    assert isinstance(await send(provider, world.instruction()), Done)
    assert len(made(books, world, provider, world.instruction())) == 1


@pytest.mark.parametrize("world", ["stripe", "adyen", "square", "wise"], indirect=True)
async def test_what_appears_only_later_is_found_later(world: World, provider: Provider, books: Control) -> None:
    """A 500, and minutes later the movement is there after all: why absence after a 5xx proves nothing."""
    instruction = world.instruction()
    began = books.now()
    books.plan(f"{world.name}.{world.operation}:error_500_object_later(600)")
    answer = await send(provider, instruction)
    assert isinstance(answer, Unknown)
    assert answer.server_error
    assert made(books, world, provider, instruction) == []
    books.advance(minutes=20)
    found = await provider.look_up(instruction, first_sent_at=began, now=books.now())
    assert isinstance(found, Found), found
    assert len(made(books, world, provider, instruction)) == 1


@pytest.mark.parametrize("world", ["stripe", "adyen", "square"], indirect=True)
async def test_a_forgotten_key_pays_again(world: World, provider: Provider, books: Control) -> None:
    """The provider's own promise broken: why an exact lookup comes before every second send."""
    instruction = world.instruction()
    await send(provider, instruction)
    books.plan(f"{world.name}.{world.operation}:forget_key")
    await send(provider, instruction)
    assert len(made(books, world, provider, instruction)) == 2


@square
async def test_a_late_create_comes_after_the_cancel_that_found_nothing(
    world: World, provider: Provider, books: Control
) -> None:
    """Why "nothing found" by cancel is no proof of absence."""
    impatient(provider)
    books.plan("square.charge:late_create(1)")
    assert isinstance(await send(provider, world.instruction()), Unknown)
    assert made(books, world, provider, world.instruction()) == []
    while not made(books, world, provider, world.instruction()):
        await asyncio.sleep(0.01)


FUNDING = ["execute_then_500", "execute_then_drop", "execute_then_reset", "cut_body", "html_200", "empty_200"]


@wise
@pytest.mark.parametrize("fault", [*FUNDING, "wrong_type_200", "gateway_503", "gateway_503_after", "drop_before"])
@pytest.mark.parametrize("second", ["conflict_409", "rejected_201"])
async def test_a_funding_nobody_knows_of_is_finished_by_the_same_key(
    world: World, provider: Provider, books: Control, fault: str, second: str
) -> None:
    """The call that moves the money has no key: what protects it is that a transfer is funded once."""
    books.call("PUT", "switches", {"wise.second_funding": second})
    books.plan(f"wise.fund:{fault}")
    assert isinstance(await send(provider, world.instruction()), Unknown)
    again = await send(provider, world.instruction())
    assert isinstance(again, Done), again
    (row,) = made(books, world, provider, world.instruction())
    books.advance(days=1)
    (row,) = made(books, world, provider, world.instruction())
    assert row["state"] == "moved"
    assert len(books.call("GET", "objects?dialect=wise&kind=fund")) <= 1


@wise
async def test_a_rejected_funding_is_cancelled_and_then_refused(
    world: World, provider: Provider, books: Control
) -> None:
    books.plan("wise.fund:fund_rejected(balance.insufficient-funds)")
    answer = await send(provider, world.instruction())
    assert isinstance(answer, Refused), answer
    assert answer.code == "balance.insufficient-funds"
    (row,) = made(books, world, provider, world.instruction())
    assert row["body"]["status"] == "cancelled"


@wise
async def test_a_rejected_funding_whose_cancel_is_not_confirmed_is_unknown(
    world: World, provider: Provider, books: Control
) -> None:
    """The transfer is there and a person could fund it: to call it failed would be to pay it again elsewhere."""
    books.plan("wise.fund:fund_rejected, wise.cancel:gateway_503")
    assert isinstance(await send(provider, world.instruction()), Unknown)
    (row,) = made(books, world, provider, world.instruction())
    assert row["state"] == "waiting"


@wise
async def test_a_funding_that_waits_for_a_persons_approval_moves_nothing(
    world: World, provider: Provider, books: Control
) -> None:
    """And yet it is Unknown: the transfer is there, and the person may approve it without us."""
    books.call("PUT", "switches", {"wise.funding_challenge": "always"})
    answer = await send(provider, world.instruction())
    assert isinstance(answer, Unknown), answer
    assert answer.code == "sca_required"
    (row,) = made(books, world, provider, world.instruction())
    assert row["state"] == "waiting"
    books.call("PUT", "switches", {"wise.funding_challenge": "never"})
    assert isinstance(await send(provider, world.instruction()), Done)
    assert len(made(books, world, provider, world.instruction())) == 1


@wise
async def test_nothing_is_made_when_the_harmless_steps_fail(world: World, provider: Provider, books: Control) -> None:
    for step in ("quote", "recipient"):
        for fault in ("gateway_503", "cut_body", "execute_then_drop", "html_200"):
            books.plan(f"wise.{step}:{fault}")
            answer = await provider.send(world.instruction(), leave())
            assert isinstance(answer, Busy), (step, fault, answer)
    assert made(books, world, provider, world.instruction()) == []


def test_every_fault_of_the_catalogue_is_seen_from_our_side() -> None:
    """A new fault must be written into a test, or this fails."""
    source = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_contract*.py"))
    # Seen with the official package, whose header can carry two signatures.
    elsewhere = {"webhook_two_signatures"}
    missing = {name for name in CATALOGUE if f'"{name}' not in source and f":{name}" not in source} - elsewhere
    assert missing == set()
