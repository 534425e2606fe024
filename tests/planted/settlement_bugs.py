"""Bugs in settling: see `bugs`."""

import math
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final, cast
from uuid import uuid4

import msgspec

from tallystick.keys.derived import digest
from tallystick.movement import flow as sending
from tallystick.movement import steps
from tallystick.movement import store as intents
from tallystick.movement.steps import NOTHING_SENT, Failed
from tallystick.providers.words import Busy, Sending, Unknown
from tallystick.settlement.tick import flow as ticks
from tallystick.settlement.tick import store as settling
from tests.planted.bug import Bug
from tests.planted.provider_bugs import resent_past_the_horizon

SETTLING: Final = "tests/settlement/tick/test_flow.py::"
REFUSALS: Final = "tests/movement/test_refusals.py::"
CRASH: Final = "tests/faults/test_settlement_crash.py::"


def _reworded(name: str, *changes: tuple[str, str]) -> None:
    """A statement with these parts replaced. A part that is not there would plant nothing."""
    statements = settling._SQL if name in settling._SQL else intents._SQL
    for old, new in changes:
        if old not in statements[name]:
            raise ValueError(f"{name} has no {old!r} any more")
        statements[name] = statements[name].replace(old, new)


def _after_answer(spoilt: Callable[[Any, Any], tuple[Any, Any]]) -> None:
    def after_answer(history: Any, answer: Any, **more: Any) -> Any:
        return steps.after_answer(*spoilt(history, answer), **more)

    cast("Any", ticks).after_answer = after_answer


def words_believed_after_an_unknown() -> None:
    """What the provider's words refuse is refused, whatever was sent before it."""
    _after_answer(lambda _history, answer: (NOTHING_SENT, answer))
    words_believed(history=NOTHING_SENT, more={"attempt": 1})


def words_believed(**doubts: Any) -> None:
    """The same with other facts than there are."""
    original = steps.believed

    def believed(history: Any, answer: Any, **more: Any) -> Any:
        return original(doubts.get("history", history), answer, **{**more, **doubts.get("more", {})})

    cast("Any", sending).believed = believed


def no_fence() -> None:
    """Whoever was given a row may write to it for ever."""
    _reworded("fence", (" AND s.claim_number = mine.claim", ""))
    _reworded("record", (" AND s.claim_number = given.claim", ""))


def late_worker_finishes() -> None:
    """Neither its claim nor the row's state keeps it from posting."""
    no_fence()
    _reworded("fence", ("s.status,", "'processing'::text AS status,"))


def late_answer_thrown_away() -> None:
    """Who lost his claim says nothing at all."""
    original = settling.record

    async def record(connection: Any, items: Any, *, by: str) -> list[bool]:
        names = settling._names([item.claimed for item in items])
        rows = await connection.fetch(settling._SQL["fence"], *names)
        mine = {(row["tenant_id"], row["number"]) for row in rows}
        kept = [item for item in items if (item.claimed.tenant.number, item.claimed.number) in mine]
        done = dict(zip(map(id, kept), await original(connection, kept, by=by), strict=True)) if kept else {}
        return [done.get(id(item), False) for item in items]

    cast("Any", settling).record = record


def claims_wait_for_each_other() -> None:
    """Without SKIP LOCKED."""
    _reworded("claim", (" SKIP LOCKED", ""))


def recoveries_wait_for_each_other() -> None:
    """Without SKIP LOCKED."""
    _reworded("reclaim", (" SKIP LOCKED", ""))


def claimed_in_two_steps() -> None:
    """What is pending is looked up first, and claimed then."""
    _reworded("claim", (" FOR UPDATE SKIP LOCKED", ""))


def new_key_for_each_claim() -> None:
    """A payout that is taken over gets another key."""
    original = settling.claimed_row

    def claimed_row(row: Any) -> Any:
        claimed = original(row)
        if claimed.claim_number == 1:
            return claimed
        key = digest("settlement", key=claimed.key.hex(), claim=claimed.claim_number)
        return msgspec.structs.replace(claimed, instruction=msgspec.structs.replace(claimed.instruction, key=key))

    cast("Any", settling).claimed_row = claimed_row


def unknown_is_failed() -> None:
    """A 500, or silence, is taken for a failure."""

    def after_answer(history: Any, answer: Any, **more: Any) -> Any:
        return Failed(answer.code) if isinstance(answer, Unknown) else steps.after_answer(history, answer, **more)

    cast("Any", ticks).after_answer = after_answer


def busy_resolves_an_unknown() -> None:
    """The newest answer is the whole truth."""
    _after_answer(lambda history, answer: (NOTHING_SENT if isinstance(answer, Busy) else history, answer))


def only_the_newest_attempt_counts() -> None:
    """What came before a Busy is forgotten."""
    of_all = "bool_or(a.answer IS NULL OR a.answer = 'unknown')"
    _reworded("histories", (of_all, f"coalesce({of_all} FILTER (WHERE a.number = i.attempts), false)"))


def horizon_not_decided() -> None:
    """The deciders trust a key for ever; what stands at the intent does not."""
    cast("Any", steps)._is_forgotten = lambda *_facts: False


def resent_blindly() -> None:
    """Neither of them looks at the horizon."""
    horizon_not_decided()
    resent_past_the_horizon()


def absence_believed_at_once() -> None:
    """What the books do not show was never sent."""
    original = steps._absent

    def absent(history: Any, tries: int, *, facts: Any, **more: Any) -> Any:
        return original(history, tries, facts=msgspec.structs.replace(facts, longest_in_flight=timedelta(0)), **more)

    cast("Any", steps)._absent = absent


