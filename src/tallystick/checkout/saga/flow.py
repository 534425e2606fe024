"""The saga: events about payments and refunds become PAID orders, refunds, or a person's business.

    settle    a batch in one transaction: classed, PAID, refunds begun, breaks, ledger, event ends (`store`)
    give back what was begun is sent, and recorded with the event that waited for it           (`checkout.refund`)

Killed anywhere, the lease of an event runs out and it is decided again: a receipt tells that it was, and a refund that
was begun is the financial sweeper's.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from tallystick.checkout.refund.flow import Refunds
from tallystick.checkout.refund.review.decisions import Changed
from tallystick.checkout.saga import store
from tallystick.checkout.saga.store import PENDING_REFUND, ClaimsLost, Settled
from tallystick.commit.port import Contended, Lost
from tallystick.database.pool import Database
from tallystick.errors import (
    InFlight,
    OutcomeUnknown,
    RestoredDatabase,
    TallystickError,
    Unreachable,
    require,
)
from tallystick.movement.steps import Happened
from tallystick.movement.witness import Witness
from tallystick.providers.steady import steady
from tallystick.settings import LIMITS, Limits
from tallystick.webhooks.inbox import ClaimedEvent
from tallystick.webhooks.rules import EventOutcome, Postponed, Recorded

log = structlog.get_logger("tallystick.saga")

# Orders may be locked by a click or the sweeper for one commit; a batch that met one of them is run again.
_MOST_ROUNDS: Final = 5


class Unsettled(TallystickError):
    """The database refuses what these events come to, each time, and not because somebody holds a lock.

    No outage: one of them contradicts what is stored. Whoever handles them finds it by trying one by one.
    """


class Saga:
    """Handles the events of charges and refunds. Any number may run side by side."""

    def __init__(
        self,
        database: Database,
        refunds: Refunds,
        witness: Witness,
        *,
        limits: Limits = LIMITS,
        changed: Changed = lambda _orders: None,
    ) -> None:
        """`changed` is told which orders a commit has changed, after it."""
        self._database = database
        self._refunds = refunds
        self._witness = witness
        self._limits = limits
        self._changed = changed
        self._later = Postponed(PENDING_REFUND, limits.saga_look_seconds)

    async def handle(self, events: Sequence[ClaimedEvent]) -> Sequence[EventOutcome]:
        """Settle a batch, then give back what is owed. Safe to run again with the same events."""
        began = steady()
        settled, lost = await self._settle(events)
        self._changed(settled.changed)
        for provider, movements in settled.unexplained.items():
            await self._witness.heard(provider, movements)
        outcomes = {**settled.outcomes, **dict.fromkeys(lost, Recorded())}
        if settled.begun:
            flights = self._refunds.launch(settled.begun, began=began)
            # Not for longer: other buyers wait for their PAID, and a refund finishes its event by itself.
            await asyncio.wait(flights, timeout=self._limits.saga_wait_seconds)
            for (event, _), flight in zip(settled.begun, flights, strict=True):
                is_done = flight.done() and isinstance(flight.result(), Happened)
                outcomes[event.number] = Recorded() if is_done else self._later
        require(len(outcomes) == len(events), "an event of the batch has no outcome")
        return [outcomes[event.number] for event in events]

    async def _settle(self, events: Sequence[ClaimedEvent]) -> tuple[Settled, set[int]]:
        lost: set[int] = set()
        refused: Contended | None = None
        # Set once somebody holds a lock for longer than we wait: the others are settled around it.
        postpone_held: float | None = None
        for _ in range(_MOST_ROUNDS):
            mine = [event for event in events if event.number not in lost]
            try:
                async with self._database.writing() as connection:
                    settled = await store.settle(
                        connection,
                        mine,
                        self._refunds.terms,
                        look_again_seconds=self._limits.saga_look_seconds,
                        postpone_held_seconds=postpone_held,
                    )
                # Only now is COMMIT behind us.
                return settled, lost
            except ClaimsLost as claims:
                lost |= claims.numbers
            except Contended as contended:
                refused = contended
                if contended.held:
                    postpone_held = self._limits.event_outage_seconds
            except RestoredDatabase as restored:
                # An outage, for as long as nobody has asked the providers: `tally recover`.
                raise Unreachable(str(restored)) from restored
            except Lost as broken:
                raise (OutcomeUnknown() if broken.commit_sent else Unreachable(str(broken))) from broken
        if refused is not None and not refused.held:
            raise Unsettled("The database refuses what these events come to. Nothing was changed.") from refused
        raise InFlight(self._limits.lock_wait_seconds)
