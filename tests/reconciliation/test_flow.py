"""Both halves compared, on a real database and a real simulator: every break is found, and nothing else is one."""

import http.client
import json
import urllib.parse
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from tallystick import app
from tallystick.access.store import ensure_tenant
from tallystick.errors import Misconfigured, RestoredDatabase, Unreachable
from tallystick.keys.derived import digest, uuid_form
from tallystick.ledger.decisions import Reviewed
from tallystick.providers import paging
from tallystick.providers.port import Provider
from tallystick.providers.words import Movement, Transfer
from tallystick.reconciliation import flow as reconciliation
from tallystick.reconciliation import store
from tallystick.reconciliation.flow import Break, Reconciled, reconcile
from tallystick.settlement.review.store import ReviewView
from tallystick.settlement.store import SettlementView, figures
from tallystick.simulator.process import start
from tests import servers
from tests.ledgers import broken
from tests.providers.worlds import WORLDS, Control, World
from tests.recoveries import AT_ONCE, recovering
from tests.sends import send_alone
from tests.settlements import A_WHILE, Shop, books, pass_time, shop, superuser

PAYING = [world for world in WORLDS if world.purpose == "transfer"]


@pytest.fixture(scope="module")
def own_simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its clock is never put forward: lists are by the provider's time."""
    folder = tmp_path_factory.mktemp("reconciliation")
    running = start(folder / "books.sqlite", log=folder / "log")
    yield running.url
    running.stop()


@pytest.fixture
def control(own_simulator: str) -> Control:
    made = Control(own_simulator)
    made.call("POST", "reset")
    return made


@pytest_asyncio.fixture
async def till(embedded18: servers.Server, control: Control) -> AsyncIterator[Shop]:
    async with shop(embedded18.fresh_database(), control) as opened:
        yield opened


async def compare(till: Shop, *, providers: Any = None, **options: Any) -> tuple[Reconciled, list[Break]]:
    told: list[Break] = []
    found = await reconcile(
        till.database, providers or till.providers, till.reviews, by="tests", tell=told.append, **options
    )
    assert found.breaks == len(told)
    assert [one.kind for one in told if one.kind == "timing"] == []
    return found, told


async def kinds(till: Shop, **options: Any) -> list[tuple[str, str]]:
    """What a run found that was not cut short."""
    found, told = await compare(till, **options)
    assert found.is_complete, found
    return sorted((one.kind, one.reason) for one in told)


async def paid(till: Shop, attribution: str = "a", **fields: Any) -> SettlementView:
    """A settlement that was transferred, some time ago."""
    view = await till.create(attribution, **fields)
    await till.tick()
    found = await till.read(view.id)
    assert found.status == "transferred", found
    await pass_time(till.dsn, A_WHILE)
    return found


def by_hand(control: Control, reference: str = "", *, cents: int = 1234, path: str = "transfers") -> str:
    """A transfer that somebody makes at the provider, past all of our guards."""
    fields: dict[str, Any] = {"amount": cents, "currency": "eur"}
    if path == "transfers":
        fields |= {"destination": "acct_good"}
    if reference:
        fields |= {"metadata[tally_key]": reference}
        fields |= {"transfer_group": reference} if path == "transfers" else {}
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(control.url).netloc, timeout=30)
    headers = {"authorization": "Bearer sk_test_hand", "content-type": "application/x-www-form-urlencoded"}
    connection.request("POST", f"/stripe/v1/{path}", urllib.parse.urlencode(fields), headers)
    made = json.loads(connection.getresponse().read())
    connection.close()
    return str(made["id"])


def act(control: Control, action: str, object_id: str, dialect: str = "stripe") -> None:
    control.call("POST", "act", {"dialect": dialect, "action": action, "id": object_id})


async def resolved(till: Shop, view: SettlementView, resolution: str, key: str, **more: Any) -> SettlementView:
    outcome = await till.reviews.resolve(
        till.tenant,
        view.id,
        resolution=resolution,
        reason="looked",
        evidence="dashboard",
        by="ann",
        idempotency_key=key,
        **{"transfer_id": None, **more},
    )
    assert isinstance(outcome, Reviewed), outcome
    return msgspec.json.decode(outcome.body, type=ReviewView).settlement


