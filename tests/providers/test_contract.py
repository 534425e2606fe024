"""The contract: what every adapter promises, against the simulator's dialect of its provider.

The simulator's own books are the second opinion: whatever an adapter says, they tell what moved.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tallystick.errors import NotOffered, ProviderUnreachable
from tallystick.keys.derived import hex64, square45, uuid_form
from tallystick.movement.steps import NOTHING_SENT, believed
from tallystick.providers import paging
from tallystick.providers.port import Provider
from tallystick.providers.words import (
    Absent,
    Busy,
    Done,
    Event,
    Found,
    Instruction,
    Lookup,
    Refused,
    Transfer,
    Undecided,
    Unknown,
)
from tallystick.simulator.dialects import every_dialect
from tests.providers.worlds import API_KEY, WORLDS, Control, World, impatient, leave, send

NOW = datetime(2026, 11, 15, tzinfo=UTC)
FORMS = {"hex64": hex64, "square45": square45, "uuid": uuid_form}


def reference(provider: Provider, instruction: Instruction) -> str:
    """Our key as this provider's books show it."""
    text = FORMS[provider.facts.key_form](instruction.key)
    return text[:40] if provider.facts.key_form == "square45" else text


def made(books: Control, world: World, provider: Provider, instruction: Instruction) -> list[dict[str, Any]]:
    """What the provider's books say was made for this instruction."""
    wanted = reference(provider, instruction)
    return [row for row in books.made(world.name, world.purpose) if row["reference"] == wanted]


async def test_an_instruction_is_carried_out_once_however_often_it_is_sent(
    world: World, provider: Provider, books: Control
) -> None:
    instruction = world.instruction()
    first = await send(provider, instruction)
    assert isinstance(first, Done), first
    for _ in range(3):
        again = await send(provider, instruction)
        assert isinstance(again, Done), again
        assert again.id == first.id
    (row,) = made(books, world, provider, instruction)
    assert row["id"] == first.id
    assert first.movement.amount_micros == 12_340_000
    assert row["amount"] == (12_340_000 if world.name == "wise" else 1234)


async def test_twins_at_the_same_moment_move_once(world: World, provider: Provider, books: Control) -> None:
    instruction = world.instruction()
    answers = await asyncio.gather(*(send(provider, instruction) for _ in range(10)))
    assert all(isinstance(answer, Done | Unknown) for answer in answers), answers
    assert len({answer.id for answer in answers if isinstance(answer, Done)}) == 1
    assert len(made(books, world, provider, instruction)) == 1


async def test_one_key_never_covers_another_amount(world: World, provider: Provider, books: Control) -> None:
    """Whatever the provider makes of it, nobody may be told that the second amount moved."""
    assert isinstance(await send(provider, world.instruction()), Done)
    assert isinstance(await send(provider, world.instruction(micros=50_000_000)), Unknown)
    (row,) = made(books, world, provider, world.instruction())
    assert row["amount"] == (12_340_000 if world.name == "wise" else 1234)


# What each fault of the simulator must look like from our side. `made`: whether the provider did it all the same.
UNKNOWN_AND_MADE = [
    "execute_then_500",
    "execute_then_drop",
    "execute_then_reset",
    "cut_body",
    "html_200",
    "empty_200",
    "wrong_type_200",
    "huge_body(9)",
    "gateway_502_after",
    "gateway_503_after",
    "gateway_504_after",
]
UNKNOWN_AND_NOT_MADE = [
    "error_500_no_object",
    "drop_before",
    "in_flight",
    "redirect",
    "gateway_502",
    "gateway_503",
    "gateway_504",
]


@pytest.mark.parametrize("fault", [*UNKNOWN_AND_MADE, *UNKNOWN_AND_NOT_MADE])
async def test_what_nobody_can_know_is_unknown(world: World, provider: Provider, books: Control, fault: str) -> None:
    instruction = world.instruction()
    books.plan(f"{world.name}.{world.operation}:{fault}")
    answer = await send(provider, instruction)
    assert isinstance(answer, Unknown), answer
    assert sum(books.struck().values()) == 1
    assert len(made(books, world, provider, instruction)) == (fault in UNKNOWN_AND_MADE)
    assert API_KEY not in repr(answer)


