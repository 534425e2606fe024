"""Bugs in taking and processing webhooks: see `bugs`."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from tallystick.http.http1 import call_protocol, head, webhook_protocol
from tallystick.webhooks import flow as events
from tallystick.webhooks import inbox
from tallystick.webhooks import store as webhook
from tallystick.webhooks.rules import Failed, Postponed, end
from tests.planted.bug import Bug, migrated

RECEIVER: Final = "tests/http/test_webhook.py::"
WAYS: Final = "tests/http/test_webhook_fuzz.py::test_the_short_way_answers_what_the_ordinary_one_does"
CALL_WAYS: Final = "tests/http/test_call_fuzz.py::test_the_short_way_makes_the_same_call_of_the_same_bytes"
KILLED: Final = "tests/faults/test_webhook_kill.py::"
EVENTS: Final = "tests/webhooks/test_flow.py::"
RETENTION: Final = "tests/database/test_retention.py::"
# A commit as slow as a busy disk's: what is acknowledged meanwhile is not there when the process dies.
_SLOW_SECONDS: Final = 0.3


def _reworded(name: str, *changes: tuple[str, str]) -> None:
    """A statement with these parts replaced. A part that is not there would plant nothing."""
    statements = inbox._SQL if name in inbox._SQL else webhook._SQL
    for old, new in changes:
        if old not in statements[name]:
            raise ValueError(f"{name} has no {old!r} any more")
        statements[name] = statements[name].replace(old, new)


def acknowledged_before_commit() -> None:
    """The provider hears 200 while the transaction is still to come."""
    original = webhook.AppendWork.commit
    running: set[asyncio.Task[None]] = set()

    async def commit(self: Any, items: Any, *, patient: bool) -> Any:
        async def later() -> None:
            await asyncio.sleep(_SLOW_SECONDS)
            await original(self, items, patient=patient)

        task = asyncio.create_task(later())
        running.add(task)
        task.add_done_callback(running.discard)
        return [len(item.events) for item in items]

    cast("Any", webhook.AppendWork).commit = commit


def no_lease_fence() -> None:
    """Whoever was given an event may finish it, and hold it, for ever."""
    for name in ("finish", "renew"):
        _reworded(name, (" AND e.claim_number = mine.claim", ""))


def dedup_by_event_id_only() -> None:
    """Two providers' events of one id are taken for one."""
    _reworded("append", ("SELECT provider, event_id, number FROM given", "SELECT 'any', event_id, number FROM given"))


def no_guard() -> None:
    """What is told again is stored again, under a key of its own."""
    own_key = "SELECT provider, event_id || number, number FROM given"
    _reworded("append", ("SELECT provider, event_id, number FROM given", own_key))


def outages_are_tries() -> None:
    """A provider that is down for long makes dead letters."""

    def counted(outcome: Any, **more: Any) -> Any:
        return end(Failed(outcome.reason) if isinstance(outcome, Postponed) else outcome, **more)

    cast("Any", events).end = counted


def dead_workers_keep_their_events() -> None:
    """No watchdog: a lease that ran out is looked at by nobody."""
    _reworded("claim", ("processing_until <= statement_timestamp()", "processing_until <= 'epoch'"))


def claims_wait_for_each_other() -> None:
    """Without SKIP LOCKED."""
    _reworded("claim", (" SKIP LOCKED", ""))


def lease_not_renewed() -> None:
    """A handler that works longer than its lease loses the event to another."""

    async def renew(_self: Any, _claimed: Any) -> None:
        await asyncio.Event().wait()

    cast("Any", events.Events)._renew = renew


def cursor_not_kept() -> None:
    """Every run reads the provider's list from where it begins."""
    _reworded("move_cursor", ("c.version = $3", "false"))


def named_news_thrown_away() -> None:
    """What an event only names is never fetched: a payout that came back stays transferred."""
    original = events.Events._groups

    def groups(self: Any, claimed: Any) -> Any:
        return original(self, [msgspec.structs.replace(event, movement=None) for event in claimed])

    cast("Any", events.Events)._groups = groups


def short_way_acknowledges_at_once() -> None:
    """The short way answers when the delivery is queued; the log goes on behind its back."""
    original: Any = webhook_protocol.WebhookProtocol.begin

    def begin(self: Any, shortcut: Any, body: bytes) -> None:
        asyncio.get_running_loop().call_later(_SLOW_SECONDS, original, self, _Unheard(shortcut), body)
        self.stored(shortcut, 1)

    cast("Any", webhook_protocol.WebhookProtocol).begin = begin


class _Unheard:
    """A delivery whose answer was given already."""

    def __init__(self, shortcut: Any) -> None:
        for name in ("name", "provider", "headers"):
            setattr(self, name, getattr(shortcut, name))
        self.bytes = self.told = 0
        self.is_storing = False

    def done(self) -> bool:
        return False

    def set_result(self, _fresh: int, /) -> None:
        pass

    def set_exception(self, _error: Exception, /) -> None:
        pass


def short_way_passes_over_framing() -> None:
    """A request that is also chunked, or is to be closed after, is taken for an ordinary one."""
    cast("Any", head)._FRAMING = frozenset()


