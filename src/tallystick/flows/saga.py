"""The saga: events about payments and refunds become PAID orders, refunds, or a person's business.

    settle    a batch in one transaction: classed, PAID, refunds begun, breaks, ledger, ends of events  (`store.saga`)
    give back what was begun is sent, and recorded with the event that waited for it                    (`flows.refund`)

Killed anywhere, the lease of an event runs out and it is decided again: a receipt tells that it was, and a refund that
was begun is the financial sweeper's.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from tallystick.core.settlement import Transferred
from tallystick.core.webhook import Outcome, Postponed, Recorded
from tallystick.engine.port import Contended, Lost
from tallystick.errors import InFlight, OutcomeUnknown, RestoredDatabase, TallystickError, Unreachable, require
from tallystick.flows.refund import Changed, Refunds
from tallystick.flows.witness import Witness
from tallystick.providers.steady import steady
from tallystick.settings import LIMITS, Limits
from tallystick.store import saga as store
from tallystick.store.database import Database
from tallystick.store.saga import PENDING_REFUND, ClaimsLost, Settled
from tallystick.store.webhook import Claimed

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

    async def handle(self, events: Sequence[Claimed]) -> Sequence[Outcome]:
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
                is_done = flight.done() and isinstance(flight.result(), Transferred)
                outcomes[event.number] = Recorded() if is_done else self._later
        require(len(outcomes) == len(events), "an event of the batch has no outcome")
        return [outcomes[event.number] for event in events]

    async def _settle(self, events: Sequence[Claimed]) -> tuple[Settled, set[int]]:
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