@pytest.mark.parametrize("fault", UNKNOWN_AND_MADE)
async def test_sent_again_under_its_key_it_never_moves_twice(
    world: World, provider: Provider, books: Control, fault: str
) -> None:
    instruction = world.instruction()
    books.plan(f"{world.name}.{world.operation}:{fault}")
    await send(provider, instruction)
    again = await send(provider, instruction)
    assert len(made(books, world, provider, instruction)) == 1
    # A stored 500 is replayed, and stays what it is: unknown.
    assert isinstance(again, Unknown if fault == "execute_then_500" and world.name == "stripe" else Done | Unknown)


@pytest.mark.parametrize("fault", ["slow_before(0.6)", "slow_after(0.6)", "hang", "trickle(2)"])
async def test_silence_is_unknown(world: World, provider: Provider, books: Control, fault: str) -> None:
    impatient(provider)
    instruction = world.instruction()
    books.plan(f"{world.name}.{world.operation}:{fault}")
    answer = await send(provider, instruction)
    assert isinstance(answer, Unknown), answer
    # The provider went on without us.
    for _ in range(500):
        if made(books, world, provider, instruction):
            break
        await asyncio.sleep(0.01)
    assert len(made(books, world, provider, instruction)) == 1


@pytest.mark.parametrize("fault", ["unauthorized", "forbidden", "rate_limited"])
async def test_what_is_known_not_to_have_run_is_busy(
    world: World, provider: Provider, books: Control, fault: str
) -> None:
    instruction = world.instruction()
    books.plan(f"{world.name}.{world.operation}:{fault}")
    answer = await send(provider, instruction)
    assert isinstance(answer, Busy), answer
    assert answer.needs_person == (fault != "rate_limited")
    assert made(books, world, provider, instruction) == []


async def test_a_refusal_is_final_and_moved_nothing(world: World, provider: Provider, books: Control) -> None:
    instruction = world.instruction()
    books.plan(f"{world.name}.{world.operation}:refused")
    answer = await send(provider, instruction)
    known = believed(NOTHING_SENT, answer, attempt=1, since=NOW, now=NOW, facts=provider.facts)
    assert isinstance(known, Refused), answer
    assert made(books, world, provider, instruction) == []


async def test_nothing_is_sent_without_leave(world: World, provider: Provider, books: Control) -> None:
    answer = await _with_leave(provider, world.instruction(), -1)
    assert isinstance(answer, Busy)
    assert answer.code == "not_after_passed"
    assert made(books, world, provider, world.instruction()) == []


async def _with_leave(provider: Provider, instruction: Instruction, seconds: float) -> Any:
    return await provider.send(instruction, leave(seconds))


async def test_a_lookup_finds_what_was_made_although_nobody_was_told(
    world: World, provider: Provider, books: Control
) -> None:
    instruction = world.instruction()
    began = books.now()
    before = await provider.look_up(instruction, first_sent_at=began, now=books.now())
    strength = provider.facts.lookup[world.purpose]
    assert isinstance(before, Absent)
    assert before.lookup == strength
    books.plan(f"{world.name}.{world.operation}:execute_then_drop")
    await send(provider, instruction)
    found = await provider.look_up(instruction, first_sent_at=began, now=books.now())
    assert isinstance(found, Found), found
    (movement,) = found.movements
    assert (movement.amount_micros, movement.currency) == (12_340_000, world.currency)
    assert movement.reference == reference(provider, instruction)


@pytest.mark.parametrize("fault", ["gateway_503", "cut_body", "html_200", "wrong_type_200", "empty_200"])
async def test_a_lookup_that_was_not_answered_proves_nothing(
    world: World, provider: Provider, books: Control, fault: str
) -> None:
    """To read absence out of a broken answer would be to pay twice."""
    books.plan(f"{world.name}.*:{fault}@*")
    looked = await provider.look_up(world.instruction(), first_sent_at=books.now(), now=books.now())
    assert isinstance(looked, Undecided), looked


async def test_a_question_for_one_movement_tells_what_is_not_there_from_what_was_not_said(
    world: World, provider: Provider, books: Control
) -> None:
    made_one = await send(provider, world.instruction())
    assert isinstance(made_one, Done), made_one
    found = await provider.fetch(world.purpose, made_one.id)
    assert isinstance(found, Done), found
    assert found.movement.id == made_one.id
    # As long, and of the same letters, and nobody's.
    other = made_one.id[:-4] + ("9999" if made_one.id[-4:] != "9999" else "8888")
    assert isinstance(await provider.fetch(world.purpose, other), Absent)
    for fault, may_pass in (("gateway_503", True), ("cut_body", True), ("wrong_type_200", False)):
        books.call("DELETE", "faults")
        books.plan(f"{world.name}.*:{fault}@*")
        unsaid = await provider.fetch(world.purpose, made_one.id)
        assert isinstance(unsaid, Undecided), (fault, unsaid)
        assert unsaid.may_pass is may_pass, fault


