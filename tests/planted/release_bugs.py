"""Bugs of what is found out about charges, before and after their order was swept: see `bugs`."""

import getpass
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, cast

import msgspec

from tallystick.checkout import break_store as payment_break
from tallystick.checkout.order import store as order
from tallystick.checkout.payment import flow as payment_flow
from tallystick.checkout.payment import rules as deciders
from tallystick.checkout.payment.review import flow as review_flow
from tallystick.checkout.payment.review import store as payment_review
from tallystick.checkout.payment.rules import Paying, PaymentPending
from tallystick.checkout.release import flow as release_flow
from tallystick.checkout.release import rules as decisions
from tallystick.checkout.release import store as release
from tallystick.cli import person
from tallystick.leases import store as timekeeping
from tallystick.movement import asking
from tallystick.providers.words import Found
from tests.planted.bug import Bug, migrated

RELEASE: Final = "tests/checkout/release/test_flow.py::"
MEMORY: Final = "tests/movement/test_memory.py::"
LOST: Final = "tests/clock/test_lost_life.py::"
STEPS: Final = "tests/clock/test_clock_steps.py::"
REVIEW: Final = "tests/checkout/payment/review/test_flow.py::"
PAYOUT: Final = "tests/settlement/review/test_flow.py::"
SCHEMA: Final = "tests/cli/test_schema.py::"
BOOKS: Final = "tests/checkout/release/test_rules.py::test_only_what_failed_is_let_go_by_the_books"
KEYS: Final = "tests/checkout/payment/test_key.py::"


def _reworded(statements: Mapping[str, str], old: str, new: str) -> None:
    """In every statement that has it. A part that is nowhere would plant nothing."""
    found = {name: text.replace(old, new) for name, text in statements.items() if old in text}
    if not found:
        raise ValueError(f"no statement has {old!r} any more")
    cast("Any", statements).update(found)


def _searched(search_for: Any) -> None:
    cast("Any", release_flow).search_for = search_for
    cast("Any", review_flow).search_for = search_for


def a_lost_life_is_looked_for_from_this_one_on() -> None:
    """The books are asked from when the charge was logged here."""
    since = "least(o.created_at, i.since, i.first_sent_at, u.known_until) AS since"
    _reworded(release._SQL, since, "i.first_sent_at AS since")
    _reworded(payment_review._SQL, since, "i.first_sent_at AS since")
    original = deciders.search_for

    def search_for(order: Any, history: Any, **more: Any) -> Any:
        return msgspec.structs.replace(original(order, history, **more), since=history.since)

    _searched(search_for)


def what_is_worked_on_counts_as_cancelled() -> None:
    """The books show a payment that the provider still works on, and its order is swept beside it."""
    original = decisions.after_look

    def after_look(looked: Any, **more: Any) -> Any:
        if isinstance(looked, Found):
            settled = tuple(one for one in looked.movements if one.state != "moving")
            looked = msgspec.structs.replace(looked, movements=settled)
        return original(looked, **more)

    cast("Any", decisions).after_look = after_look


def only_its_own_key_is_asked_for() -> None:
    original = deciders.search_for
    _searched(lambda order, history, **more: msgspec.structs.replace(original(order, history, **more), others=()))


def a_failed_attempt_ends_the_search() -> None:
    """What stands under the keys of later attempts is not asked for, once the first is seen to have failed."""
    original = asking.look_up

    async def look_up(*asked: Any, **more: Any) -> Any:
        return await original(*asked, **{**more, "beyond_failed": False})

    cast("Any", asking).look_up = look_up


def a_refused_payment_is_left_open() -> None:
    for statements in (release._SQL, order._SQL):
        _reworded(statements, "l.status <> 'FAILED' OR l.is_confirmable", "l.status <> 'FAILED'")


def one_of_several_open_payments_is_enough() -> None:
    original = release._live

    def live(row: Any, histories: Any) -> Any:
        return msgspec.structs.replace(original(row, histories), is_last=True)

    cast("Any", release)._live = live


def nobody_asks_after_the_sweep() -> None:
    cast("Any", release_flow).afterwards = lambda **_facts: "unanswered"


def asked_for_ever_after_the_sweep() -> None:
    def afterwards(*, now: datetime, **_facts: Any) -> datetime:
        return now + timedelta(hours=1)

    cast("Any", release_flow).afterwards = afterwards


