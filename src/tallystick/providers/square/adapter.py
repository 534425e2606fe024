"""Square on the port: one POST per instruction, under our key, sent once.

The official package is not used: it retries by itself and waits for 60 s (docs/providers.md 4, SDK). What is written
and what is believed is decided in `request` and `reply`; this carries it to the wire.
"""

import ssl
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final
from urllib.parse import quote

from tallystick.errors import Misconfigured
from tallystick.money.currencies import Purpose
from tallystick.providers.breaker import Breaker
from tallystick.providers.fetched import as_an_answer, body_of, no_such_id, none_by_id, unreadable
from tallystick.providers.http import Reply
from tallystick.providers.line import Headers, Line, Said
from tallystick.providers.scanning import Scanner
from tallystick.providers.square import listing, lookup, webhook
from tallystick.providers.square.account import SquareAccount
from tallystick.providers.square.facts import FACTS, SQUARE_VERSION
from tallystick.providers.square.objects import PATHS, Unreadable, is_id
from tallystick.providers.square.objects import read_reply as read_object_of
from tallystick.providers.square.reply import read_reply
from tallystick.providers.square.request import request_for
from tallystick.providers.words import (
    Answer,
    Busy,
    Done,
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
    Unknown,
    kind_of,
)

_OK: Final = 200
# It cannot be cancelled as it stands: how it stands must be asked.
_NOT_POSSIBLE: Final = 400


class Square:
    """One location of a seller at Square."""

    facts: Facts = FACTS

    def __init__(self, account: SquareAccount, *, tls: ssl.SSLContext | None = None) -> None:
        """Opens no connection. `tls` replaces the machine's trust store."""
        key = account.api_key.reveal()
        if not (key and key.isascii() and key.isprintable() and " " not in key):
            raise Misconfigured("the Square access token is empty or has characters that no token has")
        if not is_id(account.location_id):
            raise Misconfigured("the Square location is no id of Square's")
        # With an empty key anybody can sign.
        if not all(secret.reveal().strip() for secret in account.webhook_secrets):
            raise Misconfigured("a webhook secret of Square's is empty")
        self.account: str = f"location {account.location_id}"
        self._account = account
        self.requests_per_second: float = account.requests_per_second or FACTS.requests_per_second
        self._scanner = Scanner()
        self._line = Line(
            FACTS,
            account.api_base,
            authorization=self._authorization,
            requests_per_second=account.requests_per_second,
            concurrency=account.concurrency,
            tls=tls,
        )
        self.breaker: Breaker = self._line.breaker

    def refusal(self, instruction: Instruction) -> Refused | None:
        """Amounts, destinations and texts that Square cannot take."""
        request = request_for(instruction, self._account.location_id)
        return request if isinstance(request, Refused) else None

    async def send(self, instruction: Instruction, sending: Sending) -> Answer:
        """Send it once, worded as `square.request` has it.

        A charge is a payment, completed at once; its `payment_method` is a card's token or a stored card's id. A
        transfer is always Refused: Square cannot pay third parties.
        """
        request = request_for(instruction, self._account.location_id)
        if isinstance(request, Refused):
            return request
        said = await self._line.send(
            "POST",
            request.path,
            headers=(("content-type", "application/json"),),
            body=request.body,
            sending=sending,
        )
        if isinstance(said, Busy):
            return said
        if not isinstance(said.result, Reply):
            return Unknown(code="unanswered", message=f"Square: {said.result.reason}.", evidence=(said.exchange,))
        return read_reply(said.result, request, said.exchange)

    async def cancel(self, payment_id: str, sending: Sending) -> Answer:
        """Cancel a payment by its id. One that Square does not cancel is asked for: it may be completed.

        Never by its key: that voids a completed payment too, and says as much when there is none.
        """
        if not is_id(payment_id):
            return Unknown(code="id_invalid", message="It is no id of Square's, so nothing was sent.")
        said = await self._line.send(
            "POST",
            f"{PATHS['charge']}/{quote(payment_id, safe='')}/cancel",
            headers=(("content-type", "application/json"),),
            body=b"{}",
            sending=sending,
        )
        if isinstance(said, Busy):
            return said
        if not isinstance(said.result, Reply):
            return Unknown(code="unanswered", message=f"Square: {said.result.reason}.", evidence=(said.exchange,))
        if said.result.status == _NOT_POSSIBLE:
            return as_an_answer(await self.fetch("charge", payment_id))
        return as_an_answer(_shown("charge", payment_id, said))

    async def look_up(
        self, instruction: Instruction, *, first_sent_at: datetime, now: datetime, until: datetime | None = None
    ) -> Looked:
        """List what was made since the first send, and match our key."""
        return await lookup.look_up(
            self._line,
            self._scanner,
            instruction,
            location_id=self._account.location_id,
            first_sent_at=first_sent_at,
            now=now,
            until=until,
        )

    async def fetch(self, purpose: Purpose, provider_id: str) -> Fetched:
        """One object by its id."""
        if purpose not in PATHS:
            return none_by_id("Square", purpose)
        if not is_id(provider_id):
            return no_such_id()
        return _shown(
            purpose, provider_id, await self._line.ask("GET", f"{PATHS[purpose]}/{quote(provider_id, safe='')}")
        )

    def purpose(self, instruction: Instruction) -> Purpose:
        """A transfer stays one, though Square refuses it."""
        return kind_of(instruction)

    def movements(self, *, since: datetime, until: datetime) -> AsyncIterator[Movement]:
        """Payments, refunds and payouts of the location made in [since, until)."""
        return listing.movements(self._line, location_id=self._account.location_id, since=since, until=until)

    async def events(self, *, cursor: str | None, now: datetime) -> EventPage:
        """Events of the last 28 days, oldest first, as far as the seller has them enabled."""
        return await listing.events(self._line, location_id=self._account.location_id, cursor=cursor, now=now)

    def receive(self, headers: Headers, body: bytes, *, now: datetime) -> tuple[Event, ...] | Forged:  # noqa: ARG002
        """One event in each webhook. The time decides nothing: Square signs none."""
        account = self._account
        forged = webhook.verify(headers, body, secrets=account.webhook_secrets, url=account.webhook_url)
        if forged is not None:
            return forged
        try:
            return (webhook.parse(body, location_id=account.location_id),)
        except Unreadable as error:
            return Forged("unreadable", f"Square signed it, but {error}.")

    def time(self) -> datetime | None:
        """As the last answer told."""
        return self._line.time()

    async def ping(self) -> Reachability:
        """The seller's locations."""
        return await self._line.ping("/v2/locations")

    async def close(self) -> None:
        """Close the idle connections."""
        await self._line.close()

    def _authorization(self) -> Headers:
        return (
            ("authorization", f"Bearer {self._account.api_key.reveal()}"),
            ("square-version", SQUARE_VERSION),
        )


def _shown(purpose: Purpose, provider_id: str, said: Said) -> Fetched:
    """The one object that was asked for, as Square shows it."""
    body = body_of("Square", said)
    if not isinstance(body, bytes):
        return body
    evidence = (said.exchange,)
    try:
        kept = read_object_of(purpose, body)
        if kept.id != provider_id:
            return unreadable("Square", "it is another object", evidence)
        return Done(movement=kept.movement(), evidence=evidence)
    except Unreadable as error:
        return unreadable("Square", str(error), evidence)