async def test_the_list_of_movements_is_whole_across_its_pages(
    world: World, provider: Provider, books: Control
) -> None:
    since = books.now() - timedelta(minutes=1)
    answers = await asyncio.gather(*(send(provider, world.instruction(number)) for number in range(1, 231)))
    ids = [answer.id for answer in answers if isinstance(answer, Done)]
    assert len(ids) == 230
    listed = [
        movement.id
        async for movement in provider.movements(since=since, until=books.now() + timedelta(minutes=1))
        if movement.purpose == world.purpose
    ]
    assert sorted(listed) == sorted(ids)


async def test_a_list_that_breaks_off_is_not_taken_for_the_whole(
    world: World, provider: Provider, books: Control
) -> None:
    since = books.now() - timedelta(minutes=1)
    await asyncio.gather(*(send(provider, world.instruction(number)) for number in range(1, 131)))
    _break_off(world, books, times=1 + len(paging.PAUSES))
    with pytest.raises(ProviderUnreachable):
        async for _ in provider.movements(since=since, until=books.now() + timedelta(minutes=1)):
            pass


async def test_a_page_that_does_not_come_is_asked_for_again(world: World, provider: Provider, books: Control) -> None:
    """Of a thousand pages some always fail: all that was read before is not given up for one of them."""
    since = books.now() - timedelta(minutes=1)
    answers = await asyncio.gather(*(send(provider, world.instruction(number)) for number in range(1, 131)))
    ids = [answer.id for answer in answers if isinstance(answer, Done)]
    _break_off(world, books, times=3)
    listed = [
        movement.id
        async for movement in provider.movements(since=since, until=books.now() + timedelta(minutes=1))
        if movement.purpose == world.purpose
    ]
    assert (len(ids), sorted(listed)) == (130, sorted(ids))
    assert books.struck()["cut_body"] == 3


def _break_off(world: World, books: Control, *, times: int) -> None:
    """The second page of a list does not come whole, so many times."""
    calls = range(2, 2 + times)
    books.plan(", ".join(f"{world.name}.{name}:cut_body@{call}" for call in calls for name in ("list", "lookup")))


async def test_events_are_listed_from_a_cursor_without_loss(world: World, provider: Provider, books: Control) -> None:
    if provider.facts.events_reach is None:
        with pytest.raises(NotOffered):
            await provider.events(cursor=None, now=books.now())
        return
    cursor: str | None = None
    seen: list[Event] = []
    for first, last in ((1, 120), (120, 130)):
        await asyncio.gather(*(send(provider, world.instruction(number)) for number in range(first, last)))
        books.advance(seconds=1)
        while True:
            page = await provider.events(cursor=cursor, now=books.now())
            seen += page.events
            cursor = page.cursor
            if not page.more:
                break
    told = {event.object_id for event in seen}
    assert {row["id"] for row in books.made(world.name, world.purpose)} <= told


async def test_a_refund_is_made_once_and_never_more_than_was_paid(
    world: World, provider: Provider, books: Control
) -> None:
    if not world.refunds:
        assert isinstance(await provider.send(world.refund("1"), leave()), Refused)
        return
    paid = await provider.send(world.charge(), leave())
    assert isinstance(paid, Done), paid
    half = world.refund(paid.id, micros=6_170_000)
    first, again = await provider.send(half, leave()), await provider.send(half, leave())
    assert isinstance(first, Done), first
    assert isinstance(again, Done), again
    assert first.id == again.id
    assert first.movement.parent == paid.id
    books.plan(f"{world.name}.refund:execute_then_drop")
    rest = world.refund(paid.id, 1002, micros=6_170_000)
    assert isinstance(await provider.send(rest, leave()), Unknown)
    assert isinstance(await provider.send(rest, leave()), Done)
    refunds = books.made(world.name, "refund")
    assert [row["amount"] for row in refunds] == [617, 617]


