"""The port: what every provider's adapter promises. The words are in `providers.words`."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Protocol

from tallystick.money.currencies import Purpose
from tallystick.providers.breaker import Breaker
from tallystick.providers.words import (
    Answer,
    Event,
    EventPage,
    Facts,
    Fetched,
    Forged,
    Instruction,
    Looked,
    Movement,
    Reachability,
    Refused,
    Sending,
)

Headers = Sequence[tuple[str, str]]


class Provider(Protocol):
    """One provider, one account.

    What may move money takes a `Sending`: without a committed intent there is none. It never raises for what the
    provider or the wire did: whatever is not certain is `Unknown`. An amount the provider cannot write exactly is
    `Refused` before anything is sent. It sends once: retries are the caller's, under the same key.
    """

    facts: Facts
    breaker: Breaker
    # How fast it may be called by this account.
    requests_per_second: float
    # Whose account it is, in plain text: an intent that was sent with one is never sent with another. Who looks up
    # must compare it himself: another account's books do not show what this one's do.
    account: str

    def refusal(self, instruction: Instruction) -> Refused | None:
        """Why it cannot even be worded: asked before anything is stored, so that what must not be kept is not."""

    async def send(self, instruction: Instruction, sending: Sending) -> Answer:
        """Charge, refund or transfer, as instructed, under the instruction's key."""

    async def cancel(self, payment_id: str, sending: Sending) -> Answer:
        """End a payment that has not succeeded, so that it never will: by the provider's id of it.

        Done tells how it stands now: `failed` is cancelled, `moved` had succeeded already. Whatever is not certain is
        Unknown, and never to be taken for cancelled. Safe to repeat. Where `facts.cancels_charges` is False nothing
        is sent.
        """

    async def look_up(
        self, instruction: Instruction, *, first_sent_at: datetime, now: datetime, until: datetime | None = None
    ) -> Looked:
        """Ask the provider's books whether it happened. Sends no money, uses no key.

        `until`: nothing of it can have been made after then. None: up to `now`, the database's time. A long list may
        take more than one question: Undecided, and the same one again goes on from there.
        """

    async def fetch(self, purpose: Purpose, provider_id: str) -> Fetched:
        """One movement by the provider's id, with its client secret where there is one."""

    def purpose(self, instruction: Instruction) -> Purpose:
        """What the provider calls it: a Transfer is a transfer or a payout, by its destination."""

    def movements(self, *, since: datetime, until: datetime) -> AsyncIterator[Movement]:
        """Everything in the provider's books that was made in [since, until), of the kinds in `facts.lists`.

        Raises ProviderUnreachable when the list breaks off: half a list must not pass for the whole.
        """

    async def events(self, *, cursor: str | None, now: datetime) -> EventPage:
        """Events after the cursor; None starts as far back as the provider reaches. None is left out.

        Some may be told again, where the provider's list is by time: their dedup_key tells.

        Raises ProviderUnreachable, and NotOffered where `facts.events_reach` is None.
        """

    def receive(self, headers: Headers, body: bytes, *, now: datetime) -> tuple[Event, ...] | Forged:
        """Verify a webhook on its raw bytes and read its items. All or nothing: one forged item forges the whole."""

    def time(self) -> datetime | None:
        """What the provider's own clock says now, by its last answer. None: none has told."""

    async def ping(self) -> Reachability:
        """One harmless authorised question."""

    async def close(self) -> None:
        """Close the connections."""