def swept_ones_come_before_those_that_wait() -> None:
    """One chunk for both, by when they are due."""
    begin, end = "ARRAY(SELECT ctid FROM tally.order_hold\n", "ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED)"
    claim = release._SQL["claim"]
    first = claim[claim.index(begin) : claim.index(end) + len(end)]
    _reworded(
        release._SQL,
        first,
        first.replace(
            "LIMIT $1",
            "LIMIT $1 - (SELECT count(*) FROM tally.order_hold"
            " WHERE verdict IN ('given_up', 'absent') AND closed_as IS NULL AND due_at <= statement_timestamp())",
        ),
    )


def a_hold_of_a_clock_ahead_is_kept() -> None:
    """It counts from when that clock says: when it is claimed next, ten hours are left."""
    _reworded(release._SQL, "held_since = least(h.held_since, clock_timestamp())", "held_since = h.held_since")


def a_held_order_is_claimed_when_the_clock_has_caught_up() -> None:
    """The timekeeper does not look at orders."""
    original = timekeeping._count

    async def count(connection: Any, name: str, *arguments: Any) -> int:
        return 0 if name == "holds" else await original(connection, name, *arguments)

    cast("Any", timekeeping)._count = count


def silence_shows_a_person_that_nothing_was_charged() -> None:
    cast("Any", review_flow).Undecided = type("Never", (), {})


def a_recorded_answer_needs_its_provider() -> None:
    original = payment_flow.Payments._tell

    async def tell(self: Any, click: Any, same: Any) -> Any:
        paid = await original(self, click, same)
        if isinstance(paid, Paying) and paid.client_secret is None:
            return PaymentPending(order_id=click.name, payment=paid.payment, retry_after_seconds=1)
        return paid

    cast("Any", payment_flow.Payments)._tell = tell


def the_environment_names_the_author() -> None:
    cast("Any", person).system_user = getpass.getuser


def an_alarm_about_a_stranger_is_dropped() -> None:
    async def report_unknown(*_of: Any, **_more: Any) -> None:
        pass

    cast("Any", payment_break).report_unknown = report_unknown


def a_new_destination_does_not_wait() -> None:
    """The database alone would let it be paid."""
    migrated(("d.added_at + make_interval(secs => policy.waiting_seconds) <= clock_timestamp()", "true"))


def old_clearing_accounts_get_a_floor() -> None:
    column = "ALTER TABLE tally.settlement ADD COLUMN source"
    migrated((column, f"UPDATE tally.account SET floor_micros = 0 WHERE id LIKE 'settlement:clearing:%';\n{column}"))


DECLINED: Final = RELEASE + "test_a_declined_payment"


def what_has_come_is_live() -> None:
    """A payment that was told of, and given back, is asked about for ever: its order, and what else is open, waits."""
    _reworded(release._SQL, "r.charge_key = l.idempotency_key", "false")


def poison_holds() -> None:
    """What a provider told when it was asked holds its order for as long as nobody can take it."""
    _reworded(release._SQL, "AND e.tries > 0", "AND false")


def told_is_the_end() -> None:
    """A swept order is closed with the first of its payments that had moved; another one stays open."""
    original = release_flow.Releases._released

    async def released(self: Any, held: Any, heard: float) -> Any:
        charge = held.charge and msgspec.structs.replace(held.charge, is_last=True)
        return await original(self, msgspec.structs.replace(held, charge=charge), heard)

    cast("Any", release_flow.Releases)._released = released