async def paid_again(till: Shop, view: SettlementView) -> None:
    """A failed one is paid under a new key, with a second person's approval."""
    asked = await till.reviews.resolve(
        till.tenant,
        view.id,
        resolution="retry",
        reason="account is open again",
        evidence="mail",
        transfer_id=None,
        by="ann",
        idempotency_key="retry",
    )
    assert isinstance(asked, Reviewed), asked
    approval = msgspec.json.decode(asked.body, type=ReviewView).approval
    assert approval is not None
    await till.reviews.decide(
        till.tenant, approval.id, decision="approve", reason="yes", by="bob", idempotency_key="approve"
    )
    await till.tick()
    assert (await till.read(view.id)).status == "transferred"


# --- nothing to find


@pytest.mark.parametrize("world", PAYING, ids=lambda world: world.name)
async def test_halves_that_match_have_no_break_at_every_provider(
    embedded18: servers.Server, control: Control, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one chunk of them, so that what joins chunks is used."""
    monkeypatch.setattr(reconciliation, "CHUNK", 3)
    provider = world.make(control.url, "", "")
    async with shop(embedded18.fresh_database(), control, providers={world.name: provider}) as till:
        wish: dict[str, Any] = {"provider": world.name, "destination": world.destination, "currency": world.currency}
        await till.create_many(8, **wish)
        await till.tick()
        await pass_time(till.dsn, A_WHILE)
        found, told = await compare(till)
        await provider.close()
    assert told == []
    (one,) = found.compared
    assert (one.movements, one.expected, one.asked, one.timing, one.broken_off) == (8, 8, 0, 0, None)


async def test_two_tenants_at_one_provider_are_each_found_and_named(till: Shop) -> None:
    other = await ensure_tenant(till.database, "birch")
    await paid(till, "a")
    await till.create("a", tenant=other, key="other")
    await till.tick()
    await pass_time(till.dsn, A_WHILE)
    assert await kinds(till) == []
    for movement in books(till.control):
        act(till.control, "reverse", movement.id)
    _, told = await compare(till)
    assert {one.tenant for one in told} == {"default", "birch"}


async def test_what_another_flow_sent_is_not_called_missing(till: Shop) -> None:
    instruction = Transfer(
        key=digest("other", number=1), destination="acct_good", amount_micros=5_000_000, currency="EUR"
    )
    await send_alone(
        till.database,
        till.sender,
        till.providers["simulator"],
        till.tenant,
        instruction,
        since=datetime.now(UTC),
        name="simulator",
    )
    assert len(books(till.control)) == 1
    assert await kinds(till) == []


# --- the provider has what we have not


@pytest.mark.parametrize(
    ("reference", "reason"), [("", "no_reference"), ("invoice 17", "key_unknown"), ("ab" * 32, "key_unknown")]
)
async def test_a_movement_nobody_here_asked_for_is_missing_here(till: Shop, reference: str, reason: str) -> None:
    await paid(till)
    id_ = by_hand(till.control, reference)
    _, told = await compare(till)
    assert [(one.kind, one.reason, one.movement and one.movement.id) for one in told] == [("missing_here", reason, id_)]
    assert "12.34 EUR" in told[0].said


async def test_a_repair_keeps_it_so_that_a_settlement_made_again_is_asked_about(till: Shop) -> None:
    """Its row was lost with a backup; created again it has the same key, and was paid under it already."""
    view = await till.create("a")
    key = view.idempotency_key
    lost = bytes.fromhex(key)
    await _as_superuser(till.dsn, "DELETE FROM tally.settlement_state", "DELETE FROM tally.settlement")
    by_hand(till.control, lost.hex())
    _, told = await compare(till, repair=True)
    assert [(one.kind, one.is_repaired) for one in told] == [("missing_here", False)]
    again = await till.create("a", key="again")
    assert again.idempotency_key == key
    await till.tick()
    assert (await till.read(again.id)).status == "transferred"
    assert len(books(till.control)) == 1


async def test_failed_payouts_of_others_are_nobodys_business(till: Shop) -> None:
    payout = by_hand(till.control, path="payouts")
    assert await kinds(till) == [("missing_here", "no_reference")]
    act(till.control, "fail", payout)
    assert await kinds(till) == []


# --- both have it, and differ


@pytest.mark.parametrize(
    ("name", "action"), [("stripe", "reverse"), ("adyen", "return"), ("wise", "bounce")], ids=lambda value: value
)
async def test_a_payout_that_came_back_is_told_then_disputed_once(
    embedded18: servers.Server, control: Control, name: str, action: str
) -> None:
    world = next(world for world in PAYING if world.name == name)
    provider = world.make(control.url, "", "")
    async with shop(embedded18.fresh_database(), control, providers={name: provider}) as till:
        wish = {"provider": name, "destination": world.destination, "currency": world.currency}
        view = await paid(till, **wish)
        assert view.transfer_id is not None
        if name == "wise":
            for step in ("convert", "send"):
                act(control, step, view.transfer_id, name)
        if name == "adyen":
            for step in ("authorise", "book"):
                act(control, step, view.transfer_id, name)
        assert await kinds(till) == []
        act(control, action, view.transfer_id, name)
        expected = [("state_differs", "returned_after_transferred")]
        assert await kinds(till) == expected
        assert (await till.read(view.id)).status == "transferred", "looking changes nothing"
        _, told = await compare(till, repair=True)
        assert [(one.kind, one.reason, one.is_repaired) for one in told] == [(*expected[0], True)]
        now = await till.read(view.id)
        assert (now.status, now.reason) == ("disputed", "returned_after_transferred")
        assert (await till.balances())[f"in_transit:{world.currency}:{name}"] == view.amount_micros
        _, told = await compare(till, repair=True)
        assert [(one.kind, one.is_repaired) for one in told] == [("undecided", False)]
        assert [event.what for event in await till.history(view)].count("came_back") == 1
        await resolved(till, view, "write_off", "r")
        assert await kinds(till) == [], "decided: both say that the payee has nothing"
        assert await broken(till.dsn) == {}
        await provider.close()


async def test_a_second_movement_is_a_double_and_counts_once(till: Shop) -> None:
    view = await paid(till)
    second = by_hand(till.control, view.idempotency_key)
    _, told = await compare(till)
    assert [(one.kind, one.reason, one.movement and one.movement.id) for one in told] == [
        ("duplicated", "moved_twice", second)
    ]
    for expected in (True, False):
        _, told = await compare(till, repair=True)
        assert any(one.is_repaired for one in told) == expected
        assert Counter(one.kind for one in told)["duplicated"] == 1
    counts, _, _ = await figures(till.database)
    assert counts["doubles"] == 1
    assert (await till.read(view.id)).reason == "moved_twice"
    # One of the two is taken back, and a person says so.
    act(till.control, "reverse", second)
    await resolved(till, view, "confirm", "r", transfer_id=view.transfer_id)
    await pass_time(till.dsn, A_WHILE)
    assert await kinds(till) == []
    assert await broken(till.dsn) == {}


async def test_a_double_of_a_payout_that_is_disputed_for_something_else_is_noted_and_counted_once(till: Shop) -> None:
    view = await paid(till)
    await till.reviews.dispute(
        till.tenant, view.id, reason="never came", evidence="mail", by="ann", idempotency_key="d"
    )
    by_hand(till.control, view.idempotency_key)
    for expected in (1, 0):
        _, told = await compare(till, repair=True)
        assert Counter(one.kind for one in told) == {"undecided": 2, "duplicated": 1}
        assert sum(one.is_repaired for one in told) == expected
    counts, _, _ = await figures(till.database)
    assert counts["doubles"] == 1
    assert await broken(till.dsn) == {}


async def test_another_amount_than_ours_is_told_and_disputed(till: Shop) -> None:
    view = await paid(till)
    # The provider's books cannot be changed, so ours are: what was meant to be paid was less.
    await _as_superuser(till.dsn, "UPDATE tally.settlement SET amount_micros = amount_micros - 10000")
    assert await kinds(till) == [("amount_differs", "amount_differs")]
    _, told = await compare(till, repair=True)
    assert told[0].is_repaired
    assert "12.33 EUR" in told[0].said
    assert "12.34 EUR" in told[0].said
    assert (await till.read(view.id)).status == "disputed"


async def test_what_moved_after_it_was_called_failed_is_disputed_and_its_money_leaves_payable(till: Shop) -> None:
    till.control.plan("stripe.transfer:refused(account_closed)")
    view = await till.create("a")
    await till.tick()
    assert (await till.read(view.id)).status == "failed"
    await pass_time(till.dsn, A_WHILE)
    assert await kinds(till) == []
    moved = by_hand(till.control, view.idempotency_key)
    assert await kinds(till) == [("state_differs", "moved_after_failed")]
    await compare(till, repair=True)
    now = await till.read(view.id)
    assert (now.status, now.transfer_id) == ("disputed", moved)
    assert (await till.balances())["in_transit:EUR:simulator"] == view.amount_micros
    assert await broken(till.dsn) == {}


async def test_a_pending_payout_that_moved_is_stopped_before_it_is_sent(till: Shop) -> None:
    view = await till.create("a")
    await pass_time(till.dsn, A_WHILE)
    by_hand(till.control, view.idempotency_key)
    assert await kinds(till) == [("state_differs", "moved_before_it_was_sent")]
    await compare(till, repair=True)
    assert (await till.tick()).sent == 0
    assert len(books(till.control)) == 1
    assert await broken(till.dsn) == {}


async def test_a_movement_under_an_ended_key_is_found_by_it(till: Shop) -> None:
    till.control.plan("stripe.transfer:refused(account_closed)")
    view = await till.create("a")
    await till.tick()
    await paid_again(till, view)
    second = await till.read(view.id)
    assert (second.status, second.generation) == ("transferred", 1)
    await pass_time(till.dsn, A_WHILE)
    assert await kinds(till) == []
    first = by_hand(till.control, view.idempotency_key)
    assert await kinds(till) == [("duplicated", "earlier_generation_moved")]
    await compare(till, repair=True)
    # Both moved; the second is taken back, and a person says that the first is the one that paid.
    assert second.transfer_id is not None
    act(till.control, "reverse", second.transfer_id)
    await resolved(till, view, "confirm", "c", transfer_id=first)
    await pass_time(till.dsn, A_WHILE)
    assert await kinds(till) == []


# --- we have what the provider has not


async def test_a_payout_the_provider_lost_is_told_then_disputed_once(till: Shop) -> None:
    view = await paid(till)
    till.control.call("POST", "reset")
    found, told = await compare(till)
    assert [(one.kind, one.reason, one.settlement) for one in told] == [
        ("missing_there", "missing_at_the_provider", view.id)
    ]
    assert found.compared[0].asked == 1, "asked for by its id before it is believed"
    _, told = await compare(till, repair=True)
    assert [one.is_repaired for one in told] == [True]
    now = await till.read(view.id)
    assert (now.status, now.reason) == ("disputed", "missing_at_the_provider")
    assert (await till.balances())["in_transit:EUR:simulator"] == view.amount_micros
    (event,) = [event for event in await till.history(view) if event.what == "disputed"]
    assert f"GET /v1/transfers/{view.transfer_id}" in bytes(event.body).decode()
    # A person knows better, and is not overruled by the same absence; but it is told again.
    await resolved(till, view, "confirm", "r")
    await pass_time(till.dsn, A_WHILE)
    _, told = await compare(till, repair=True)
    assert [(one.kind, one.is_repaired) for one in told] == [("missing_there", False)]
    assert (await till.read(view.id)).status == "transferred"
    assert await broken(till.dsn) == {}


async def test_a_payout_that_is_there_under_another_id_is_not_missing(till: Shop) -> None:
    """Called missing, two people could pay it again."""
    view = await paid(till)
    till.control.call("POST", "reset")
    by_hand(till.control, view.idempotency_key)
    found, told = await compare(till)
    assert ([one.kind for one in told], found.compared[0].asked) == (["duplicated"], 0)


async def test_what_the_provider_lost_can_be_paid_again_by_two_people(till: Shop) -> None:
    """It once answered that it was made; only its own books, read by a run, show that it is not."""
    view = await paid(till)
    till.control.call("POST", "reset")
    await compare(till, repair=True)
    await resolved(till, view, "confirm", "c")
    await pass_time(till.dsn, A_WHILE)
    await compare(till, repair=True)
    assert [event.what for event in await till.history(view)].count("missing_there") == 1
    await till.reviews.dispute(till.tenant, view.id, reason="lost", evidence="mail", by="ann", idempotency_key="d")
    await resolved(till, view, "write_off", "off")
    await paid_again(till, view)
    assert len(books(till.control)) == 1
    await pass_time(till.dsn, A_WHILE)
    assert await kinds(till) == []
    assert await broken(till.dsn) == {}


@pytest.mark.parametrize("name", ["adyen", "wise"])
async def test_every_provider_says_when_it_does_not_know_an_id(
    embedded18: servers.Server, control: Control, name: str
) -> None:
    world = next(world for world in PAYING if world.name == name)
    provider = world.make(control.url, "", "")
    async with shop(embedded18.fresh_database(), control, providers={name: provider}) as till:
        await paid(till, provider=name, destination=world.destination, currency=world.currency)
        control.call("POST", "reset")
        assert await kinds(till) == [("missing_there", "missing_at_the_provider")]
        await provider.close()


async def test_absence_says_nothing_of_a_payout_that_was_sent_a_moment_ago(till: Shop) -> None:
    await till.create("a")
    await till.tick()
    till.control.call("POST", "reset")
    found, told = await compare(till, repair=True)
    assert (told, found.compared[0].timing, found.compared[0].asked) == ([], 1, 0)


async def test_absence_from_another_accounts_books_says_nothing(till: Shop) -> None:
    view = await paid(till)
    till.control.call("POST", "reset")
    till.providers["simulator"].account = "live acct_other"
    _, told = await compare(till, repair=True)
    assert [(one.kind, one.reason) for one in told] == [("undecided", "sent_with_another_account")]
    assert (await till.read(view.id)).status == "transferred"


async def test_absence_is_not_final_for_a_span_that_does_not_hold_every_send(till: Shop) -> None:
    """Sent first before the span: it may be there, under an id that nobody recorded."""
    till.control.plan("stripe.transfer:execute_then_drop")
    view = await till.create("a")
    await till.tick()
    await pass_time(till.dsn, timedelta(hours=2))
    till.control.call("POST", "reset")
    await till.tick()
    assert (await till.read(view.id)).status == "transferred"
    await pass_time(till.dsn, A_WHILE)
    till.control.call("POST", "reset")
    assert await kinds(till, since=timedelta(hours=1), repair=True) == [("undecided", "sent_outside_the_span")]
    assert await kinds(till, since=timedelta(hours=4)) == [("missing_there", "missing_at_the_provider")]


async def test_a_payout_made_outside_of_the_list_is_asked_for_by_its_id(
    embedded18: servers.Server, tmp_path: Path
) -> None:
    """The provider's clock is wrong by two days, so no list of our span shows it."""
    running = start(tmp_path / "books.sqlite", log=tmp_path / "log")
    control = Control(running.url)
    control.advance(days=2)
    async with shop(embedded18.fresh_database(), control) as till:
        view = await paid(till)
        found, told = await compare(till)
        assert (told, found.compared[0].asked, found.compared[0].movements) == ([], 1, 1)
        assert view.transfer_id is not None
        act(control, "reverse", view.transfer_id)
        assert await kinds(till) == [("state_differs", "returned_after_transferred")]
    running.stop()


async def test_a_payout_sent_outside_of_the_span_is_not_looked_for(till: Shop) -> None:
    await paid(till)
    await pass_time(till.dsn, timedelta(hours=3))
    till.control.call("POST", "reset")
    found, told = await compare(till, since=timedelta(hours=1))
    assert (told, found.compared[0].expected) == ([], 0)
    found, told = await compare(till, since=timedelta(hours=5), until=timedelta(hours=1))
    assert [one.kind for one in told] == ["missing_there"]


async def test_a_payout_found_after_a_restore_is_expected_by_its_creation(till: Shop) -> None:
    """Nothing here tells when it was sent."""
    view = await till.create("a")
    by_hand(till.control, view.idempotency_key)
    provider = till.providers["simulator"]
    provider.facts = msgspec.structs.replace(provider.facts, longest_in_flight=timedelta(0))
    await recovering(till.database, till.providers, settler=till.settler, limits=AT_ONCE)
    assert (await till.read(view.id)).status == "transferred"
    await pass_time(till.dsn, A_WHILE)
    found, told = await compare(till)
    assert (told, found.compared[0].expected) == ([], 1)
    till.control.call("POST", "reset")
    assert await kinds(till, repair=True) == [("undecided", "sent_outside_the_span")]


async def test_a_payout_confirmed_under_anothers_movement_is_disputed(till: Shop) -> None:
    first, second = await paid(till, "a"), await paid(till, "b")
    till.control.call("POST", "reset")
    await compare(till, repair=True)
    moved = by_hand(till.control, first.idempotency_key)
    await resolved(till, second, "confirm", "r", transfer_id=moved)
    await pass_time(till.dsn, A_WHILE)
    _, told = await compare(till, repair=True)
    assert [(one.kind, one.reason, one.settlement, one.is_repaired) for one in told] == [
        ("undecided", "missing_at_the_provider", first.id, False),
        ("missing_there", "paid_another", second.id, True),
    ]
    assert (await till.read(second.id)).status == "disputed"
    # Its own appears: now it is confirmed under it, and the other's is free for the other.
    own = by_hand(till.control, second.idempotency_key)
    await resolved(till, second, "confirm", "r-own", transfer_id=own)
    await resolved(till, first, "confirm", "r-first", transfer_id=moved)
    assert await kinds(till) == []
    assert await broken(till.dsn) == {}


async def test_an_id_that_is_none_of_the_providers_is_not_there(till: Shop) -> None:
    view = await paid(till)
    await till.reviews.dispute(till.tenant, view.id, reason="?", evidence="mail", by="ann", idempotency_key="d")
    await resolved(till, view, "confirm", "r", transfer_id="wire 17/2026")
    till.control.call("POST", "reset")
    await pass_time(till.dsn, A_WHILE)
    assert await kinds(till) == [("missing_there", "missing_at_the_provider")]


# --- nobody has decided yet


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("stripe", "stripe.transfer:execute_then_drop"),
        ("adyen", "adyen.transfer:execute_then_drop"),
        ("wise", "wise.fund:execute_then_drop"),
    ],
)
async def test_a_payout_without_an_answer_is_first_too_fresh_then_undecided_then_equal(
    embedded18: servers.Server, control: Control, name: str, plan: str
) -> None:
    """It has no id yet, so it is found by its key, in the form this provider keeps."""
    world = next(world for world in PAYING if world.name == name)
    provider = world.make(control.url, "", "")
    async with shop(embedded18.fresh_database(), control, providers={name: provider}) as till:
        control.plan(plan)
        view = await till.create("a", provider=name, destination=world.destination, currency=world.currency)
        await till.tick()
        found, told = await compare(till, repair=True)
        assert (told, found.compared[0].timing) == ([], 1)
        await pass_time(till.dsn, A_WHILE)
        _, told = await compare(till, repair=True)
        assert [(one.kind, one.reason, one.settlement) for one in told] == [("undecided", "processing", view.id)]
        assert (await till.read(view.id)).status == "processing", "recovery decides it"
        await till.tick()
        await pass_time(till.dsn, A_WHILE)
        assert await kinds(till) == []
        assert (await till.read(view.id)).status == "transferred"
        await provider.close()


