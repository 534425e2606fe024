"""Stripe on the port: one POST per instruction, under our key, sent once.

The official package is not used: it retries by itself, makes keys by itself and waits for 80 s (docs/providers.md
2.3). What is written and what is believed is decided in `request` and `reply`; this carries it to the wire.
"""

import ssl
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tallystick.errors import Misconfigured
from tallystick.money.currencies import Purpose
from tallystick.providers.breaker import Breaker
from tallystick.providers.fetched import as_an_answer, body_of, no_such_id, unreadable
from tallystick.providers.http import Reply
from tallystick.providers.line import Headers, Line, Said
from tallystick.providers.scanning import Scanner
from tallystick.providers.stripe import listing, lookup, webhook
from tallystick.providers.stripe.account import StripeAccount
from tallystick.providers.stripe.facts import FACTS, STRIPE_VERSION
from tallystick.providers.stripe.objects import PATHS, Unreadable, is_id, read_object
from tallystick.providers.stripe.reply import done_with, read_reply
from tallystick.providers.stripe.request import Request, is_account, purpose_of, request_for
from tallystick.providers.words import (
    Answer,
    Busy,
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
)

_OK: Final = 200
# It cannot be cancelled in the state that it is in: which one that is must be asked.
_UNEXPECTED_STATE: Final = 400
_LIVE_PREFIXES: Final = ("sk_live_", "rk_live_")


