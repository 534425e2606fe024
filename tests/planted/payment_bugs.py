"""Bugs of the flow that pays orders: see `bugs`."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, cast

from tallystick.core import payment as deciders
from tallystick.core import settlement
from tallystick.core.order import token_name
from tallystick.core.provider import Sending, Unknown
from tallystick.flows import payment as flow
from tallystick.flows import sending
from tallystick.providers.steady import steady
from tallystick.store import payment as store
from tests.planted.bug import Bug, migrated

FLOW: Final = "tests/flows/test_payment.py::"
COLLECT: Final = "tests/flows/test_payment_collect.py::"
RULES: Final = "tests/store/test_payment_rules.py::"
CORE: Final = "tests/core/test_payment.py::"
CRASH: Final = "tests/faults/test_payment_crash.py::"


def charged_before_the_intent_is_committed() -> None:
    """The provider is called while the transaction that holds log, intent and attempt is still open."""
    original = store.click
    answers: dict[bytes, Any] = {}
    providers: list[Any] = []
    made = flow.Payments.__init__

    def init(self: Any, database: Any, known: Any, *arguments: Any, **more: Any) -> None:
        providers.append(known)
        made(self, database, known, *arguments, **more)

    async def click(connection: Any, items: Sequence[Any], terms: Any) -> Any:
        decided = await original(connection, items, terms)
        for answer in decided:
            if isinstance(answer, store.Begun):
                leave = Sending(
                    first_sent_at=answer.attempt.first_sent_at,
                    not_after=answer.attempt.not_after,
                    sendable_until=steady() + 10,
                )
                adapter = providers[-1][answer.charge.provider]
                answers[answer.charge.key] = await call(adapter, answer.instruction, leave)
        return decided

    call = sending.call

    async def called(adapter: Any, instruction: Any, leave: Any) -> Any:
        early = answers.pop(instruction.key, None)
        return early if early is not None else await call(adapter, instruction, leave)

    cast("Any", flow.Payments).__init__ = init
    cast("Any", store).click = click
    cast("Any", sending).call = called


def new_attempt_after_an_unknown_answer() -> None:
    """Silence is taken for a failure: the next click has another key. The database's own rules are off as well."""
    original = deciders.after_answer

    def after_answer(history: Any, answer: Any, **more: Any) -> Any:
        entry = original(history, answer, **more)
        return settlement.Failed(answer.code) if isinstance(answer, Unknown) else entry

    cast("Any", flow).after_answer = after_answer


def new_attempt_beside_a_pending_one() -> None:
    """A click on a charge that may have run begins anew; the unique index and the chain are off."""
    original = deciders.next_step

    def next_step(order: Any, charge: Any, history: Any, **more: Any) -> Any:
        if charge is not None and charge.status == "PENDING" and history.may_have_run:
            return deciders.Begin(charge.attempt + 1)
        return original(order, charge, history, **more)

    cast("Any", deciders).next_step = next_step
    migrated(
        ("CREATE UNIQUE INDEX one_live_charge", "CREATE INDEX one_live_charge"),
        ("AND before.status IS DISTINCT FROM 'FAILED') AS early", "AND false) AS early"),
    )


def no_unique_live_charge() -> None:
    migrated(("CREATE UNIQUE INDEX one_live_charge", "CREATE INDEX one_live_charge"))


def no_failure_before_the_next_attempt() -> None:
    migrated(("AND before.status IS DISTINCT FROM 'FAILED') AS early", "AND false) AS early"))


def sends_without_asking() -> None:
    """What is unknown is sent again at once: where the provider forgot the key, or never kept it, that is a second."""
    original = settlement.next_step

    def next_step(history: Any, **more: Any) -> Any:
        step = original(history, **more)
        return settlement.Send(more["tries"]) if isinstance(step, settlement.LookUp) else step

    cast("Any", settlement).next_step = next_step


def sends_for_an_ended_order() -> None:
    """The collector sends whatever may be sent, whoever still wants it."""
    cast("Any", deciders).resend = lambda _order, _history, send, **_more: deciders.Resend(send.tries)
    cast("Any", deciders.Payable).is_open = lambda _self, _now: True
    cast("Any", store).pay_refusal = lambda _order, _token, **_more: None


