"""Bugs that a restored backup would bring to light: see `bugs`."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import uuid4

import msgspec

from tallystick.checkout.order import store as orders
from tallystick.checkout.payment import flow as payments
from tallystick.checkout.payment import rules as payment
from tallystick.checkout.refund import flow as refunds
from tallystick.checkout.refund import rules as refund
from tallystick.movement import asking, mark
from tallystick.movement import rules as permits
from tallystick.movement import store as intents
from tallystick.movement.life import orphans
from tallystick.movement.rules import Begin, permit
from tallystick.movement.witness import Witness
from tallystick.providers.words import Absent, Lookup, Undecided
from tallystick.recovery import flow as recovery
from tallystick.recovery import payment_store as marks
from tallystick.recovery import reading
from tallystick.settlement.tick import flow as ticks
from tests.planted.bug import Bug, migrated

MEMORY: Final = "tests/movement/test_memory.py::"
CORE: Final = "tests/movement/test_rules.py::"
LIFE: Final = "tests/movement/life/test_flow.py::"
WITNESS: Final = "tests/movement/test_witness.py::"
TOKEN: Final = "tests/checkout/order/test_reservation_token.py::"
RECOVERED: Final = "tests/recovery/test_payment.py::"


def _spoil(spoilt: Any) -> None:
    cast("Any", intents).permit = spoilt


def memory_counts_from_the_first_send() -> None:
    """How old what is paid for is, nobody asks."""
    intents._SQL["make"] = intents._SQL["make"].replace("clock_timestamp() < since +", "clock_timestamp() < now() +")

    def leave_late(known: Any, wanted: Any, **times: Any) -> Any:
        young = msgspec.structs.replace(wanted, since=known.first_sent_at)
        return permit(msgspec.structs.replace(known, since=None), young, **times)

    _spoil(leave_late)


def proof_not_required() -> None:
    """Who has not asked may send."""

    def leave_unasked(known: Any, wanted: Any, **times: Any) -> Any:
        found = permit(known, wanted, **times)
        return Begin(1) if isinstance(found, permits.AskFirst) else found

    _spoil(leave_unasked)


def any_proof_will_do() -> None:
    """Of whatever was asked, and however early."""

    def is_proof(absence: Any, *_others: Any) -> bool:
        return absence is not None

    cast("Any", permits)._is_proof = is_proof


def newest_time_counts() -> None:
    """The youngest of the times that are known: a new generation, or who asks later, would reset it."""
    cast("Any", permits).min = max


def random_token() -> None:
    """Another one each time."""
    cast("Any", orders).reservation_token = lambda *_of: uuid4()


def known_until_ignored() -> None:
    """That a life may have been lost changes nothing about its keys."""
    intents._SQL["make"] = intents._SQL["make"].replace(
        "(tally.unread(u.p)).known_until", "NULL::timestamptz AS known_until"
    )

    def leave_trusting(known: Any, wanted: Any, **times: Any) -> Any:
        return permit(known, wanted, **{**times, "known_until": None})

    async def nothing(_connection: Any, _provider: str) -> None:
        return None

    _spoil(leave_trusting)
    # Nor does a tick ask by itself.
    ticking: Any = ticks
    ticking.life = SimpleNamespace(**{**vars(ticking.life), "unread_in": nothing})


def orphans_ignored() -> None:
    """What the books showed under a key says nothing about its age."""
    intents._SQL["make"] = intents._SQL["make"].replace("THEN o.made_at END", "THEN NULL::timestamptz END")


def read_too_early() -> None:
    """What the lost life sent may still be on its way."""
    cast("Any", reading).timedelta = lambda **_span: timedelta(days=-1)


def stop_ignored() -> None:
    """What the provider has shown stops nobody."""

    def leave_going_on(known: Any, wanted: Any, **times: Any) -> Any:
        return permit(known, wanted, **{**times, "is_stopped": False})

    _spoil(leave_going_on)


def mark_of_the_attempt() -> None:
    """A further attempt has another mark than the first, and so other bytes."""
    mark_in = intents.mark_in
    cast("Any", intents).mark_in = lambda row: f"{mark_in(row)}/{uuid4()}"


def every_mark_is_ours() -> None:
    """Another installation on the same account is taken for a life of this one."""
    cast("Any", mark).is_ours = lambda text, _installation: bool(text)


def webhooks_are_not_witnessed() -> None:
    """Nobody looks who made what is told of."""

    async def heard(*_told: Any) -> int:
        return 0

    cast("Any", Witness).heard = heard


def memory_proves_nothing() -> None:
    """An answer from memory to the first attempt is like any other."""
    cast("Any", intents).proof_by_answer = lambda *_answer, **_attempt: None


def given_back_not_told() -> None:
    """The books are read, and nobody hears what they show of a payment that is recorded here."""

    async def nothing(_database: Any) -> int:
        return 0

    cast("Any", orphans).report_given_back = nothing


def refunds_forgotten() -> None:
    """Charges are marked, and nothing else."""
    cast("Any", recovery)._KINDS = ("CHARGE",)


def charges_forgotten() -> None:
    """Refunds are marked, and nothing else."""
    cast("Any", recovery)._KINDS = ("REFUND",)


def silence_believed() -> None:
    """Who does not answer has nothing."""
    look_up = asking.look_up

    async def believing(*arguments: Any, **named: Any) -> Any:
        looked = await look_up(*arguments, **named)
        return Absent(lookup=Lookup.SCAN) if isinstance(looked, Undecided) else looked

    cast("Any", asking).look_up = believing


def _marking(old: str, new: str) -> None:
    if old not in marks._SQL["mark"]:
        raise ValueError(f"the mark has no {old!r} any more")
    marks._SQL["mark"] = marks._SQL["mark"].replace(old, new)


def mark_fences_nobody() -> None:
    """Whoever worked on it before may still write."""
    _marking("claim_number = l.claim_number + 1", "claim_number = l.claim_number")


def key_not_computed_again() -> None:
    """What is stored as its key is its key."""
    _marking("CASE WHEN l.idempotency_key IS DISTINCT FROM", "CASE WHEN l.idempotency_key IS NULL AND NULL <>")
    cast("Any", payment).key_of = lambda _order, charge: charge.key
    cast("Any", refund).key_of = lambda owed, **_ahead: owed.key


def mark_ignored() -> None:
    """Who decides what to do next does not look at it."""
    cast("Any", payment).ask_first = cast("Any", refund).ask_first = lambda step, *_of, **_how: step


def person_not_asked_again() -> None:
    """What once waited for a person is his, whatever the provider would say now."""
    _marking("WHEN $5 THEN NULL", "WHEN $5 AND false THEN NULL")


def saga_not_told() -> None:
    """The charge is recorded, and its money is nobody's news."""
    cast("Any", payments)._told = lambda *_of: ()