async def test_a_reference_that_shares_only_the_beginning_of_a_key_is_not_ours(till: Shop) -> None:
    """A UUID keeps 6 bytes of the key as they are: by these it is found, by the rest it is told apart."""
    view = await till.create("a")
    mine = uuid_form(bytes.fromhex(view.idempotency_key))
    other = mine[:-1] + ("0" if mine[-1] != "0" else "1")
    async with store.sheet(till.database) as sheet:
        for number, (reference, expected) in enumerate(((mine, view.id), (other, None))):
            shown = Movement(
                provider="wise",
                purpose="transfer",
                id=str(number),
                amount_micros=1,
                currency="EUR",
                state="moved",
                status="",
                reference=reference,
            )
            ((_, meant),) = await sheet.match("simulator", [shown])
            assert (meant.owner and meant.owner.name) == expected
            assert await sheet.match("simulator", [shown]) == [], "each is judged once"


# --- beside workers, and cut short


class Between:
    """A provider whose list is read to its end before anything of it is matched; in between, something happens."""

    def __init__(self, provider: Provider, happen: Callable[[], Awaitable[None]]) -> None:
        self._provider = provider
        self._happen = happen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def movements(self, *, since: datetime, until: datetime) -> AsyncIterator[Movement]:
        listed = [one async for one in self._provider.movements(since=since, until=until)]
        if listed:
            await self._happen()
        for one in listed:
            yield one