def successor_does_not_wait() -> None:
    """A permit to send that is still running is no reason to wait."""

    def next_step(history: Any, **more: Any) -> Any:
        return steps.next_step(msgspec.structs.replace(history, not_after=history.first_sent_at), **more)

    cast("Any", ticks).next_step = next_step


def leave_never_ends() -> None:
    """What is sent may be written however late."""
    cast("Any", sending).Sending = lambda **said: Sending(**{**said, "sendable_until": math.inf})


def posted_again_when_run_again() -> None:
    """A group of results whose COMMIT was lost is taken for a new one."""
    _reworded("fence", ("s.status,", "'processing'::text AS status,"))
    cast("Any", settling)._token = lambda _items: uuid4().hex


def posted_in_a_commit_of_its_own() -> None:
    """The row first, the money after."""
    put_off: ContextVar[list[Any] | None] = ContextVar("put_off", default=None)
    original = settling._run

    async def run(connection: Any, claims: Any) -> None:
        waiting = put_off.get()
        if waiting is None:
            await original(connection, claims)
        else:
            waiting.extend(claims)

    async def commit(self: Any, items: Any, *, patient: bool) -> Any:
        waiting: list[Any] = []
        token = put_off.set(waiting)
        async with self._database.writing() as connection:
            done = await settling.record(connection, items, by=self._by)
        put_off.reset(token)
        async with self._database.writing() as connection:
            await original(connection, waiting)
        return done

    cast("Any", settling)._run = run
    cast("Any", settling.RecordWork).commit = commit


class _Module:
    """A module with some of its names replaced, for one of those who import it."""

    def __init__(self, original: Any, **replaced: Any) -> None:
        self._original = original
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


SETTLEMENT_BUGS: Mapping[str, Bug] = {
    "no_fence": Bug(no_fence, (SETTLING + "test_the_worker_that_lost_its_claim_changes_nothing",)),
    "late_worker_finishes": Bug(
        late_worker_finishes,
        (
            SETTLING + "test_a_late_answer_after_the_row_was_finished_changes_nothing",
            CRASH + "test_around_every_send_a_tick_may_be_paused",
        ),
    ),
    "late_answer_thrown_away": Bug(
        late_answer_thrown_away, (SETTLING + "test_a_late_answer_is_kept_as_evidence_and_believed",)
    ),
    "claims_wait_for_each_other": Bug(
        claims_wait_for_each_other, (SETTLING + "test_two_claims_at_once_share_no_row_and_neither_waits",)
    ),
    "claimed_in_two_steps": Bug(
        claimed_in_two_steps, (SETTLING + "test_two_claims_at_once_share_no_row_and_neither_waits",)
    ),
    "recoveries_wait_for_each_other": Bug(
        recoveries_wait_for_each_other, (SETTLING + "test_two_recoveries_at_once_share_no_row_and_neither_waits",)
    ),
    "new_key_for_each_claim": Bug(
        new_key_for_each_claim, (SETTLING + "test_what_is_proven_absent_is_sent_once_more_under_the_same_key",)
    ),
    "unknown_is_failed": Bug(
        unknown_is_failed,
        tuple(
            f"{SETTLING}test_an_unknown_outcome_is_not_a_failure[{fault}]"
            for fault in ("error_500_no_object", "execute_then_500", "gateway_503", "in_flight", "html_200")
        ),
    ),
    "busy_resolves_an_unknown": Bug(
        busy_resolves_an_unknown,
        (SETTLING + "test_a_busy_provider_neither_resolves_an_unknown_nor_spends_its_budget",),
    ),
    "only_the_newest_attempt_counts": Bug(
        only_the_newest_attempt_counts,
        (SETTLING + "test_a_busy_provider_neither_resolves_an_unknown_nor_spends_its_budget",),
    ),
    "horizon_not_decided": Bug(
        horizon_not_decided,
        (
            SETTLING + "test_past_the_horizon_nothing_is_sent_blindly",
            SETTLING + "test_the_horizon_may_pass_while_the_provider_is_asked",
        ),
    ),
    "horizon_not_held_by_the_intent": Bug(
        resent_past_the_horizon, (SETTLING + "test_the_horizon_may_pass_while_the_provider_is_asked",)
    ),
    "resent_blindly": Bug(resent_blindly, (SETTLING + "test_past_the_horizon_nothing_is_sent_blindly",)),
    "absence_believed_at_once": Bug(
        absence_believed_at_once, (SETTLING + "test_absence_proves_nothing_while_the_first_may_be_on_its_way",)
    ),
    "successor_does_not_wait": Bug(
        successor_does_not_wait,
        (SETTLING + "test_while_one_may_be_writing_its_successor_neither_asks_nor_sends",),
    ),
    "words_believed_after_an_unknown": Bug(
        words_believed_after_an_unknown,
        (REFUSALS + "test_a_refusal_after_a_send_that_may_have_run_is_not_believed_by_its_words",),
    ),
    "leave_never_ends": Bug(
        leave_never_ends, (SETTLING + "test_a_worker_that_was_stopped_before_its_bytes_sends_nothing",)
    ),
    "posted_again_when_run_again": Bug(
        posted_again_when_run_again,
        (SETTLING + "test_a_result_whose_commit_was_lost_is_posted_once[Cut.AFTER_COMMIT]",),
    ),
    "posted_in_a_commit_of_its_own": Bug(
        posted_in_a_commit_of_its_own, (CRASH + "test_around_every_commit_a_tick_may_end",)
    ),
}