def another_amount_waits_for_nothing() -> None:
    """A list shows what is on its way, too."""
    cast("Any", permits)._may_have_another_key = lambda *_of: False


def memory_is_how_it_stands() -> None:
    """Nobody hears of money by an answer that was stored long ago."""
    cast("Any", payments)._told_now = lambda *_of: ()


def parts_by_their_own_key() -> None:
    """A part that is absent under its key was never given back."""
    cast("Any", refunds)._is_first_of_a_part = lambda _one: False


def random_secret() -> None:
    """A tenant's secret follows from nothing."""
    migrated(
        (
            "sha256(s.secret || convert_to(f.name, 'UTF8'))",
            "uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())",
        )
    )


RESTORE_BUGS: Final = {
    "a part is looked for by its own key alone": Bug(
        parts_by_their_own_key,
        (f"{LIFE}test_a_part_that_was_given_back_under_another_key_is_not_given_back_again",),
    ),
    "a new tenant's secret is random": Bug(
        random_secret, (f"{TOKEN}test_a_tenant_that_was_lost_with_the_backup_has_the_tokens_it_had",)
    ),
    "of what was answered from memory the saga hears nothing": Bug(
        memory_is_how_it_stands,
        (f"{WITNESS}test_an_order_that_is_made_again_is_paid_by_what_was_answered_from_memory[paid at once]",),
    ),
    "made anew by another policy, it is sent by a list of today": Bug(
        another_amount_waits_for_nothing,
        (f"{LIFE}test_another_fee_waits_for_what_the_lost_life_had_on_its_way",),
    ),
    "a proven loss stops nobody": Bug(
        stop_ignored, (f"{WITNESS}test_news_of_a_payment_that_nothing_here_has_asked_for_stops_charges",)
    ),
    "a mark of its own for each attempt": Bug(
        mark_of_the_attempt,
        ("tests/movement/test_store.py::test_every_attempt_has_the_mark_of_its_intent[embedded18]",),
    ),
    "another installation's mark is taken for ours": Bug(
        every_mark_is_ours, (f"{WITNESS}test_what_another_installation_paid_is_theirs",)
    ),
    "webhooks are not witnessed": Bug(
        webhooks_are_not_witnessed,
        (f"{WITNESS}test_a_webhook_about_what_a_lost_life_paid_stops_that_provider_until_its_books_are_read",),
    ),
    "an answer from memory proves nothing": Bug(
        memory_proves_nothing,
        (f"{WITNESS}test_an_answer_from_memory_to_the_first_attempt_is_of_a_lost_life[wise]",),
    ),
    "what a lost life gave back is not told": Bug(
        given_back_not_told,
        tuple(
            f"{WITNESS}test_what_the_lost_life_gave_back_of_an_order_that_is_paid_again_is_told[{when}]"
            for when in ("read before it was made again", "read afterwards")
        ),
    ),
    "recover forgets refunds": Bug(
        refunds_forgotten,
        (
            f"{RECOVERED}test_a_refund_that_the_lost_life_made_is_recorded_once[the saga's-sent here too]",
            f"{RECOVERED}test_a_refund_that_the_lost_life_made_is_recorded_once[a part-never sent here]",
        ),
    ),
    "recover forgets charges": Bug(
        charges_forgotten,
        (f"{RECOVERED}test_a_charge_that_the_lost_life_made_is_recorded_once_and_pays_its_order[sent here too]",),
    ),
    "recover believes an unanswered look-up": Bug(
        silence_believed,
        tuple(
            f"{RECOVERED}test_while_the_provider_does_not_answer_nothing_is_confirmed_and_a_further_run_is_enough[{kind}]"
            for kind in ("charges", "refunds")
        ),
    ),
    "a mark of recover fences nobody": Bug(
        mark_fences_nobody,
        (
            f"{RECOVERED}test_a_collector_of_before_can_no_longer_write",
            f"{RECOVERED}test_a_sweeper_of_before_can_no_longer_write",
        ),
    ),
    "recover computes no key again": Bug(
        key_not_computed_again,
        tuple(
            f"{RECOVERED}test_a_key_that_is_not_its_content_s_goes_to_a_person_and_is_never_sent[{of}]"
            for of in ("the intent's too-charges", "the intent's too-refunds")
        ),
    ),
    "who goes on ignores the mark of recover": Bug(
        mark_ignored,
        tuple(
            f"{RECOVERED}test_where_nobody_can_be_asked_a_person_is_and_the_others_go_on[{kind}]"
            for kind in ("charges", "refunds")
        ),
    ),
    "who waited for a person before a restore is not asked about": Bug(
        person_not_asked_again,
        (f"{RECOVERED}test_one_that_waited_for_a_person_before_the_restore_is_asked_about_again",),
    ),
    "the saga hears nothing of what recover found": Bug(
        saga_not_told, (f"{RECOVERED}test_the_saga_hears_of_money_that_the_lost_life_took",)
    ),
    "a lost life makes no key older": Bug(
        known_until_ignored,
        # An order is not charged again either way: the books are asked for its further attempts.
        (f"{LIFE}test_a_payout_that_is_created_again_under_another_fee_is_not_paid_again",),
    ),
    "what the books showed makes no key older": Bug(
        orphans_ignored,
        (f"{LIFE}test_an_order_that_is_made_again_after_the_reading_is_not_charged_again",),
    ),
    "the books are read too early": Bug(
        read_too_early,
        (f"{LIFE}test_the_books_are_read_once_nothing_can_be_on_its_way_and_then_it_is_over",),
    ),
    "memory counts from the first send": Bug(
        memory_counts_from_the_first_send,
        (
            f"{MEMORY}test_a_payout_that_a_lost_life_paid_is_found_and_not_paid_again[stripe]",
            f"{MEMORY}test_a_charge_that_a_lost_life_made_is_found_and_not_made_again[stripe]",
            f"{MEMORY}test_a_refund_that_a_lost_life_made_is_found_and_not_sent_again",
        ),
    ),
    "past the memory no proof is asked for": Bug(
        proof_not_required,
        (
            f"{MEMORY}test_a_payout_that_a_lost_life_paid_is_found_and_not_paid_again[wise]",
            f"{MEMORY}test_a_charge_that_a_lost_life_made_is_found_and_not_made_again[square]",
        ),
    ),
    "any absence is proof": Bug(any_proof_will_do, (f"{CORE}test_what_is_sent_is_remembered_or_proven_absent",)),
    "a later asker makes a key younger": Bug(newest_time_counts, (f"{CORE}test_a_later_asker_makes_no_key_younger",)),
    "reservation token is random": Bug(
        random_token, (f"{TOKEN}test_a_buyer_who_comes_again_after_a_restore_is_not_charged_again",)
    ),
}