class Beside:
    """A provider whose list shows each movement once more, as one in somebody else's account."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def movements(self, *, since: datetime, until: datetime) -> AsyncIterator[Movement]:
        async for one in self._provider.movements(since=since, until=until):
            assert one.reference
            yield one
            yield msgspec.structs.replace(one, id=f"acct_theirs/{one.id}", purpose="payout")


async def test_what_somebody_moves_in_his_own_account_is_not_taken_for_ours(till: Shop) -> None:
    """Though it bears a payout's key: the payout is as it was, and his is a movement that nothing explains."""
    view = await paid(till)
    _, told = await compare(till, providers={"simulator": Beside(till.providers["simulator"])}, repair=True)
    assert [(one.kind, one.reason) for one in told] == [("missing_here", "key_unknown")]
    assert (await till.read(view.id)).status == "transferred"


async def test_a_row_recorded_between_listing_and_matching_is_no_break(till: Shop) -> None:
    """Listed while it was moving; then it failed there, and a worker recorded that; then it is matched."""
    till.control.plan("stripe.payout:execute_then_drop")
    view = await till.create("a", destination="ba_1")
    await till.tick()
    assert (await till.read(view.id)).status == "processing"
    seen = []

    async def fail_and_record() -> None:
        (payout,) = till.control.made("stripe", "payout")
        act(till.control, "fail", payout["id"])
        # Past the claim. The provider's clock stands: much later its list is asked for minutes before the payout.
        await pass_time(till.dsn, timedelta(minutes=6))
        await till.tick()
        seen.append((await till.read(view.id)).status)

    between = Between(till.providers["simulator"], fail_and_record)
    found, told = await compare(till, providers={"simulator": between}, repair=True)
    assert seen == ["failed"]
    assert (told, found.compared[0].timing) == ([], 1)
    assert (await till.read(view.id)).status == "failed"
    await pass_time(till.dsn, A_WHILE)
    assert await kinds(till) == []


