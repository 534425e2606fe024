"""Processing webhook events: leases and their fence, poison and outages, late news of payouts, missed webhooks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from tallystick.access import store as tenants
from tallystick.errors import InvariantBroken, Unreachable
from tallystick.money.currencies import Purpose
from tallystick.providers.wise.facts import FACTS
from tallystick.providers.words import Absent, Done, Fetched, Lookup, Movement, Undecided
from tallystick.settings import LIMITS, Limits
from tallystick.webhooks import inbox, store
from tallystick.webhooks.explain import explain_events
from tallystick.webhooks.flow import Backfill, Events, Processed, SettlementNews
from tallystick.webhooks.inbox import ClaimedEvent
from tallystick.webhooks.log.port import Delivery
from tallystick.webhooks.rules import Compensated, EventOutcome, Failed, Ok, Postponed, Recorded, end
from tests import deliveries, servers
from tests.deliveries import delivery, stored
from tests.ledgers import broken, fetchval
from tests.providers.worlds import Control
from tests.settlements import Shop, pass_time, shop

LEASE = timedelta(minutes=5)
A_LEASE_LATER = timedelta(minutes=6)
OTHER = {"type": "customer.created", "thing": {"id": "cus_1", "object": "customer"}}


@pytest_asyncio.fixture
async def till(embedded18: servers.Server, control: Control) -> AsyncIterator[Shop]:
    async with shop(embedded18.fresh_database(), control) as opened:
        yield opened


class Told:
    """A handler that does as it is told, and remembers whom it was given."""

    def __init__(self, decide: Callable[[ClaimedEvent], Any] = lambda _event: Ok()) -> None:
        self._decide = decide
        self.batches: list[list[str]] = []

    async def handle(self, events: Sequence[ClaimedEvent]) -> Sequence[EventOutcome]:
        self.batches.append([event.event_id for event in events])
        outcomes = []
        for event in events:
            outcome = self._decide(event)
            outcomes.append(await outcome if asyncio.iscoroutine(outcome) else outcome)
        return outcomes


def processing(till: Shop, handler: Any = None, *, by: str = "one", lease: timedelta = LEASE, **limits: Any) -> Events:
    handlers: dict[Purpose, Any] = {} if handler is None else {"charge": handler}
    return Events(till.database, handlers, lease=lease, by=by, limits=replace(LIMITS, **limits))


async def append(till: Shop, *numbers: int, **more: Any) -> None:
    async with till.database.writing() as connection:
        await inbox.append(connection, [delivery(number, **more) for number in numbers])


async def row(till: Shop, number: int = 1) -> dict[str, Any]:
    async with till.database.owning() as connection:
        found = await connection.fetchrow("SELECT * FROM tally.webhook_events WHERE event_id = $1", f"evt_{number}")
    return dict(found or {})


async def test_an_event_that_concerns_nobody_is_done(till: Shop) -> None:
    """What tells of no money is done when it is stored; what nobody here handles, when a worker has seen it."""
    await append(till, 1, **OTHER)
    await append(till, 2)
    assert await stored(till.dsn) == {"evt_1": "PROCESSED_OK", "evt_2": "UNPROCESSED"}
    assert await processing(till).run_once() == Processed(claimed=1, ok=1)
    assert await stored(till.dsn) == {"evt_1": "PROCESSED_OK", "evt_2": "PROCESSED_OK"}
    assert await processing(till).run_once() == Processed()


async def test_a_handler_gets_its_whole_batch_with_what_the_provider_said(till: Shop) -> None:
    seen: list[ClaimedEvent] = []

    def see(event: ClaimedEvent) -> EventOutcome:
        seen.append(event)
        return Ok()

    handler = Told(see)
    await append(till, *range(20))
    await append(till, 100, **OTHER)
    assert await processing(till, handler).run_once() == Processed(claimed=20, ok=20)
    assert [len(batch) for batch in handler.batches] == [20]
    movement = next(event.movement for event in seen if event.event_id == "evt_7")
    assert movement is not None
    assert (movement.purpose, movement.id, movement.amount_micros, movement.state) == (
        "charge",
        "pi_7",
        10_070_000,
        "moved",
    )
    assert (movement.reference, movement.currency, movement.status) == (f"{7:064x}", "EUR", "succeeded")


async def test_what_was_made_good_is_said_to_be(till: Shop) -> None:
    await append(till, 1)
    assert await processing(till, Told(lambda _: Compensated())).run_once() == Processed(claimed=1, compensated=1)
    assert (await row(till))["status"] == "PROCESSED_COMPENSATED"


async def test_a_handler_may_finish_events_in_its_own_commit(till: Shop) -> None:
    """What it did about them and that they are done is then one fact."""

    class Own:
        async def handle(self, events: Sequence[ClaimedEvent]) -> Sequence[EventOutcome]:
            async with till.database.writing() as connection:
                mine = await inbox.finish(connection, [(event, _end(Compensated(), event)) for event in events])
            assert mine == {event.number for event in events}
            return [Recorded()] * len(events)

    await append(till, 1, 2)
    assert await processing(till, Own()).run_once() == Processed(claimed=2, recorded=2)
    assert set((await stored(till.dsn)).values()) == {"PROCESSED_COMPENSATED"}


def _end(outcome: Any, event: ClaimedEvent) -> Any:
    return end(outcome, tries=event.tries, most_tries=8, first_pause_seconds=1, longest_pause_seconds=60)


async def test_a_worker_that_lost_its_lease_changes_nothing(till: Shop) -> None:
    """It was paused; the lease ran out; another has the event in hand. Its late word must not end it."""
    await append(till, 1)
    second_has_it, first_is_done = asyncio.Event(), asyncio.Event()

    async def hold(_event: ClaimedEvent) -> EventOutcome:
        second_has_it.set()
        await first_is_done.wait()
        return Compensated()

    second = processing(till, Told(hold), by="two")
    running: list[asyncio.Task[Processed]] = []

    async def pause(_event: ClaimedEvent) -> EventOutcome:
        await pass_time(till.dsn, A_LEASE_LATER)
        running.append(asyncio.create_task(second.run_once()))
        await second_has_it.wait()
        return Ok()

    assert await processing(till, Told(pause)).run_once() == Processed(claimed=1, late=1)
    held = await row(till)
    assert (held["status"], held["claim_number"], held["claimed_by"]) == ("IN_PROCESSING", 2, "two")
    first_is_done.set()
    assert await running[0] == Processed(claimed=1, compensated=1)
    assert (await row(till))["status"] == "PROCESSED_COMPENSATED"


async def test_a_worker_that_lost_its_lease_cannot_renew_it(till: Shop) -> None:
    await append(till, 1)
    (first,) = await store.claim(till.database, most=1, lease=LEASE, by="one")
    assert await store.renew(till.database, [first], lease=LEASE) == {first.number}
    await pass_time(till.dsn, A_LEASE_LATER)
    (second,) = await store.claim(till.database, most=1, lease=LEASE, by="two")
    assert await store.renew(till.database, [first], lease=LEASE) == set()
    assert await store.renew(till.database, [second], lease=LEASE) == {second.number}


async def test_an_event_whose_worker_died_is_taken_over_when_its_lease_is_over(till: Shop) -> None:
    await append(till, 1)
    await store.claim(till.database, most=1, lease=LEASE, by="dead")
    assert await processing(till).run_once() == Processed()
    await pass_time(till.dsn, A_LEASE_LATER)
    assert await processing(till).run_once() == Processed(claimed=1, ok=1)
    assert (await row(till))["tries"] == 0


async def test_a_lease_is_renewed_while_its_handler_works(till: Shop) -> None:
    """Longer than the lease: without renewal the other would take it over."""
    await append(till, 1)
    other = processing(till, by="two")
    first: list[Any] = []

    async def work(_event: ClaimedEvent) -> EventOutcome:
        async with asyncio.timeout(60):
            while len(first) < 4:
                until = (await row(till))["processing_until"]
                if until not in first:
                    first.append(until)
                assert await other.run_once() == Processed()
                await asyncio.sleep(0.05)
        return Ok()

    lease = timedelta(seconds=1.5)
    assert await processing(till, Told(work), lease=lease).run_once() == Processed(claimed=1, ok=1)
    assert first == sorted(first)


async def test_two_workers_at_once_share_no_event_and_neither_waits(till: Shop) -> None:
    await append(till, *range(10))
    async with till.database.writing() as connection:
        rows = await connection.fetch(store._SQL["claim"], 4, LEASE, "one")
        claimed = await store.claim(till.database, most=100, lease=LEASE, by="two")
    assert len(rows) == 4
    assert len(claimed) == 6
    assert not {found["number"] for found in rows} & {one.number for one in claimed}


async def test_poison_becomes_a_dead_letter_and_harms_no_neighbour(till: Shop) -> None:
    def decide(event: ClaimedEvent) -> EventOutcome:
        if event.event_id == "evt_3":
            raise ValueError("whsec_secret of this event")
        return Ok()

    await append(till, *range(6))
    one = processing(till, Told(decide), event_tries=3)
    assert await one.run_once() == Processed(claimed=6, ok=5, failed=1)
    for expected in (Processed(claimed=1, failed=1), Processed(claimed=1, dead=1), Processed()):
        assert await one.run_once() == Processed()
        await pass_time(till.dsn, timedelta(hours=2))
        assert await one.run_once() == expected
    dead = await row(till, 3)
    assert (dead["status"], dead["tries"], dead["reason"]) == ("DEAD_LETTER", 3, "ValueError")


async def test_a_hanging_handler_is_a_failure_of_the_event_it_hangs_on(till: Shop) -> None:
    async def decide(event: ClaimedEvent) -> EventOutcome:
        if event.event_id == "evt_2":
            await asyncio.Event().wait()
        return Ok()

    await append(till, 1, 2, 3)
    one = processing(till, Told(decide), event_handling_seconds=0.3)
    assert await one.run_once() == Processed(claimed=3, ok=2, failed=1)
    assert (await row(till, 2))["reason"] == "TimeoutError"


@pytest.mark.parametrize("way", ["raised", "returned"])
async def test_an_outage_is_no_try_however_long_it_lasts(till: Shop, way: str) -> None:
    def decide(_event: ClaimedEvent) -> EventOutcome:
        if way == "raised":
            raise Unreachable("no route to host")
        return Postponed("the provider is down", 5.0)

    await append(till, 1)
    one = processing(till, Told(decide), event_tries=2)
    for _ in range(10):
        assert await one.run_once() == Processed(claimed=1, postponed=1)
        await pass_time(till.dsn, timedelta(minutes=1))
    found = await row(till)
    assert (found["status"], found["tries"]) == ("UNPROCESSED", 0)
    assert await processing(till, Told()).run_once() == Processed(claimed=1, ok=1)


async def test_a_broken_invariant_is_not_swallowed(till: Shop) -> None:
    def decide(_event: ClaimedEvent) -> EventOutcome:
        raise InvariantBroken("stop and look")

    await append(till, 1)
    with pytest.raises(InvariantBroken):
        await processing(till, Told(decide)).run_once()


async def test_a_broken_invariant_among_news_is_not_swallowed(till: Shop) -> None:
    """It stops the worker: were it taken for the event's own failure, it would end in a dead letter, and go on."""

    class Broken:
        async def observe(self, _provider: str, _movement: Any, **_more: Any) -> None:
            raise InvariantBroken("stop and look")

    await append(till, 1, 2)
    with pytest.raises(InvariantBroken):
        await processing(till, SettlementNews(Broken(), till.sender.witness)).run_once()  # type: ignore[arg-type]
    assert (await row(till))["status"] == "IN_PROCESSING"


