"""One adapter each, pointed at the simulator's dialect, and the simulator's books as a second opinion."""

import http.client
import json
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec

from tallystick.keys.derived import digest
from tallystick.money.currencies import Purpose
from tallystick.providers.adyen.account import AdyenAccount
from tallystick.providers.adyen.adapter import Adyen
from tallystick.providers.line import Line
from tallystick.providers.port import Provider
from tallystick.providers.square.account import SquareAccount
from tallystick.providers.square.adapter import Square
from tallystick.providers.steady import steady
from tallystick.providers.stripe.account import StripeAccount
from tallystick.providers.stripe.adapter import Stripe
from tallystick.providers.wise.account import WiseAccount
from tallystick.providers.wise.adapter import Wise
from tallystick.providers.words import Answer, Charge, Instruction, Refund, Sending, Transfer
from tallystick.secret import Secret

API_KEY = "sk_test_contract_key_never_to_be_shown"
FAST = 100_000.0
HEX = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"


class Control:
    """The simulator's own API."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._netloc = urllib.parse.urlsplit(url).netloc

    def call(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(self._netloc, timeout=30)
        try:
            connection.request(method, f"/_sim/{path}", None if body is None else json.dumps(body))
            reply = connection.getresponse()
            content = json.loads(reply.read())
        finally:
            connection.close()
        assert reply.status == 200, content
        return content

    def plan(self, text: str) -> None:
        self.call("POST", "faults", {"plan": text})

    def struck(self) -> dict[str, int]:
        """How often each fault struck."""
        return {name: count for name, count in self.call("GET", "faults")["struck"].items() if count}

    def advance(self, **span: float) -> None:
        self.call("POST", "clock", {"advance_seconds": timedelta(**span).total_seconds()})

    def now(self) -> datetime:
        return datetime.fromisoformat(self.call("GET", "clock")["now"])

    def made(self, dialect: str, kind: str) -> list[dict[str, Any]]:
        """Every object of a kind in the provider's own books, whatever became of it, oldest first."""
        found = self.call("GET", f"objects?dialect={dialect}&kind={kind}&limit=10000")
        return list(reversed(cast("list[dict[str, Any]]", found)))


@dataclass(frozen=True)
class World:
    """A provider of the suite: what it can be asked for, and in which words."""

    name: str
    # From the simulator's address, the address webhooks go to, and Wise's public key.
    make: Callable[[str, str, str], Provider]
    # What moves money best here, and the word for it in fault plans.
    purpose: Purpose
    operation: str
    destination: str = ""
    payment_method: str | None = None
    refunds: bool = True
    currency: str = "EUR"

    def instruction(self, number: int = 1, *, micros: int = 12_340_000) -> Instruction:
        """The instruction that moves money here: a transfer, or a charge where nobody can be paid."""
        if self.purpose == "charge":
            return self.charge(number, micros=micros)
        return Transfer(
            key=digest("contract", number=number),
            destination=self.destination,
            amount_micros=micros,
            currency=self.currency,
            description="contract",
        )

    def charge(self, number: int = 1, *, micros: int = 12_340_000) -> Charge:
        return Charge(
            key=digest("contract", number=number),
            amount_micros=micros,
            currency=self.currency,
            payment_method=self.payment_method,
            description="contract",
        )

    def refund(self, payment_id: str, number: int = 1001, *, micros: int = 12_340_000) -> Refund:
        return Refund(
            key=digest("contract", number=number),
            payment_id=payment_id,
            amount_micros=micros,
            currency=self.currency,
            reason="contract",
        )


WORLDS = [
    World(
        "stripe",
        lambda url, _hook, _key: Stripe(
            StripeAccount(
                api_key=Secret(API_KEY),
                api_base=f"{url}/stripe",
                webhook_secrets=(Secret("whsec_old"), Secret("whsec_contract")),
                requests_per_second=FAST,
            )
        ),
        purpose="transfer",
        operation="transfer",
        destination="acct_contract",
        payment_method="pm_card_visa",
    ),
    World(
        "adyen",
        lambda url, _hook, _key: Adyen(
            AdyenAccount(
                api_key=Secret(API_KEY),
                merchant_account="TestMerchant",
                balance_account="BA00000000000000000000001",
                api_base=f"{url}/adyen/checkout/v72",
                transfer_api_base=f"{url}/adyen/btl/v4",
                webhook_secrets=(Secret("00" * 32), Secret(HEX)),
                requests_per_second=FAST,
            )
        ),
        purpose="transfer",
        operation="transfer",
        destination="transferInstrument:SE322KH223222F5GXZFNM3BGP",
        payment_method='{"type": "scheme", "encryptedCardNumber": "test_4111111111111111"}',
    ),
    World(
        "square",
        lambda url, hook, _key: Square(
            SquareAccount(
                api_key=Secret(API_KEY),
                location_id="LMAIN",
                api_base=f"{url}/square",
                webhook_secrets=(Secret("old"), Secret("sigkey")),
                webhook_url=hook,
                requests_per_second=FAST,
            )
        ),
        purpose="charge",
        operation="charge",
        payment_method="cnon:card-nonce-ok",
    ),
    World(
        "wise",
        lambda url, _hook, key: Wise(
            WiseAccount(
                api_key=Secret(API_KEY),
                profile_id="1001",
                api_base=f"{url}/wise",
                webhook_keys=(key,) if key else (),
                requests_per_second=FAST,
            )
        ),
        purpose="transfer",
        operation="transfer",
        destination='{"type": "iban", "accountHolderName": "Ada", "details": {"IBAN": "DE89370400440532013000"}}',
        refunds=False,
    ),
]


def leave(seconds: float = 10.0) -> Sending:
    """Leave to send, as a committed intent gives it."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Sending(first_sent_at=now, not_after=now + timedelta(seconds=seconds), sendable_until=steady() + seconds)


async def send(provider: Provider, instruction: Instruction, mark: str = "") -> Answer:
    sending = msgspec.structs.replace(leave(), mark=mark)
    return await provider.send(instruction, sending)


def impatient(provider: Provider, seconds: float = 0.3) -> None:
    """Wait less for answers than a provider's facts say, so that silence does not take half a minute."""
    for part in vars(provider).values():
        if isinstance(part, Line):
            part._facts = msgspec.structs.replace(part._facts, answer_seconds=seconds)
