"""Timekeeping: what to do about leases when the database's clock was ahead, and is set right.

A lease ends at a time of the database's clock. One that was given while that clock was hours ahead would keep its row
from everybody for hours: a payout nobody asks about, an event nobody processes, an order nobody sweeps. No claim, pause
or retry is longer than `LONGEST_LEASE`: what ends later than that from now was dated wrongly, and begins anew.

Only when to look again is decided here. Whether money moved, the provider's books tell.
"""

from collections.abc import Sequence
from datetime import timedelta

import structlog

from tallystick.database.pool import Database
from tallystick.leases import store
from tallystick.leases.store import Bounded
from tallystick.providers.words import LONGEST_LEASE
from tallystick.settings import LIMITS, Limits

log = structlog.get_logger("tallystick.timekeeping")


class Timekeeper:
    """Bounds the leases of every tenant."""

    def __init__(
        self, database: Database, providers: Sequence[str], *, lease: timedelta, limits: Limits = LIMITS
    ) -> None:
        """`lease`: the longest that is configured, of payouts or of events."""
        self._database = database
        self._providers = providers
        self._lease = lease
        self._limits = limits

    async def run_once(self) -> Bounded:
        """One look, at a bounded number of rows. Raises like a step of any flow."""
        longest = max(LONGEST_LEASE, 2 * self._lease)
        done = await store.bound(
            self._database,
            longest=longest,
            lease=self._lease,
            providers=self._providers,
            most=self._limits.timekeeping_chunk,
        )
        if done.total:
            log.warning(
                "clock_was_ahead",
                payouts=done.payouts,
                payments=done.payments,
                events=done.events,
                orders=done.orders,
                next="tally verify",
            )
        return done
