"""The adapter: Wise behind the port. A transfer is the saga's; nothing is repeated here."""

import ssl
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final, assert_never

from tallystick.errors import Misconfigured, NotOffered, ProviderUnreachable
from tallystick.keys.derived import uuid_form
from tallystick.money.amounts import is_currency
from tallystick.money.currencies import Purpose
from tallystick.providers.fetched import body_of, no_such_id, none_by_id, unreadable
from tallystick.providers.line import Headers, Line
from tallystick.providers.paging import BrokenOff
from tallystick.providers.wise import objects
from tallystick.providers.wise.account import WiseAccount
from tallystick.providers.wise.facts import FACTS
from tallystick.providers.wise.listing import Listing
from tallystick.providers.wise.saga import Saga
from tallystick.providers.wise.webhook import public_keys, receive
from tallystick.providers.wise.wording import Wording, refused, wording
from tallystick.providers.words import (
    Answer,
    Charge,
    Done,
    Event,
    EventPage,
    Fetched,
    Forged,
    Instruction,
    Looked,
    Movement,
    Reachability,
    Refund,
    Refused,
    Sending,
    Transfer,
    Undecided,
    Unknown,
    kind_of,
)

_OK: Final = 200
_MOST_ID_DIGITS: Final = 18


class Wise:
    """One profile. It pays; it takes no payments."""

    facts = FACTS

    def __init__(self, account: WiseAccount, *, tls: ssl.SSLContext | None = None) -> None:
        """Raises Misconfigured for an account that could never work."""
        _check(account)
        self._account = account
        self.requests_per_second: float = account.requests_per_second or FACTS.requests_per_second
        self.account = f"profile {account.profile_id}"
        self._keys = public_keys(account.webhook_keys)
        self._line = Line(
            FACTS,
            account.api_base,
            authorization=self._authorization,
            requests_per_second=account.requests_per_second,
            concurrency=account.concurrency,
            tls=tls,
        )
        self.breaker = self._line.breaker
        self._listing = Listing(self._line, account.profile_id)

    def refusal(self, instruction: Instruction) -> Refused | None:
        """Amounts, destinations and texts that Wise cannot take; charges and refunds."""
        words = self._wording(instruction)
        return words if isinstance(words, Refused) else None

    async def send(self, instruction: Instruction, sending: Sending) -> Answer:
        """Pay a third party, in four calls. For the forms of `destination` see `wise.wording`."""
        words = self._wording(instruction)
        if isinstance(words, Refused):
            return words
        return await Saga(self._line, self._listing, self._account.profile_id, words, sending).run()

    def _wording(self, instruction: Instruction) -> Wording | Refused:
        match instruction:
            case Charge():
                return refused("cannot_take_money", "Wise's API takes no payments. Charge with another provider.")
            case Refund():
                message = "Wise takes no payments, so none can be refunded. Pay by a transfer instead."
                return refused("cannot_refund", message)
            case Transfer():
                return wording(instruction, self._account)
            case _:
                assert_never(instruction)

    async def cancel(self, payment_id: str, sending: Sending) -> Answer:
        """Nothing is sent: Wise takes no payments."""
        del payment_id, sending
        return Unknown(code="cannot_cancel", message="Wise takes no payments.")

    async def look_up(
        self, instruction: Instruction, *, first_sent_at: datetime, now: datetime, until: datetime | None = None
    ) -> Looked:
        """Transfers by our reference, out of all since the first send."""
        match instruction:
            case Transfer():
                end = now if until is None else min(now, until)
                return await self._listing.look_up(uuid_form(instruction.key), first_sent_at=first_sent_at, now=end)
            case Charge() | Refund():
                return Undecided(code="no_lookup", message="Wise takes no payments, so it has none to show.")
            case _:
                assert_never(instruction)

    async def fetch(self, purpose: Purpose, provider_id: str) -> Fetched:
        """One transfer by its id."""
        if purpose != "transfer":
            return none_by_id("Wise", purpose)
        if not _is_number(provider_id):
            return no_such_id()
        said = await self._line.ask("GET", f"/v1/transfers/{provider_id}")
        body = body_of("Wise", said)
        if not isinstance(body, bytes):
            return body
        shown = objects.read(body, objects.Transfer)
        movement = None if shown is None else objects.movement(shown)
        if movement is None or movement.id != provider_id:
            return unreadable("Wise", "it is no transfer, or another one", (said.exchange,))
        return Done(movement=movement, evidence=(said.exchange,))

    def purpose(self, instruction: Instruction) -> Purpose:
        """Every payout is a transfer."""
        return kind_of(instruction)

    async def movements(self, *, since: datetime, until: datetime) -> AsyncIterator[Movement]:
        """Every transfer that was made in [since, until), funded or not, both cut to whole seconds."""
        since, until = since.replace(microsecond=0), until.replace(microsecond=0)
        try:
            async for transfer in self._listing.transfers(since, until):
                movement = objects.movement(transfer)
                if movement is None:
                    raise ProviderUnreachable("wise", f"the amount of transfer {transfer.id} cannot be read")
                if movement.created_at is None or since <= movement.created_at < until:
                    yield movement
        except BrokenOff as error:
            raise ProviderUnreachable("wise", str(error).rstrip(".")) from error

    async def events(self, *, cursor: str | None, now: datetime) -> EventPage:
        """Wise keeps no list of events."""
        del cursor, now
        raise NotOffered("wise", "list of events")

    def receive(self, headers: Headers, body: bytes, *, now: datetime) -> tuple[Event, ...] | Forged:
        """The signature covers no time, so `now` decides nothing."""
        del now
        return receive(self._keys, self._account.profile_id, headers, body)

    def time(self) -> datetime | None:
        """As the last answer told."""
        return self._line.time()

    async def ping(self) -> Reachability:
        """List one transfer."""
        return await self._line.ping(f"/v1/transfers?profile={self._account.profile_id}&limit=1&offset=0")

    async def close(self) -> None:
        """Close the connections."""
        await self._line.close()

    def _authorization(self) -> Headers:
        return (("authorization", f"Bearer {self._account.api_key.reveal()}"),)


def _check(account: WiseAccount) -> None:
    if not _is_number(account.profile_id):
        raise Misconfigured("wise: profile_id is the number of a profile")
    if account.source_currency and not is_currency(account.source_currency):
        raise Misconfigured("wise: source_currency is a currency in capitals, or empty")
    key = account.api_key.reveal()
    if not key or not key.isascii() or not key.isprintable():
        raise Misconfigured("wise: api_key is empty or has characters no API key has")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MOST_ID_DIGITS
