"""The adapter: Adyen behind the port. One send per call, our key in its header, nothing repeated."""

import ssl
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Final, assert_never
from urllib.parse import urlsplit

from tallystick.errors import Misconfigured, NotOffered, ProviderUnreachable
from tallystick.keys.derived import hex64
from tallystick.money.currencies import Purpose
from tallystick.providers.adyen.account import AdyenAccount
from tallystick.providers.adyen.facts import FACTS
from tallystick.providers.adyen.listing import Listing
from tallystick.providers.adyen.objects import is_id, transfer_movement
from tallystick.providers.adyen.reading import (
    fetched_transfer,
    payment_answer,
    refund_answer,
    transfer_answer,
)
from tallystick.providers.adyen.webhook import receive
from tallystick.providers.adyen.wording import Wording, charge_wording, refund_wording, transfer_wording
from tallystick.providers.fetched import no_such_id, none_by_id
from tallystick.providers.line import Headers, Line
from tallystick.providers.paging import BrokenOff
from tallystick.providers.words import (
    Answer,
    Busy,
    Charge,
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

_JSON: Final = ("content-type", "application/json")
# Any day will do: the answer is not looked at.
_PING: Final = "createdSince=2020-01-01T00:00:00Z&createdUntil=2020-01-02T00:00:00Z&limit=1"
_OK: Final = 200


class Adyen:
    """One merchant account and one balance account. Two hosts, one breaker and one gate."""

    facts = FACTS

    def __init__(self, account: AdyenAccount, *, tls: ssl.SSLContext | None = None) -> None:
        """Raises Misconfigured for an account that could never work."""
        _check(account)
        self._account = account
        self.requests_per_second: float = account.requests_per_second or FACTS.requests_per_second
        where = "live" if "-live" in (urlsplit(account.api_base).hostname or "") else "test"
        self.account = f"{account.merchant_account}/{account.balance_account} {where}"
        self._checkout = Line(
            FACTS,
            account.api_base,
            authorization=self._authorization,
            requests_per_second=account.requests_per_second,
            concurrency=account.concurrency,
            tls=tls,
        )
        self.breaker = self._checkout.breaker
        self._platform = Line(
            FACTS,
            account.transfer_api_base,
            authorization=self._authorization,
            breaker=self._checkout.breaker,
            gate=self._checkout.gate,
            tls=tls,
        )
        self._listing = Listing(self._platform, account.balance_account)

    def refusal(self, instruction: Instruction) -> Refused | None:
        """Amounts, destinations and texts that Adyen cannot take; raw card data."""
        wording = self._wording(instruction)
        return wording if isinstance(wording, Refused) else None

    async def send(self, instruction: Instruction, sending: Sending) -> Answer:
        """Send it once, worded as `adyen.wording` has it.

        A charge's `payment_method` is JSON of Adyen's paymentMethod, or the id of a stored one; `Done.client_secret` is
        Adyen's `action`, as JSON, where the customer still has something to do. A refund's `payment_id` is the
        payment's pspReference. For the forms of a transfer's `destination` see `adyen.destination`.
        """
        wording = self._wording(instruction)
        if isinstance(wording, Refused):
            return wording
        line = self._platform if isinstance(instruction, Transfer) else self._checkout
        headers = (_JSON, ("idempotency-key", wording.reference))
        said = await line.send("POST", wording.path, headers=headers, body=wording.body, sending=sending)
        if isinstance(said, Busy):
            return said
        match instruction:
            case Charge():
                return payment_answer(said, wording)
            case Refund():
                return refund_answer(said, wording, instruction.payment_id)
            case Transfer():
                return transfer_answer(said, wording)
            case _:
                assert_never(instruction)

    async def cancel(self, payment_id: str, sending: Sending) -> Answer:
        """Nothing is sent: Adyen says only that it has received such a wish, and carries it out at a later time.

        By then the payment may have been authorised and have paid its order: it would be voided behind our back.
        """
        del payment_id, sending
        return Unknown(code="cannot_cancel", message="Adyen does not answer whether a payment is cancelled.")

    async def look_up(
        self, instruction: Instruction, *, first_sent_at: datetime, now: datetime, until: datetime | None = None
    ) -> Looked:
        """Transfers by our reference, whenever they were made. Of payments and refunds Adyen tells by webhook alone."""
        del until
        match instruction:
            case Transfer():
                return await self._listing.look_up(hex64(instruction.key), first_sent_at=first_sent_at, now=now)
            case Charge() | Refund():
                message = "Adyen has no question for payments and refunds: its webhooks and reports tell."
                return Undecided(code="no_lookup", message=message)
            case _:
                assert_never(instruction)

    async def fetch(self, purpose: Purpose, provider_id: str) -> Fetched:
        """One transfer by its id. Payments and refunds cannot be asked for."""
        if purpose != "transfer":
            return none_by_id("Adyen", purpose)
        if not is_id(provider_id):
            return no_such_id()
        return fetched_transfer(await self._platform.ask("GET", f"/transfers/{provider_id}"))

    def purpose(self, instruction: Instruction) -> Purpose:
        """Every transfer is one, to a bank or inside the platform."""
        return kind_of(instruction)

    async def movements(self, *, since: datetime, until: datetime) -> AsyncIterator[Movement]:
        """Every transfer that left our balance account in [since, until), both cut to whole seconds."""
        since, until = since.replace(microsecond=0), until.replace(microsecond=0)
        try:
            async for transfer in self._listing.transfers(since, until):
                movement = transfer_movement(transfer)
                if movement is None:
                    raise ProviderUnreachable("adyen", "a transfer in the list cannot be read")
                # The end is inclusive at Adyen, and two spans share a moment.
                if movement.created_at is None or since <= movement.created_at < until:
                    yield movement
        except BrokenOff as error:
            raise ProviderUnreachable("adyen", str(error).rstrip(".")) from error

    async def events(self, *, cursor: str | None, now: datetime) -> EventPage:
        """Adyen keeps no list of events."""
        del cursor, now
        raise NotOffered("adyen", "list of events")

    def receive(self, headers: Headers, body: bytes, *, now: datetime) -> tuple[Event, ...] | Forged:
        """Both schemes. Neither signs a time, so `now` decides nothing."""
        del now
        return receive(self._account, headers, body)

    def time(self) -> datetime | None:
        """As the last answer told of the host that has lists."""
        return self._platform.time()

    async def ping(self) -> Reachability:
        """List the transfers of a day long past."""
        return await self._platform.ping(f"/transfers?balanceAccountId={self._account.balance_account}&{_PING}")

    async def close(self) -> None:
        """Close the connections to both hosts."""
        await self._checkout.close()
        await self._platform.close()

    def _wording(self, instruction: Instruction) -> Wording | Refused:
        match instruction:
            case Charge():
                return charge_wording(instruction, self._account)
            case Refund():
                return refund_wording(instruction, self._account)
            case Transfer():
                return transfer_wording(instruction, self._account)
            case _:
                assert_never(instruction)

    def _authorization(self) -> Headers:
        return (("x-api-key", self._account.api_key.reveal()),)


def _check(account: AdyenAccount) -> None:
    if not is_id(account.merchant_account) or not is_id(account.balance_account):
        raise Misconfigured("adyen: merchant_account and balance_account are names of letters, digits, _ and -")
    key = account.api_key.reveal()
    if not key or not key.isascii() or not key.isprintable():
        raise Misconfigured("adyen: api_key is empty or has characters no API key has")
    for secret in account.webhook_secrets:
        try:
            valid = bool(bytes.fromhex(secret.reveal()))
        except ValueError:
            valid = False
        if not valid:
            raise Misconfigured("adyen: a webhook secret is not the hexadecimal HMAC key of a webhook")
