"""How often a tenant may ask, in one process (`http.rate`). Every call with a key counts, a batch as what is in it."""

import time
from collections.abc import Callable
from typing import Final

import structlog

from tallystick.errors import RateExceeded
from tallystick.http.rate import Rate
from tallystick.ledger.claims import Tenant
from tallystick.settings import LIMITS, Limits

log = structlog.get_logger("tallystick.http")

_LONG_AGO: Final = float("-inf")


class TenantRate:
    """Counts what each tenant was granted. One number for each that asked: only those with a key get this far."""

    def __init__(
        self, per_second: float | None, *, clock: Callable[[], float] = time.monotonic, limits: Limits = LIMITS
    ) -> None:
        """None: nobody is refused. `clock` is a steady one, in seconds."""
        self._rate = None if per_second is None else Rate(per_second)
        self._clock = clock
        self._limits = limits
        self._paid_until: dict[int, float] = {}
        self._told_at: dict[int, float] = {}
        # Over all tenants: whoever may read the figures need not learn their names.
        self.refused = 0

    def admit(self, tenant: Tenant) -> None:
        """One more call. Raises RateExceeded, and the call has cost nothing."""
        rate = self._rate
        if rate is None:
            return
        now = self._clock()
        paid_until = self._paid_until.get(tenant.number, now)
        wait_seconds = rate.wait_seconds(paid_until, 1, now)
        if wait_seconds:
            raise self._refusal(tenant, wait_seconds, now)
        self._paid_until[tenant.number] = rate.spent(paid_until, 1, now)

    def count_as(self, tenant: Tenant, count: int) -> None:
        """A call that was admitted is so many. Raises RateExceeded; the call itself still counts: its body was read."""
        rate = self._rate
        if rate is None or count <= 1:
            return
        now = self._clock()
        paid_until = self._paid_until[tenant.number]
        # Without the one that was counted at the door: a second's worth must be there at times for the largest, too.
        before = rate.spent(paid_until, -1, paid_until)
        if rate.wait_seconds(before, count, now):
            raise self._refusal(tenant, rate.wait_seconds(paid_until, count, now), now)
        self._paid_until[tenant.number] = rate.spent(before, count, now)

    def _refusal(self, tenant: Tenant, wait_seconds: float, now: float) -> RateExceeded:
        self.refused += 1
        if now - self._told_at.get(tenant.number, _LONG_AGO) >= self._limits.rate_told_seconds:
            self._told_at[tenant.number] = now
            log.warning("rate_exceeded", tenant=tenant.name, retry_after_seconds=round(wait_seconds, 3))
        return RateExceeded(wait_seconds)
