"""Bugs of giving paid orders back: see `bugs`."""

import os
from typing import Any, Final, cast

import msgspec

from tallystick.checkout.refund import store as rows
from tallystick.checkout.refund.request import flow, store
from tallystick.checkout.refund.request import rules as deciders
from tallystick.checkout.refund.review import decisions as reviewing
from tallystick.checkout.refund.review import flow as asking
from tallystick.checkout.refund.review import rules as refund_review
from tallystick.checkout.saga import finding as saga_finding
from tests.planted.bug import Bug, migrated

FLOW: Final = "tests/checkout/refund/request/test_flow.py::"
KEEPING: Final = "tests/checkout/refund/review/test_flow.py::"
REVIEW: Final = "tests/checkout/refund/review/test_part.py::"


def sum_is_not_checked() -> None:
    """Each part is looked at alone, and the database lets it pass."""
    original = deciders.decide
    cast("Any", flow).decide = lambda sold, asked: original(msgspec.structs.replace(sold, refunding_micros=0), asked)
    migrated(("CHECK (refunding_micros BETWEEN 0 AND amount_micros) NOT VALID", "CHECK (true) NOT VALID"))


def sum_is_read_before_the_lock() -> None:
    """Two parts at once see the same that is left; and the database lets it pass."""
    for name in ("lock_order", "lock_payment"):
        store._SQL[name] = store._SQL[name].replace("FOR NO KEY UPDATE OF r", "").replace("FOR NO KEY UPDATE", "")
    migrated(("CHECK (refunding_micros BETWEEN 0 AND amount_micros) NOT VALID", "CHECK (true) NOT VALID"))


def key_without_its_part() -> None:
    """All parts of a payment have one key: the provider answers the second with the first."""
    cast("Any", store).refund_part = lambda _key: b"p" * 32


def part_is_random() -> None:
    """A request that is repeated after its row was lost has another key, and is given back twice."""
    cast("Any", store).refund_part = lambda _key: os.urandom(32)


def restocked_twice() -> None:
    """Every request gives the pieces back for sale."""
    original = deciders.decide
    cast("Any", flow).decide = lambda sold, asked: original(msgspec.structs.replace(sold, is_restocked=False), asked)
    migrated(("CREATE UNIQUE INDEX restocked_once", "CREATE INDEX restocked_once"))


def failed_part_still_counts() -> None:
    migrated(("SET refunding_micros = r.refunding_micros - p.micros", "SET refunding_micros = r.refunding_micros"))


def nameless_news_is_anybodys() -> None:
    """News of a refund without our reference is taken for the first of several that it may be."""
    part = "WHERE l.alike = 1"
    sql = saga_finding._REFUND_SQL
    if part not in sql["by_payment"]:
        raise ValueError("by_payment does not count any more")
    sql["by_payment"] = sql["by_payment"].replace(part, "WHERE l.alike >= 1")


def books_are_not_asked_before_it_failed() -> None:
    """A person's word stands against the provider's."""
    cast("Any", reviewing).books_on_failure = lambda *_looked, **_facts: "nothing"


def failed_while_on_its_way() -> None:
    """What was sent a moment ago is called failed: it arrives, and the next one too."""
    cast("Any", reviewing).on_its_way = lambda *_history, **_times: None


def failed_without_evidence() -> None:
    cast("Any", reviewing).evidence_fault = lambda *_said: None


def part_is_confirmed_by_its_payment_alone() -> None:
    """Any refund of the payment will do, whatever it gave back."""
    cast("Any", reviewing).doubt = lambda movement, **_meant: refund_review.doubt(
        movement, payment_intent_id=movement.parent, amount_micros=movement.amount_micros, currency=movement.currency
    )


def equal_parts_are_one() -> None:
    """Whose key a refund bears is not looked at."""

    async def nobody(*_asked: object) -> set[bytes]:
        return set()

    cast("Any", rows).under_reference = nobody


