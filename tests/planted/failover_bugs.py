"""Bugs of what survives the loss of a server: see `bugs`."""

from typing import Any, Final, cast

from tallystick.database import pool as database
from tests.planted.bug import Bug
from tests.planted.restore_bugs import known_until_ignored, memory_counts_from_the_first_send, random_token

DOUBT: Final = "tests/failover/test_commit_in_doubt.py::"
UNCONFIRMED: Final = "tests/failover/test_unconfirmed.py::"


def a_warning_at_commit_is_passed_over() -> None:
    """Committed here and perhaps nowhere else is taken for committed."""
    cast("Any", database.Database)._warned = lambda _self, _connection, _message: None


def run_again_without_the_standbys() -> None:
    """After a commit in doubt a transaction that only finds what it wrote is believed, and nobody confirmed it."""
    cast("Any", database)._BEGIN_BEHIND = "BEGIN"


def what_a_standby_lacks_was_never_sent() -> None:
    """A promotion is no hint, and the memory of a key counts from the first send that is stored."""
    known_until_ignored()
    memory_counts_from_the_first_send()


FAILOVER_BUGS: Final = {
    "a_warning_at_commit_is_passed_over": Bug(
        a_warning_at_commit_is_passed_over,
        (
            DOUBT + "test_nothing_is_sent_on_a_leave_that_a_failover_would_lose",
            DOUBT + "test_a_sender_is_told_that_its_leave_is_in_doubt",
        ),
    ),
    "what_a_standby_lacks_was_never_sent": Bug(
        what_a_standby_lacks_was_never_sent,
        (UNCONFIRMED + "test_what_was_lost_and_forgotten_is_asked_about_and_moved_once",),
    ),
    "a_buyer_who_comes_again_has_another_token": Bug(
        random_token,
        (UNCONFIRMED + "test_what_was_lost_inside_its_key_s_memory_goes_on_by_itself_within_seconds",),
    ),
    "run_again_without_the_standbys": Bug(
        run_again_without_the_standbys,
        (DOUBT + "test_what_only_finds_a_commit_in_doubt_waits_for_the_standbys_too",),
    ),
}