async def test_a_row_transferred_between_listing_and_matching_is_no_break(till: Shop) -> None:
    await paid(till)
    view = await till.create("b")

    async def work() -> None:
        await till.tick()

    between = Between(till.providers["simulator"], work)
    found, told = await compare(till, providers={"simulator": between}, repair=True)
    assert (await till.read(view.id)).status == "transferred"
    assert told == []
    assert found.compared[0].expected == 1, "what was sent after the reading began is the next run's"


# Lists are asked for charges, refunds, transfers and payouts of each of nine days; what was made is in the last.
# The last one goes on from others: its page is asked for again, in vain.
@pytest.mark.parametrize("calls", [range(1, 2), range(36, 37 + len(paging.PAUSES))], ids=["first", "last"])
async def test_a_list_that_breaks_off_is_not_the_whole(till: Shop, calls: range) -> None:
    """What came is told; what did not come is not called missing, nor asked for."""
    lost = await paid(till)
    till.control.call("POST", "reset")
    stranger = by_hand(till.control)
    till.control.plan(", ".join(f"stripe.list:gateway_503@{call}" for call in calls))
    found, told = await compare(till, repair=True)
    assert not found.is_complete
    assert (found.compared[0].expected, found.compared[0].asked) == (0, 0)
    assert "503" in (found.compared[0].broken_off or "")
    assert [(one.kind, one.movement and one.movement.id) for one in told] == [("missing_here", stranger)]
    assert (await till.read(lost.id)).status == "transferred"
    assert await kinds(till) == [("missing_here", "no_reference"), ("missing_there", "missing_at_the_provider")]