async def test_a_provider_that_cannot_do_it_says_so_before_anything_is_sent(
    world: World, provider: Provider, books: Control
) -> None:
    books.plan(f"{world.name}.*:execute_then_500@*")
    if not provider.facts.pushes_money:
        transfer = Transfer(key=bytes(32), destination="x", amount_micros=1_000_000, currency="EUR")
        answer = await provider.send(transfer, leave())
        assert isinstance(answer, Refused)
        assert "third part" in answer.message
    if world.payment_method is None:
        assert isinstance(await provider.send(world.charge(), leave()), Refused)
    assert books.struck() == {}


@pytest.mark.parametrize("micros", [1, 12_340_001, 12_345_000])
async def test_an_amount_it_cannot_write_exactly_is_refused_before_anything_is_sent(
    world: World, provider: Provider, books: Control, micros: int
) -> None:
    books.plan(f"{world.name}.*:execute_then_500@*")
    answer = await send(provider, world.instruction(micros=micros))
    assert isinstance(answer, Refused)
    assert (answer.code, books.struck()) == ("amount_not_representable", {})


async def test_past_the_horizon_the_key_means_nothing_any_more(
    world: World, provider: Provider, books: Control
) -> None:
    """Why nothing may be sent again blindly: the same bytes, a day later, move the money a second time."""
    shortest = {"square.key_retention": "1_hour", "wise.retention": "30_days"}
    switches = {name: value for name, value in shortest.items() if name.startswith(world.name)}
    books.call("PUT", "switches", switches)
    instruction = world.instruction()
    await send(provider, instruction)
    books.advance(seconds=(provider.facts.key_horizon - provider.facts.key_margin).total_seconds() - 60)
    await send(provider, instruction)
    assert len(made(books, world, provider, instruction)) == 1
    books.advance(days=31)
    await send(provider, instruction)
    assert len(made(books, world, provider, instruction)) == 2


SWITCHES = [
    pytest.param(world, switch.name, value, id=f"{switch.name}={value}")
    for world in WORLDS
    for dialect in every_dialect()
    if dialect.name == world.name
    for switch in dialect.switches
    for value in switch.values
]


@pytest.mark.parametrize(("world", "switch", "value"), SWITCHES, indirect=["world"])
async def test_however_an_unverified_fact_turns_out_money_moves_once(
    world: World, provider: Provider, books: Control, switch: str, value: str
) -> None:
    books.call("PUT", "switches", {switch: value})
    instruction = world.instruction()
    books.plan(f"{world.name}.{world.operation}:execute_then_drop")
    answers = [await send(provider, instruction)]
    answers += await asyncio.gather(*(send(provider, instruction) for _ in range(3)))
    answers.append(await send(provider, instruction))
    assert len(made(books, world, provider, instruction)) == 1
    assert not any(isinstance(answer, Refused) for answer in answers), answers
    other = await send(provider, world.instruction(micros=99_000_000))
    assert isinstance(other, Unknown | Busy), other
    assert len(made(books, world, provider, instruction)) == 1


async def test_it_answers_a_harmless_question(world: World, provider: Provider, books: Control) -> None:
    there = await provider.ping()
    assert (there.reachable, there.authorised) == (True, True), there
    books.plan(f"{world.name}.*:unauthorized@*")
    there = await provider.ping()
    assert (there.reachable, there.authorised) == (True, False), there
    assert API_KEY not in repr(there)


async def test_two_hundred_are_in_flight_at_once(world: World, provider: Provider, books: Control) -> None:
    """Were they sent one after the other, this would take minutes."""
    books.plan(f"{world.name}.{world.operation}:slow_after(1)@*")
    answers = await asyncio.gather(*(send(provider, world.instruction(number)) for number in range(1, 201)))
    assert all(isinstance(answer, Done) for answer in answers)
    assert len(books.made(world.name, world.purpose)) == 200


def test_facts_are_complete_and_sane(world: World, provider: Provider) -> None:
    facts = provider.facts
    assert facts.key_margin < facts.key_horizon
    assert len(FORMS[facts.key_form](bytes(32))) <= facts.key_characters
    assert facts.concurrency >= 200
    assert set(facts.lookup) == {"charge", "refund", "transfer", "payout"}
    assert all(isinstance(strength, Lookup) for strength in facts.lookup.values())
    assert facts.lookup[world.purpose] != Lookup.NONE
