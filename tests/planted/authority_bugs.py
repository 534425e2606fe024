"""Bugs in who may do what, and in whose name: see `bugs`."""

from collections.abc import Mapping
from typing import Any, Final, cast

from tallystick.authority import approvals
from tallystick.authority import store as authority
from tallystick.database import verify
from tallystick.ledger.account import store as account
from tallystick.settlement import postings as settlement_ledger
from tallystick.settlement import store as settlement
from tallystick.settlement.review import store as settlement_review
from tests.planted.bug import Bug, migrated

REVIEW: Final = "tests/http/test_settlement_review.py::"
SOURCE: Final = "tests/test_library_payout_source.py::"
LIBRARY: Final = "tests/test_library_payout_source.py::"
POLICY: Final = "tests/http/test_authority.py::"
ACCOUNT: Final = "tests/http/test_account_authority.py::"
AUTHOR: Final = "tests/acceptance/test_author.py::"


def second_key_is_a_second_person() -> None:
    """Whoever has two keys is two people, here and in the database."""
    cast("Any", approvals).person_of = lambda name: name
    migrated(
        ("CHECK (split_part(decided_by, '/', 1) <> split_part(asked_by, '/', 1))", "CHECK (decided_by <> asked_by)")
    )


def author_of_the_batch() -> None:
    """A batch is journaled as if one caller had asked for all of it."""
    migrated(
        (
            "SELECT f.tenant_id, 'operation', f.id, f.author,",
            "SELECT f.tenant_id, 'operation', f.id, min(f.author) OVER (),",
        )
    )


def source_not_debited() -> None:
    """Whatever source is named, clearing pays."""
    settlement_ledger.source_of = lambda operation: settlement_ledger.clearing(operation.currency)


def operator_may_change_floors() -> None:
    """Whoever may write may say what bounds him."""
    original = account.put

    async def put(*arguments: Any, may_bound: bool = True, **more: Any) -> Any:
        return await original(*arguments, may_bound=may_bound or True, **more)

    cast("Any", account).put = put


def ceilings_not_checked() -> None:
    """Whatever the policy says, it may be paid: here and in the database."""
    cast("Any", authority.Judge).judge = lambda *_arguments: authority._WITHOUT
    migrated(
        ("IF largest > line.payout_micros THEN", "IF false THEN"),
        ("IF line.used_micros > line.day_micros THEN", "IF false THEN"),
    )


def day_ceiling_counted_without_a_lock() -> None:
    """Two who count at once do not see each other."""
    authority._SQL["lock_ceilings"] = authority._SQL["lock_ceilings"].replace("FOR NO KEY UPDATE", "")
    migrated(
        ("AND c.currency = of AND NOT c.is_gone FOR NO KEY UPDATE;", "AND c.currency = of AND NOT c.is_gone;"),
        ("IF line.used_micros > line.day_micros THEN", "IF false THEN"),
    )


def held_payout_is_claimed() -> None:
    """What waits for a second person is pending like the rest, and `verify` does not ask who agreed."""
    settlement._SQL["create"] = settlement._SQL["create"].replace("THEN 'held'", "THEN 'pending'")
    migrated(("OR f.needs_approval <> (st.status = 'held')", ""))
    sql = verify._SQL
    sql["settlements"] = sql["settlements"].replace("WHERE r.needs_approval\n", "WHERE false\n")


def dispute_needs_no_second_person() -> None:
    """What one person disputed the same may have tried again, here and in the database."""
    sql = settlement_review._SQL
    sql["lock"] = sql["lock"].replace("AND p.decision = 'approved'\n", "\n")
    migrated(("AND s.number = new.number AND s.needs_approval\n", "AND s.number = new.number AND false\n"))


def one_person_decides_refunds() -> None:
    """Whoever asked may approve."""
    cast("Any", approvals).undecidable = lambda *_arguments, **_named: None
    migrated(("CHECK (split_part(decided_by, '/', 1) <> split_part(asked_by, '/', 1))", "CHECK (true)"))


AUTHORITY_BUGS: Final[Mapping[str, Bug]] = {
    "second_key_is_a_second_person": Bug(
        second_key_is_a_second_person, (REVIEW + "test_a_second_key_of_the_same_person_approves_nothing",)
    ),
    "source_not_debited": Bug(
        source_not_debited, (SOURCE + "test_a_payout_debits_its_source_and_never_clearing[embedded18]",)
    ),
    "operator_may_change_floors": Bug(
        operator_may_change_floors,
        (ACCOUNT + "test_an_operator_changes_no_bound[{'floor_micros': 0}-{'floor_micros': None}]",),
    ),
    "ceilings_not_checked": Bug(
        ceilings_not_checked,
        (
            POLICY + "test_a_payout_above_the_ceiling_is_refused_and_leaves_its_key_unused",
            POLICY + "test_a_day_has_its_ceiling_over_one_by_one_and_batches",
            LIBRARY + "test_a_tenants_policy_binds_payouts_in_the_callers_transaction_too[embedded18]",
        ),
    ),
    "day_ceiling_counted_without_a_lock": Bug(
        day_ceiling_counted_without_a_lock, (POLICY + "test_two_processes_at_once_cannot_pass_a_days_ceiling",)
    ),
    "held_payout_is_claimed": Bug(
        held_payout_is_claimed,
        (POLICY + "test_a_payout_above_the_threshold_is_held_until_another_person_agrees",),
    ),
    "dispute_needs_no_second_person": Bug(
        dispute_needs_no_second_person,
        (POLICY + "test_what_a_second_person_rejected_is_not_paid_by_way_of_a_dispute",),
    ),
    "one_person_decides_refunds": Bug(
        one_person_decides_refunds, ("tests/checkout/refund/review/test_flow.py::test_one_person_alone_keeps_nothing",)
    ),
    "author_of_the_batch": Bug(author_of_the_batch, (AUTHOR + "test_each_of_a_batch_is_its_own_callers",)),
}