def approval_without_its_part() -> None:
    """What two persons said of one part counts for another."""
    original = asking.ask

    async def ask(connection: Any, tenant: Any, order_id: Any, wanted: Any, asked: Any) -> Any:
        whole = msgspec.structs.replace(asked, part=None)
        return await original(connection, tenant, order_id, wanted, whole)

    cast("Any", asking).ask = ask


def claim_outlives_the_decision() -> None:
    """Who had it in hand when it was failed sends it all the same."""
    for part, instead in (
        ("l.claim_number + g.ends_claim::integer", "l.claim_number"),
        ("\n   AND l.status || '' = 'PENDING'\nRETURNING", "\nRETURNING"),
    ):
        name = "record" if "ends_claim" in part else "extend"
        if part not in rows._SQL[name]:
            raise ValueError(f"{name} is not what it was")
        rows._SQL[name] = rows._SQL[name].replace(part, instead)


def kept_at_any_word() -> None:
    """Whatever the provider says of a payment, two persons may keep it: what it never took is sold."""
    cast("Any", reviewing).doubt_on_keeping = lambda *_movement, **_told: None


REFUND_BUGS: Final = {
    "a payment is kept at any word of the provider's": Bug(
        kept_at_any_word,
        (
            f"{KEEPING}test_what_the_provider_does_not_show_as_taken_is_not_kept",
            f"{KEEPING}test_another_amount_than_the_provider_took_is_not_kept",
        ),
    ),
    "a refund is failed against the provider's books": Bug(
        books_are_not_asked_before_it_failed, (f"{REVIEW}test_nobody_fails_what_the_provider_shows",)
    ),
    "a refund is failed while it is on its way": Bug(
        failed_while_on_its_way, (f"{REVIEW}test_what_may_be_on_its_way_is_not_failed",)
    ),
    "a refund is failed without evidence": Bug(
        failed_without_evidence,
        (f"{REVIEW}test_a_part_that_never_went_back_is_failed_and_its_amount_is_free[adyen]",),
    ),
    "a part is confirmed by a refund of another amount": Bug(
        part_is_confirmed_by_its_payment_alone, (f"{REVIEW}test_a_part_that_went_back_is_confirmed_by_its_id",)
    ),
    "a part is confirmed by the refund of an equal one": Bug(
        equal_parts_are_one, (f"{REVIEW}test_a_part_is_not_confirmed_by_the_refund_of_an_equal_one",)
    ),
    "an approval does not know its part": Bug(
        approval_without_its_part, (f"{REVIEW}test_two_parts_are_two_questions",)
    ),
    "a claim outlives what persons decided": Bug(
        claim_outlives_the_decision,
        (f"{REVIEW}test_a_sweeper_that_had_it_in_hand_sends_nothing_after_it_was_failed",),
    ),
    "the sum of parts is not checked": Bug(
        sum_is_not_checked,
        (
            f"{FLOW}test_parts_are_given_back_one_by_one_up_to_what_was_paid[stripe]",
            f"{FLOW}test_the_database_refuses_more_than_was_paid_whoever_asks",
        ),
    ),
    "the sum of parts is read before the lock": Bug(
        sum_is_read_before_the_lock,
        (f"{FLOW}test_two_parts_at_once_from_two_processes_never_exceed_what_was_paid",),
    ),
    "a refund's key is without its part": Bug(
        key_without_its_part, (f"{FLOW}test_parts_are_given_back_one_by_one_up_to_what_was_paid[stripe]",)
    ),
    "a part's key is random": Bug(
        part_is_random, (f"{FLOW}test_the_key_that_the_provider_sees_is_made_of_what_the_caller_sent",)
    ),
    "pieces go back for sale twice": Bug(
        restocked_twice, (f"{FLOW}test_stock_is_for_sale_again_only_where_it_was_asked_for_and_once",)
    ),
    "a part that failed still counts": Bug(
        failed_part_still_counts,
        (f"{FLOW}test_a_part_that_the_provider_refuses_is_told_again_and_no_longer_counts",),
    ),
    "nameless news completes any of equal parts": Bug(
        nameless_news_is_anybodys,
        (f"{FLOW}test_of_two_equal_parts_news_without_a_name_completes_neither",),
    ),
}
