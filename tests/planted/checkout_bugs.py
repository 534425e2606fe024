"""Bugs that only checkout as a whole shows, and its crash matrix and story must see: see `bugs`."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, cast

from tallystick.checkout.order.flow import Orders
from tests.planted.bug import Bug
from tests.planted.webhook_bugs import acknowledged_before_commit, dead_workers_keep_their_events

CRASH: Final = "tests/faults/test_checkout_crash.py::"
STORY: Final = "tests/acceptance/test_checkout_story.py::"
AROUND: Final = f"{CRASH}test_around_every_commit_and_call_a_late_payment_may_be_left[killed]"


def no_grace() -> None:
    """The sweeper cancels at the deadline itself."""
    made = Orders.__init__

    def init(self: Any, *arguments: Any, **more: Any) -> None:
        made(self, *arguments, **{**more, "grace": timedelta()})

    cast("Any", Orders).__init__ = init


CHECKOUT_BUGS: Mapping[str, Bug] = {
    "a webhook acknowledged and not durable, in the crash matrix": Bug(acknowledged_before_commit, (AROUND,)),
    "a killed worker keeps its event, in the crash matrix": Bug(dead_workers_keep_their_events, (AROUND,)),
    "no grace": Bug(no_grace, (f"{STORY}test_the_ghost_payment_heals_itself",)),
}