def any_token_pays() -> None:
    original = deciders.pay_refusal

    def pay_refusal(order: Any, _token: str, *, now: datetime) -> Any:
        return original(order, token_name(order.reservation_token), now=now)

    cast("Any", store).pay_refusal = pay_refusal


def no_fence() -> None:
    """Whoever lost his claim writes all the same."""
    store._SQL["record"] = store._SQL["record"].replace(" AND l.claim_number = g.claim", "")
    cast("Any", store)._is_mine = lambda _item, row: row is not None and row["status"] == "PENDING"


def pending_for_ever_after_a_lost_commit() -> None:
    """A batch that is run again does not know its own attempt, and waits for somebody else to send it."""
    if "a.token" not in store._SQL["newest"]:
        raise ValueError("newest has no a.token any more")
    store._SQL["newest"] = store._SQL["newest"].replace("a.token", "NULL::uuid AS token")


def caller_takes_the_flight_with_him() -> None:
    """A buyer who hangs up cancels the call that others wait for."""
    wait = asyncio.wait

    async def waits(tasks: Any, **more: Any) -> Any:
        try:
            return await wait(tasks, **more)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            raise

    cast("Any", flow).asyncio = type("Asyncio", (), {**vars(asyncio), "wait": staticmethod(waits)})


PAYMENT_BUGS: Final = {
    "charged before the intent is committed": Bug(
        charged_before_the_intent_is_committed,
        (f"{FLOW}test_nothing_is_sent_before_log_and_intent_are_committed",),
    ),
    "new attempt after an unknown answer": Bug(
        new_attempt_after_an_unknown_answer,
        (
            f"{FLOW}test_what_was_done_and_not_heard_is_found_and_not_done_again[stripe-execute_then_drop]",
            f"{FLOW}test_a_500_is_never_a_failure_and_never_another_attempt[square]",
            f"{FLOW}test_fifty_clicks_over_two_processes_are_one_charge_with_or_without_a_partition[execute_then_drop]",
        ),
    ),
    "new attempt beside a pending one": Bug(
        new_attempt_beside_a_pending_one,
        (
            f"{FLOW}test_what_was_done_and_not_heard_is_found_and_not_done_again[stripe-execute_then_drop]",
            f"{CORE}test_a_pending_charge_is_never_followed_by_another_attempt",
        ),
    ),
    "no unique live charge": Bug(
        no_unique_live_charge, (f"{RULES}test_a_second_live_charge_of_an_order_is_refused[embedded18]",)
    ),
    "no failure before the next attempt": Bug(
        no_failure_before_the_next_attempt, (f"{RULES}test_an_attempt_follows_a_known_failure_alone[embedded18]",)
    ),
    "a charge is sent again without asking": Bug(
        sends_without_asking,
        (f"{FLOW}test_what_was_done_and_not_heard_is_found_and_not_done_again[stripe-hang]",),
    ),
    "a charge is sent for an ended order": Bug(
        sends_for_an_ended_order,
        (
            f"{COLLECT}test_nothing_is_sent_for_an_order_that_has_ended[CANCELLED_BY_SWEEPER-stripe]",
            f"{COLLECT}test_an_order_that_ends_between_the_question_and_the_send_is_not_charged",
        ),
    ),
    "any token pays": Bug(any_token_pays, (f"{FLOW}test_another_orders_token_is_refused_and_nothing_is_sent",)),
    "no fence on the log": Bug(no_fence, (f"{COLLECT}test_the_one_who_lost_his_claim_changes_nothing",)),
    "a lost commit is not recognised": Bug(
        pending_for_ever_after_a_lost_commit,
        (f"{FLOW}test_a_commit_whose_answer_is_lost_is_found_again_and_sent_once",),
    ),
    "a caller takes the flight with him": Bug(
        caller_takes_the_flight_with_him, (f"{FLOW}test_a_caller_who_hangs_up_takes_nothing_with_him",)
    ),
}
