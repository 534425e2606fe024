"""A provider inside this process: every transfer is done at once, without a byte on a wire.

What is left in the measurement is ours: claims, intents, attempts, answers with their evidence, postings, journal.
"""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final

import msgspec

from tallystick.money.currencies import Purpose
from tallystick.providers.breaker import Breaker
from tallystick.providers.port import Headers
from tallystick.providers.stripe.facts import FACTS
from tallystick.providers.words import (
    Absent,
    Answer,
    Done,
    Event,
    EventPage,
    Exchange,
    Facts,
    Fetched,
    Forged,
    Instruction,
    Lookup,
    Movement,
    NotShown,
    Reachability,
    Refused,
    Sending,
    Transfer,
    Unknown,
)

NAME: Final = "instant"
_REQUESTS_PER_SECOND: Final = 1e9


class Instant:
    """Stripe's facts, and an answer of the size that Stripe's has."""

    facts: Facts = msgspec.structs.replace(FACTS, requests_per_second=_REQUESTS_PER_SECOND)
    requests_per_second: float = _REQUESTS_PER_SECOND
    account: str = "bench"

    def __init__(self) -> None:
        """Nothing to open."""
        self.breaker = Breaker()
        self.transfers = 0

    async def send(self, instruction: Instruction, sending: Sending) -> Answer:  # noqa: ARG002 - as the port has it
        """Done, if it is a transfer."""
        if not isinstance(instruction, Transfer):
            return Unknown(code="not_here", message="This provider of the bench only pays.")
        self.transfers += 1
        key = instruction.key.hex()
        id_ = f"tr_{key[:24]}"
        movement = Movement(
            provider=NAME,
            purpose="transfer",
            id=id_,
            amount_micros=instruction.amount_micros,
            currency=instruction.currency,
            state="moved",
            status="created",
            reference=key,
        )
        # As much as the Stripe adapter keeps of a transfer that went well.
        said = f'{{"id":"{id_}","object":"transfer","transfer_group":"{key}"}}'
        exchange = Exchange(asked="POST /v1/transfers", status=200, request_id=f"req_{key[:14]}", said=said)
        return Done(movement=movement, evidence=(exchange,))

    def refusal(self, instruction: Instruction) -> Refused | None:  # noqa: ARG002 - as the port has it
        """None: everything can be worded."""
        return None

    def purpose(self, instruction: Instruction) -> Purpose:  # noqa: ARG002 - as the port has it
        """Always a transfer."""
        return "transfer"

    async def cancel(self, payment_id: str, sending: Sending) -> Answer:  # noqa: ARG002 - as the port has it
        """It takes no payments."""
        return Unknown(code="cannot_cancel", message="nothing is taken here")

    async def look_up(
        self,
        instruction: Instruction,  # noqa: ARG002 - as the port has it
        *,
        first_sent_at: datetime,  # noqa: ARG002
        now: datetime,  # noqa: ARG002
        until: datetime | None = None,  # noqa: ARG002
    ) -> Absent:
        """Nothing is kept, so nothing is found."""
        return Absent(lookup=Lookup.EXACT)

    async def fetch(self, purpose: Purpose, provider_id: str) -> Fetched:  # noqa: ARG002 - as the port has it
        """Not offered."""
        return NotShown(message="This provider of the bench shows nothing.")

    async def movements(self, *, since: datetime, until: datetime) -> AsyncIterator[Movement]:  # noqa: ARG002
        """None."""
        nothing: tuple[Movement, ...] = ()
        for movement in nothing:
            yield movement

    async def events(self, *, cursor: str | None, now: datetime) -> EventPage:  # noqa: ARG002 - as the port has it
        """None."""
        return EventPage(events=(), cursor=cursor or "", more=False)

    def receive(self, headers: Headers, body: bytes, *, now: datetime) -> tuple[Event, ...] | Forged:  # noqa: ARG002
        """Sends no webhooks."""
        return Forged("not_here", "This provider of the bench sends no webhooks.")

    def time(self) -> None:
        """It has no clock of its own."""

    async def ping(self) -> Reachability:
        """Always there."""
        return Reachability(reachable=True, authorised=True, detail="in process", seconds=0.0)

    async def close(self) -> None:
        """Nothing to close."""