async def test_a_provider_that_is_away_is_not_asked_for_every_day(till: Shop) -> None:
    till.control.plan("stripe.list:gateway_503@*")
    found, _ = await compare(till, since=timedelta(days=100))
    assert not found.is_complete
    assert till.control.struck()["gateway_503"] == 3


async def test_a_question_that_is_not_answered_leaves_the_run_unfinished(till: Shop) -> None:
    view = await paid(till)
    till.control.call("POST", "reset")
    till.control.plan("stripe.lookup:gateway_503")
    found, told = await compare(till, repair=True)
    assert (found.is_complete, told) == (False, [])
    assert (await till.read(view.id)).status == "transferred"


async def test_too_many_absent_payouts_are_one_trouble_not_thousands_of_questions(
    till: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "MOST_ASKED", 3)
    for number in range(4):
        await paid(till, f"a{number}")
    till.control.call("POST", "reset")
    found, _ = await compare(till)
    assert not found.is_complete
    assert "not in its list" in (found.compared[0].broken_off or "")


async def test_a_database_that_goes_away_is_said_to(till: Shop) -> None:
    await paid(till)

    async def cut() -> None:
        await _as_superuser(
            till.dsn,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )

    between = Between(till.providers["simulator"], cut)
    with pytest.raises(Unreachable):
        await compare(till, providers={"simulator": between})