async def test_a_dead_letter_is_tried_again_when_a_person_says_so(till: Shop) -> None:
    await append(till, 1, 2)
    await processing(till, Told(lambda _: Failed("bad")), event_tries=1).run_once()
    dead = (await row(till))["number"]
    assert await store.retry(till.database, [dead, 999_999]) == {dead}
    assert await store.retry(till.database, [dead]) == set()
    handler = Told()
    assert await processing(till, handler).run_once() == Processed(claimed=1, ok=1)
    assert handler.batches == [["evt_1"]]
    assert await store.retry(till.database, None) == {(await row(till, 2))["number"]}


def _reversed(view: Any, amount: int) -> dict[str, Any]:
    return {
        "type": "transfer.reversed",
        "thing": {
            "id": view.transfer_id,
            "object": "transfer",
            "amount": amount,
            "currency": "eur",
            "created": 1_700_000_000,
            "reversed": True,
            "amount_reversed": amount,
            "transfer_group": view.idempotency_key,
        },
    }


async def test_late_news_of_a_payout_reaches_its_settlement(till: Shop) -> None:
    """It came back, weeks later: the row says transferred, and a person must know."""
    made = await till.create("a")
    await till.tick()
    paid = await till.read(made.id)
    assert paid.status == "transferred"
    news = Events(till.database, {"transfer": SettlementNews(till.reviews, till.sender.witness)}, lease=LEASE, by="one")
    await append(till, 1, **_reversed(paid, paid.amount_micros // 10_000))
    assert await news.run_once() == Processed(claimed=1, ok=1)
    assert (await till.read(made.id)).status == "disputed"
    assert await broken(till.dsn) == {}
    # Told again under another id, as providers do: nothing more happens.
    await append(till, 2, **_reversed(paid, paid.amount_micros // 10_000))
    assert await news.run_once() == Processed(claimed=1, ok=1)
    assert [event.what for event in await till.history(paid)].count("came_back") == 1


class Books:
    """A provider whose webhooks only name a transfer. What it answers when asked for one, and how often it was."""

    facts = FACTS

    def __init__(self, *answers: Fetched) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, str]] = []

    async def fetch(self, purpose: Purpose, provider_id: str) -> Fetched:
        self.asked.append((purpose, provider_id))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def naming(till: Shop, books: Books, handler: Any = None, **limits: Any) -> Events:
    handlers: dict[Purpose, Any] = {} if handler is None else {"transfer": handler}
    known: Any = {"wise": books}
    return Events(till.database, handlers, providers=known, lease=LEASE, by="one", limits=replace(LIMITS, **limits))


async def append_named(till: Shop, *numbers: int, object_id: str = "49983981") -> None:
    """Events as Wise tells them."""
    told = [
        msgspec.structs.replace(
            deliveries.event(number, **OTHER), provider="wise", object_id=object_id, object_purpose="transfer"
        )
        for number in numbers
    ]
    async with till.database.writing() as connection:
        await inbox.append(connection, [Delivery("wise", tuple(told))])


BOUNCED = Movement(
    provider="wise",
    purpose="transfer",
    id="49983981",
    amount_micros=12_340_000,
    currency="EUR",
    state="returned",
    status="bounced_back",
    reference="r",
)


async def test_what_an_event_only_names_is_fetched_once_and_handed_on(till: Shop) -> None:
    seen: list[Movement | None] = []

    def see(event: ClaimedEvent) -> EventOutcome:
        seen.append(event.movement)
        return Ok()

    books = Books(Done(movement=BOUNCED))
    await append_named(till, 1, 2, 3)
    assert await naming(till, books, Told(see)).run_once() == Processed(claimed=3, ok=3)
    assert seen == [BOUNCED] * 3
    assert books.asked == [("transfer", "49983981")], "three changes of one transfer are one question"


async def test_while_the_provider_is_away_named_news_wait_and_told_ones_do_not(till: Shop) -> None:
    down = Undecided(code="unanswered", message="no route to host")
    books = Books(down, down, Done(movement=BOUNCED))
    handler = Told()
    one = naming(till, books, handler, event_tries=1)
    await append_named(till, 1)
    await append(till, 2)
    assert await one.run_once() == Processed(claimed=2, ok=1, postponed=1)
    assert (await row(till))["reason"] == "unanswered: no route to host"
    await pass_time(till.dsn, timedelta(minutes=10))
    assert await one.run_once() == Processed(claimed=1, postponed=1)
    await pass_time(till.dsn, timedelta(minutes=10))
    assert await one.run_once() == Processed(claimed=1, ok=1)
    assert handler.batches == [["evt_1"]]
    assert (await row(till))["tries"] == 0


async def test_what_the_provider_does_not_have_is_done_and_says_why(till: Shop) -> None:
    handler = Told()
    await append_named(till, 1)
    one = naming(till, Books(Absent(lookup=Lookup.EXACT)), handler)
    assert await one.run_once() == Processed(claimed=1, ok=1)
    found = await row(till)
    assert (found["status"], found["reason"]) == ("PROCESSED_OK", "the provider has nothing of that id")
    assert handler.batches == []


async def test_what_is_not_shown_to_us_ends_as_a_dead_letter(till: Shop) -> None:
    """One key signs for all of Wise's customers: an event may name what we may not see, and must not live for ever."""
    one = naming(till, Books(Undecided(code="status_403", message="no", may_pass=False)), Told(), event_tries=2)
    await append_named(till, 1)
    assert await one.run_once() == Processed(claimed=1, failed=1)
    await pass_time(till.dsn, timedelta(hours=2))
    assert await one.run_once() == Processed(claimed=1, dead=1)


async def test_a_provider_that_hangs_when_asked_postpones_the_event(till: Shop) -> None:
    class Hanging(Books):
        async def fetch(self, purpose: Purpose, provider_id: str) -> Fetched:
            await asyncio.Event().wait()
            return await super().fetch(purpose, provider_id)

    await append_named(till, 1)
    await append_named(till, 2, object_id="2")
    one = naming(till, Hanging(), Told(), event_handling_seconds=0.2)
    assert await one.run_once() == Processed(claimed=2, postponed=2)


async def test_nobody_is_asked_for_what_nobody_handles_nor_for_a_provider_that_is_gone(till: Shop) -> None:
    books = Books(Done(movement=BOUNCED))
    await append_named(till, 1)
    assert await naming(till, books).run_once() == Processed(claimed=1, ok=1)
    await append_named(till, 2)
    gone = Events(till.database, {"transfer": Told()}, lease=LEASE, by="one")
    assert await gone.run_once() == Processed(claimed=1, postponed=1)
    assert books.asked == []


async def test_an_explained_event_names_what_it_concerned_and_only_of_that_tenant(till: Shop) -> None:
    """By our reference before the provider's id is known, by that id afterwards; of another tenant's nothing."""
    made = await till.create("a")
    await append(till, 1, **_reversed(msgspec.structs.replace(made, transfer_id="tr_not_recorded"), 1_000))
    await till.tick()
    paid = await till.read(made.id)
    await append(till, 2, **_reversed(paid, paid.amount_micros // 10_000))
    for name in ("evt_1", "evt_2"):
        (told,) = await explain_events(till.database, till.tenant, name)
        assert f"it concerns settlement {made.id}: " in told.summary, name
    other = await tenants.ensure_tenant(till.database, "other")
    (told,) = await explain_events(till.database, other, "evt_2")
    assert told.summary.endswith("it concerns nothing of tenant other")
    assert made.id not in str(told)


async def test_an_explained_event_says_what_is_left_of_its_evidence(till: Shop) -> None:
    await append_named(till, 1)
    (told,) = await explain_events(till.database, till.tenant, "evt_1")
    assert "it names transfer 49983981, which is fetched from wise; its body of" in str(told)
    await naming(till, Books(Undecided(code="unanswered", message="down")), Told()).run_once()
    (told,) = await explain_events(till.database, till.tenant, "evt_1")
    assert "UNPROCESSED (unanswered: down), number " in told.summary
    assert told.timeline[-1].what == "due again: unanswered: down"
    async with till.database.owning() as connection:
        await connection.execute("INSERT INTO tally.webhook_body_detached SELECT (now() AT TIME ZONE 'UTC')::date")
        name = await connection.fetchval("SELECT tableoid::regclass::text FROM tally.webhook_body")
        await connection.execute(f"ALTER TABLE tally.webhook_body DETACH PARTITION {name}")
    (told,) = await explain_events(till.database, till.tenant, "evt_1")
    assert "its body went with the day it came" in str(told)
    assert await explain_events(till.database, till.tenant, "evt_9") == []


async def test_webhooks_that_never_came_are_read_from_the_provider_s_list(till: Shop) -> None:
    await till.create_many(8)
    await till.tick()
    backfill = Backfill(till.database, "simulator", till.providers["simulator"])
    assert backfill.is_offered
    missing = await backfill.run_once()
    assert missing >= 8
    assert len(await stored(till.dsn)) == missing
    assert await backfill.run_once() == 0
    await till.create("later")
    await till.tick()
    assert await backfill.run_once() >= 1
    assert await broken(till.dsn) == {}


async def test_what_came_by_webhook_is_not_stored_again_by_the_list(till: Shop) -> None:
    await till.create_many(3)
    await till.tick()
    page = await till.providers["simulator"].events(cursor=None, now=await fetchval(till.dsn, "SELECT now()"))
    async with till.database.writing() as connection:
        told = type(delivery(1))("simulator", page.events[:2])
        assert await inbox.append(connection, [told]) == [2]
    missing = await Backfill(till.database, "simulator", till.providers["simulator"]).run_once()
    assert missing == len(page.events) - 2
    assert len(await stored(till.dsn)) == len(page.events)


async def test_a_backfill_goes_on_where_the_last_one_ended(till: Shop) -> None:
    """One page for each run: killed between two it would lose its place if the cursor were not in the commit."""
    one_page: Limits = replace(LIMITS, webhook_backfill_pages=1)
    backfill = Backfill(till.database, "simulator", till.providers["simulator"], limits=one_page)
    await till.create("first")
    await till.tick()
    found = [await backfill.run_once()]
    await till.create_many(250)
    await till.tick()
    found += [await backfill.run_once() for _ in range(8)]
    assert sum(1 for count in found[1:] if count) > 1, found
    assert sum(found) == len(await stored(till.dsn)) >= 251


async def test_two_backfills_at_once_store_each_event_once(till: Shop) -> None:
    await till.create_many(120)
    await till.tick()
    both = [Backfill(till.database, "simulator", till.providers["simulator"]) for _ in range(2)]
    await asyncio.gather(*(one.run_once() for one in both))
    assert await both[0].run_once() == 0
    assert len(await stored(till.dsn)) >= 120
    assert await broken(till.dsn) == {}