def short_way_takes_the_last_length() -> None:
    """Of two declared lengths the last is believed: whoever stands before us may believe the first."""

    def length(self: Any, lines: list[bytes], headers: list[Any]) -> int:
        fields = [self._field(line) for line in lines[1:]]
        if None in fields:
            return -1
        headers += fields
        return max((int(value) for name, value in fields if name == "content-length"), default=-1)

    cast("Any", webhook_protocol.WebhookProtocol)._length = length


def short_way_of_calls_takes_the_last_length() -> None:
    """The same of a call of the API."""

    def read(self: Any, lines: list[bytes], headers: list[Any]) -> int:
        fields = [self._learned(line) for line in lines[1:]]
        if None in fields:
            return -1
        headers += fields
        return max((int(value) for name, value in fields if name == head.LENGTH), default=0)

    cast("Any", call_protocol.CallProtocol)._read = read


def the_guard_goes_with_the_event() -> None:
    """What was let go is taken for new when it is told again."""
    gone = "DELETE FROM tally.webhook_events e WHERE e.number = ANY (numbers);"
    migrated(
        (gone, f"{gone} DELETE FROM tally.webhook_guard g WHERE g.number = ANY (numbers);"),
        ("BEFORE UPDATE OR DELETE OR TRUNCATE ON tally.webhook_guard", "BEFORE TRUNCATE ON tally.webhook_guard"),
    )


def money_without_a_receipt_is_let_go() -> None:
    """What `tally verify` would have to see of it goes with it."""
    migrated(("e.purpose IS DISTINCT FROM 'charge' OR e.state <> 'moved'", "true"))


def an_event_goes_without_its_verdict() -> None:
    """Nobody can tell any more what became of it."""
    migrated(
        ("e.reason\n      FROM tally.webhook_events e WHERE", "e.reason FROM tally.webhook_events e WHERE false AND"),
        ("IF NOT EXISTS (SELECT FROM tally.webhook_verdict", "IF EXISTS (SELECT FROM tally.webhook_verdict"),
    )


WEBHOOK_BUGS: Mapping[str, Bug] = {
    "acknowledged_before_commit": Bug(
        acknowledged_before_commit, (KILLED + "test_every_acknowledged_webhook_outlives_the_receiver",)
    ),
    "short_way_acknowledges_at_once": Bug(
        short_way_acknowledges_at_once, (KILLED + "test_every_acknowledged_webhook_outlives_the_receiver",)
    ),
    "short_way_passes_over_framing": Bug(short_way_passes_over_framing, (WAYS, CALL_WAYS)),
    "short_way_takes_the_last_length": Bug(short_way_takes_the_last_length, (WAYS,)),
    "short_way_of_calls_takes_the_last_length": Bug(short_way_of_calls_takes_the_last_length, (CALL_WAYS,)),
    "no_lease_fence": Bug(
        no_lease_fence,
        (
            EVENTS + "test_a_worker_that_lost_its_lease_changes_nothing",
            EVENTS + "test_a_worker_that_lost_its_lease_cannot_renew_it",
        ),
    ),
    "dedup_by_event_id_only": Bug(dedup_by_event_id_only, (RECEIVER + "test_two_providers_may_use_the_same_event_id",)),
    "no_guard": Bug(no_guard, (RECEIVER + "test_an_event_told_again_is_acknowledged_and_stored_once",)),
    "outages_are_tries": Bug(
        outages_are_tries,
        tuple(f"{EVENTS}test_an_outage_is_no_try_however_long_it_lasts[{way}]" for way in ("raised", "returned")),
    ),
    "dead_workers_keep_their_events": Bug(
        dead_workers_keep_their_events,
        (EVENTS + "test_an_event_whose_worker_died_is_taken_over_when_its_lease_is_over",),
    ),
    "event_claims_wait_for_each_other": Bug(
        claims_wait_for_each_other, (EVENTS + "test_two_workers_at_once_share_no_event_and_neither_waits",)
    ),
    "lease_not_renewed": Bug(lease_not_renewed, (EVENTS + "test_a_lease_is_renewed_while_its_handler_works",)),
    "named_news_thrown_away": Bug(
        named_news_thrown_away, (EVENTS + "test_what_an_event_only_names_is_fetched_once_and_handed_on",)
    ),
    "the_guard_goes_with_the_event": Bug(
        the_guard_goes_with_the_event,
        (RETENTION + "test_what_ended_events_told_goes_and_nothing_is_decided_otherwise",),
    ),
    "money_without_a_receipt_is_let_go": Bug(
        money_without_a_receipt_is_let_go,
        (RETENTION + "test_what_ended_events_told_goes_and_nothing_is_decided_otherwise",),
    ),
    "an_event_goes_without_its_verdict": Bug(
        an_event_goes_without_its_verdict,
        (
            RETENTION + "test_what_ended_events_told_goes_and_nothing_is_decided_otherwise",
            RETENTION + "test_an_event_goes_only_with_its_verdict_and_only_by_retention",
        ),
    ),
    "cursor_not_kept": Bug(cursor_not_kept, (EVENTS + "test_a_backfill_goes_on_where_the_last_one_ended",)),
}