class Stripe:
    """One Stripe account. What `Transfer.destination` may be is told in `request`.

    An object of a connected account is named "acct_.../po_..."; the same name is taken by `fetch`.
    """

    facts: Facts = FACTS

    def __init__(self, account: StripeAccount, *, tls: ssl.SSLContext | None = None) -> None:
        """Opens no connection. `tls` replaces the machine's trust store."""
        key = account.api_key.reveal()
        if not (key and key.isascii() and key.isprintable() and " " not in key):
            raise Misconfigured("the Stripe API key is empty or has characters that no key has")
        if not all(is_id(name) for name in account.connected_accounts):
            raise Misconfigured("a connected account of Stripe's is no acct_...")
        if account.account_id and not is_account(account.account_id):
            raise Misconfigured("the account id of Stripe's is no acct_...")
        # With an empty key anybody can sign.
        if not all(secret.reveal().strip() for secret in account.webhook_secrets):
            raise Misconfigured("a webhook secret of Stripe's is empty")
        mode = "live" if key.startswith(_LIVE_PREFIXES) else "test"
        self.account: str = f"{mode} {account.account_id}".rstrip()
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
        """Amounts, destinations and texts that Stripe cannot take; payouts of accounts that are not listed."""
        request = self._worded(instruction)
        return request if isinstance(request, Refused) else None

    async def send(self, instruction: Instruction, sending: Sending) -> Answer:
        """Send it once, worded as `stripe.request` has it.

        A charge is a PaymentIntent: without a payment method it waits for the customer, who needs its client secret.
        A refund is one of a PaymentIntent (pi_) or of a charge (ch_, py_); a transfer goes to a connected account, or
        to a bank as a payout.
        """
        request = self._worded(instruction, sending.mark)
        if isinstance(request, Refused):
            return request
        said = await self._line.send("POST", request.path, headers=request.headers, body=request.body, sending=sending)
        if isinstance(said, Busy):
            return said
        if not isinstance(said.result, Reply):
            return Unknown(code="unanswered", message=f"Stripe: {said.result.reason}.", evidence=(said.exchange,))
        return read_reply(said.result, request, said.exchange)

    async def cancel(self, payment_id: str, sending: Sending) -> Answer:
        """Cancel a PaymentIntent. One that Stripe does not cancel is asked for: it may have succeeded."""
        if not is_id(payment_id):
            return Unknown(code="id_invalid", message="It is no id of Stripe's, so nothing was sent.")
        said = await self._line.send("POST", f"{PATHS['charge']}/{payment_id}/cancel", sending=sending)
        if isinstance(said, Busy):
            return said
        if not isinstance(said.result, Reply):
            return Unknown(code="unanswered", message=f"Stripe: {said.result.reason}.", evidence=(said.exchange,))
        if said.result.status == _UNEXPECTED_STATE:
            return as_an_answer(await self.fetch("charge", payment_id))
        return as_an_answer(_shown("charge", payment_id, "", said))

    async def look_up(
        self, instruction: Instruction, *, first_sent_at: datetime, now: datetime, until: datetime | None = None
    ) -> Looked:
        """Ask Stripe's books by our key."""
        return await lookup.look_up(
            self._line, self._scanner, instruction, first_sent_at=first_sent_at, now=now, until=until
        )

    async def fetch(self, purpose: Purpose, provider_id: str) -> Fetched:
        """One object by its id."""
        account, _, object_id = provider_id.rpartition("/")
        if not is_id(object_id) or (account and not is_id(account)):
            return no_such_id()
        named: Headers = (("stripe-account", account),) if account else ()
        return _shown(
            purpose, object_id, account, await self._line.ask("GET", f"{PATHS[purpose]}/{object_id}", headers=named)
        )

    def purpose(self, instruction: Instruction) -> Purpose:
        """A transfer to a bank is a payout."""
        return purpose_of(instruction)

    def movements(self, *, since: datetime, until: datetime) -> AsyncIterator[Movement]:
        """Payment intents, refunds, transfers and payouts made in [since, until)."""
        connected = self._account.connected_accounts
        return listing.movements(self._line, since=since, until=until, connected_accounts=connected)

    async def events(self, *, cursor: str | None, now: datetime) -> EventPage:
        """The platform's events of the last 30 days, oldest first. Those of connected accounts come by webhook."""
        return await listing.events(self._line, cursor=cursor, now=now)

    def receive(self, headers: Headers, body: bytes, *, now: datetime) -> tuple[Event, ...] | Forged:
        """One event in each webhook."""
        tolerance = FACTS.webhook_tolerance or timedelta()
        secrets = self._account.webhook_secrets
        forged = webhook.verify(headers, body, secrets=secrets, now=now, tolerance=tolerance)
        if forged is not None:
            return forged
        try:
            return (self._believed(webhook.parse(body)),)
        except Unreadable as error:
            return Forged("unreadable", f"Stripe signed it, but {error}.")

    def time(self) -> datetime | None:
        """As the last answer told."""
        return self._line.time()

    async def ping(self) -> Reachability:
        """The balance: every key may read it."""
        return await self._line.ping("/v1/balance")

    async def close(self) -> None:
        """Close the idle connections."""
        await self._line.close()

    def _worded(self, instruction: Instruction, mark: str = "") -> Request | Refused:
        request = request_for(instruction, mark)
        if isinstance(request, Refused) or self._is_listed(request.account):
            return request
        return Refused(
            code="account_not_listed",
            message=f"The payouts of {request.account} are not listed here: after a restore one would not be found and "
            f"would be paid again. Have {request.account} added to TALLY_STRIPE_CONNECTED_ACCOUNTS, or pay to the "
            "account itself. Nothing was sent and no money moved.",
        )

    def _is_listed(self, account: str) -> bool:
        return not account or account in self._account.connected_accounts

    def _believed(self, event: Event) -> Event:
        """What is told of an account whose payouts we do not order bears no key of ours, whatever it says."""
        movement = event.movement
        if movement is None or self._is_listed(movement.elsewhere):
            return event
        plain = msgspec.structs.replace(movement, reference="", mark="", about="")
        return msgspec.structs.replace(event, movement=plain)

    def _authorization(self) -> Headers:
        return (
            ("authorization", f"Bearer {self._account.api_key.reveal()}"),
            ("stripe-version", STRIPE_VERSION),
        )


def _shown(purpose: Purpose, object_id: str, account: str, said: Said) -> Fetched:
    """The one object that was asked for, as Stripe shows it."""
    body = body_of("Stripe", said)
    if not isinstance(body, bytes):
        return body
    evidence = (said.exchange,)
    try:
        kept = read_object(purpose, body)
        if kept.id != object_id:
            return unreadable("Stripe", "it is another object", evidence)
        return done_with(kept, account, evidence)
    except Unreadable as error:
        return unreadable("Stripe", str(error), evidence)