RELEASE_BUGS: Final = {
    "a payment that was given back holds its order": Bug(
        what_has_come_is_live, (f"{RELEASE}test_money_of_another_amount_that_was_given_back_holds_no_order",)
    ),
    "what was told and fails by itself holds its order": Bug(
        poison_holds, (f"{RELEASE}test_what_was_told_and_fails_by_itself_holds_no_order",)
    ),
    "a swept order is closed beside an open payment": Bug(
        told_is_the_end, (f"{RELEASE}test_every_open_payment_of_a_swept_order_is_ended_also_when_one_had_moved",)
    ),
    "what_is_worked_on_counts_as_cancelled": Bug(
        what_is_worked_on_counts_as_cancelled,
        tuple(f"{BOOKS}[{states}]" for states in ("moving", "failed and moving")),
    ),
    "a_lost_life_is_looked_for_from_this_one_on": Bug(
        a_lost_life_is_looked_for_from_this_one_on,
        (
            f"{LOST}test_a_person_does_not_close_it_as_never_charged",
            f"{LOST}test_the_sweeper_finds_it_and_its_order_is_paid",
        ),
    ),
    "only_its_own_key_is_asked_for": Bug(
        only_its_own_key_is_asked_for,
        (
            f"{MEMORY}test_what_a_lost_life_charged_is_not_closed_as_never_charged[a later attempt's]",
            f"{MEMORY}test_an_order_that_a_lost_life_was_paid_for_in_another_attempt_is_a_persons",
        ),
    ),
    "a_failed_attempt_ends_the_search": Bug(
        a_failed_attempt_ends_the_search,
        (f"{MEMORY}test_an_order_that_a_lost_life_was_paid_for_in_another_attempt_is_a_persons",),
    ),
    "a_refused_payment_is_left_open": Bug(
        a_refused_payment_is_left_open,
        (
            f"{DECLINED}_is_cancelled_there_before_its_order_is_swept",
            f"{DECLINED}_that_its_customer_finished_by_another_card_is_paid",
        ),
    ),
    "one_of_several_open_payments_is_enough": Bug(
        one_of_several_open_payments_is_enough,
        (f"{RELEASE}test_every_open_payment_of_an_order_is_ended_before_it_is_swept",),
    ),
    "nobody_asks_after_the_sweep": Bug(
        nobody_asks_after_the_sweep,
        (
            f"{RELEASE}test_what_was_swept_unasked_is_cancelled_at_the_provider_once_it_answers",
            f"{RELEASE}test_what_was_swept_unasked_and_has_moved_is_given_back_without_a_webhook",
            f"{RELEASE}test_what_the_books_did_not_show_and_turns_up_later_is_given_back_without_a_webhook",
        ),
    ),
    "asked_for_ever_after_the_sweep": Bug(
        asked_for_ever_after_the_sweep,
        (f"{RELEASE}test_a_provider_that_never_answers_is_asked_for_a_month_and_no_longer",),
    ),
    "swept_ones_come_before_those_that_wait": Bug(
        swept_ones_come_before_those_that_wait,
        (f"{RELEASE}test_many_that_were_given_up_keep_nobody_from_being_asked",),
    ),
    "a_hold_of_a_clock_ahead_is_kept": Bug(
        a_hold_of_a_clock_ahead_is_kept,
        (f"{STEPS}test_an_order_held_while_the_clock_was_ahead_is_swept_once_it_is_right",),
    ),
    "a_held_order_is_claimed_when_the_clock_has_caught_up": Bug(
        a_held_order_is_claimed_when_the_clock_has_caught_up,
        (f"{STEPS}test_an_order_held_while_the_clock_was_ahead_is_swept_once_it_is_right",),
    ),
    "silence_shows_a_person_that_nothing_was_charged": Bug(
        silence_shows_a_person_that_nothing_was_charged,
        (REVIEW + "test_a_provider_that_does_not_answer_has_not_shown_that_it_was_never_charged",),
    ),
    "a_recorded_answer_needs_its_provider": Bug(
        a_recorded_answer_needs_its_provider,
        (
            f"{KEYS}test_a_recorded_payment_is_told_again_while_the_provider_is_away[gateway_503]",
            f"{KEYS}test_a_recorded_payment_is_told_again_by_a_process_that_lacks_its_provider",
        ),
    ),
    "the_environment_names_the_author": Bug(
        the_environment_names_the_author, ("tests/cli/test_person.py::test_the_environment_names_nobody",)
    ),
    "an_alarm_about_a_stranger_is_dropped": Bug(
        an_alarm_about_a_stranger_is_dropped,
        (PAYOUT + "test_an_alarm_about_a_payout_that_is_nobodys_here_is_a_persons[True]",),
    ),
    "a_new_destination_does_not_wait": Bug(
        a_new_destination_does_not_wait,
        ("tests/clock/test_destination_waits.py::test_a_new_destination_is_paid_when_its_waiting_time_is_over",),
    ),
    "old_clearing_accounts_get_a_floor": Bug(
        old_clearing_accounts_get_a_floor,
        ("tests/cli/test_schema.py::test_a_clearing_account_of_before_keeps_that_it_has_no_floor_and_verify_names_it",),
    ),
}
