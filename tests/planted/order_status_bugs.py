"""Bugs in waiting for orders, and in the memory of how they stand: see `bugs`."""

from collections.abc import Mapping
from typing import Any, Final, cast

from tallystick.checkout.status import announcer
from tallystick.checkout.status import cache as order_status_cache
from tallystick.checkout.status import flow as order_status
from tallystick.checkout.status.cache import Cache
from tests.planted.bug import Bug

FLOW: Final = "tests/checkout/status/test_flow.py::"
CACHE: Final = "tests/checkout/status/test_cache.py::"


def trusted_while_deaf() -> None:
    """Memory is good as long as nothing contradicts it: a lost connection contradicts nothing."""

    def trust(self: Any, until: float) -> None:
        self._trusted_until = max(self._trusted_until, until, 1e18)

    cast("Any", Cache).trust = trust
    cast("Any", Cache).distrust = lambda _self: None


def kept_after_the_announcement() -> None:
    """What was read is put into memory, whatever was announced while it was read."""
    original = Cache.put

    def put(self: Any, place: Any, _ticket: Any, found: Any, now: float) -> None:
        original(self, place, self.ticket(place, now), found, now)

    cast("Any", Cache).put = put


def failures_are_kept() -> None:
    """The stale "failed" of the source."""
    cast("Any", order_status_cache).may_be_kept = lambda _found: True


def believes_that_it_listens() -> None:
    """An open connection is taken for one that hears."""

    async def prove(_self: Any, *_more: Any) -> None:
        return None

    cast("Any", order_status.OrderStatuses)._prove = prove


def no_poll() -> None:
    """What was never announced is never noticed."""

    async def compare(_self: Any) -> None:
        return None

    cast("Any", order_status.OrderStatuses)._compare = compare


def nothing_is_announced() -> None:
    """Other processes find out by themselves."""

    async def announce(_self: Any) -> None:
        return None

    cast("Any", announcer.Announcer)._announce = announce


def watched_after_it_was_read() -> None:
    """A change between the read and the wait is heard by nobody."""
    cast("Any", order_status.Watch).see = lambda self, found: setattr(self, "latest", found)


def tenants_share_memory() -> None:
    """Kept by the order's id alone."""
    get, put = Cache.get, Cache.put
    cast("Any", Cache).get = lambda self, place, now: get(self, (0, place[1]), now)
    cast("Any", Cache).put = lambda self, place, _ticket, found, now: put(
        self, (0, place[1]), self.ticket((0, place[1]), now), found, now
    )


ORDER_STATUS_BUGS: Mapping[str, Bug] = {
    "cache trusted while deaf": Bug(
        trusted_while_deaf,
        (
            f"{FLOW}test_losing_the_connection_disables_memory_rather_than_trusting_it",
            f"{FLOW}test_a_connection_that_falls_silent_without_breaking_is_noticed",
            f"{CACHE}test_nothing_is_given_or_kept_while_nobody_listens",
            f"{CACHE}test_trust_ends_by_itself",
        ),
    ),
    "stale answer put after the announcement": Bug(
        kept_after_the_announcement,
        (
            f"{FLOW}test_what_was_read_before_the_announcement_is_not_kept_after_it",
            f"{CACHE}test_what_was_read_before_a_change_is_not_kept_after_it",
        ),
    ),
    "failures are kept": Bug(failures_are_kept, (f"{FLOW}test_a_failure_is_never_answered_from_memory",)),
    "an open connection is taken for one that hears": Bug(
        believes_that_it_listens, (f"{FLOW}test_a_connection_that_falls_silent_without_breaking_is_noticed",)
    ),
    "no poll behind the announcements": Bug(
        no_poll, (f"{FLOW}test_a_process_killed_between_commit_and_notify_is_found_by_the_poll",)
    ),
    "changed orders are not announced": Bug(
        nothing_is_announced,
        (
            f"{FLOW}test_a_commit_of_another_process_wakes_who_waits[cancelled-CANCELLED]",
            f"{FLOW}test_a_commit_of_another_process_wakes_who_waits[swept-CANCELLED_BY_SWEEPER]",
            f"{FLOW}test_every_step_of_a_payment_wakes_who_waits",
            f"{FLOW}test_what_a_collector_finishes_wakes_who_waits",
        ),
    ),
    "nobody is woken by what was seen": Bug(
        watched_after_it_was_read, (f"{FLOW}test_what_changed_between_reading_and_waiting_is_not_missed",)
    ),
    "tenants share the memory of orders": Bug(
        tenants_share_memory,
        (
            f"{FLOW}test_another_tenants_order_is_unknown_also_to_memory",
            f"{CACHE}test_another_tenants_order_of_the_same_id_is_another",
        ),
    ),
}