# --- what may be asked


async def test_wrong_spans_and_providers_are_refused(till: Shop) -> None:
    for options in (
        {"only": "stripe"},
        {"since": timedelta(0)},
        {"since": timedelta(hours=1), "until": timedelta(hours=2)},
        {"since": datetime(1970, 1, 1, tzinfo=UTC)},
    ):
        with pytest.raises(Misconfigured):
            await compare(till, **options)


async def test_a_provider_that_cannot_be_compared_is_named(till: Shop) -> None:
    await paid(till)
    square = next(world for world in WORLDS if world.name == "square").make(till.control.url, "", "")
    found, _ = await compare(till, providers={"square": square})
    assert set(found.not_compared) == {"square", "simulator"}
    assert found.compared == ()
    found, _ = await compare(till, providers={"square": square, **till.providers}, only="simulator")
    assert [one.provider for one in found.compared] == ["simulator"]
    assert found.not_compared == {}
    await square.close()


async def test_nothing_is_repaired_in_a_database_that_was_restored(till: Shop) -> None:
    """Its rows are old: what they do not know of is not a contradiction. Looking is fine."""
    view = await till.create("a")
    by_hand(till.control, view.idempotency_key)
    async with till.database.writing() as connection:
        await connection.execute("UPDATE tally.whereabouts SET database = 0")
    with pytest.raises(RestoredDatabase):
        await compare(till, repair=True)
    assert (await till.read(view.id)).status == "pending"
    await compare(till)


async def test_two_lists_of_one_process_share_nothing(embedded18: servers.Server, control: Control) -> None:
    """One movement at two configured providers, which are the same books: each is compared on its own."""
    providers = {"simulator": app.simulator(control.url), "stripe": PAYING[0].make(control.url, "", "")}
    async with shop(embedded18.fresh_database(), control, providers=providers) as till:
        await paid(till)
        found, told = await compare(till)
        assert [one.movements for one in found.compared] == [1, 1]
        # At the second it is nobody's: its key covers the provider.
        assert [(one.provider, one.kind) for one in told] == [("stripe", "missing_here")]
    for provider in providers.values():
        await provider.close()


async def test_the_oldest_server_finds_the_same(postgres15: servers.Server, control: Control) -> None:
    async with shop(postgres15.fresh_database(), control) as till:
        view = await paid(till)
        assert await kinds(till) == []
        by_hand(control, view.idempotency_key)
        assert await kinds(till) == [("duplicated", "moved_twice")]
        control.call("POST", "reset")
        assert await kinds(till, repair=True) == [("missing_there", "missing_at_the_provider")]


async def _as_superuser(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(superuser(dsn))
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            for statement in statements:
                await connection.execute(statement)
    finally:
        await connection.close()
