"""Stripe's objects as it writes them, and instructions of ours."""

from collections.abc import Sequence
from typing import Any

from tallystick.keys.derived import digest, hex64
from tallystick.providers.stripe.account import StripeAccount
from tallystick.providers.stripe.adapter import Stripe
from tallystick.providers.words import Answer, Charge, Instruction, Refund, Transfer
from tallystick.secret import Secret
from tests.providers.scripted import leave

API_KEY = "sk_test_51NeverShown"
KEY = digest("test", number=1)
REFERENCE = hex64(KEY)

CHARGE = Charge(key=KEY, amount_micros=12_340_000, currency="USD", description="Order 7", payment_method="pm_1")
REFUND = Refund(key=KEY, payment_id="pi_1", amount_micros=12_340_000, currency="USD")
TRANSFER = Transfer(key=KEY, destination="acct_1", amount_micros=12_340_000, currency="USD")
PAYOUT = Transfer(key=KEY, destination="ba_1", amount_micros=12_340_000, currency="USD")
CONNECTED_PAYOUT = Transfer(key=KEY, destination="acct_1/ba_1", amount_micros=12_340_000, currency="USD")
INSTRUCTIONS: Sequence[Instruction] = (CHARGE, REFUND, TRANSFER, PAYOUT, CONNECTED_PAYOUT)


def adapter(base: str, **account: Any) -> Stripe:
    return Stripe(
        StripeAccount(
            **{
                "api_key": Secret(API_KEY),
                "api_base": base,
                "requests_per_second": 10_000,
                "connected_accounts": ("acct_1",),
                **account,
            }
        ),
    )


def payment_intent(**changes: Any) -> dict[str, Any]:
    return {
        "id": "pi_1",
        "object": "payment_intent",
        "amount": 1234,
        "amount_received": 1234,
        "currency": "usd",
        "status": "succeeded",
        "created": 1_794_700_000,
        "metadata": {"tally_key": REFERENCE},
        "client_secret": "pi_1_secret_NeverShown",
        "latest_charge": "ch_1",
        "livemode": False,
        **changes,
    }


def refund(**changes: Any) -> dict[str, Any]:
    return {
        "id": "re_1",
        "object": "refund",
        "amount": 1234,
        "currency": "usd",
        "status": "succeeded",
        "created": 1_794_700_000,
        "payment_intent": "pi_1",
        "charge": "ch_1",
        "metadata": {"tally_key": REFERENCE},
        **changes,
    }


def transfer(**changes: Any) -> dict[str, Any]:
    return {
        "id": "tr_1",
        "object": "transfer",
        "amount": 1234,
        "amount_reversed": 0,
        "currency": "usd",
        "created": 1_794_700_000,
        "destination": "acct_1",
        "reversed": False,
        "transfer_group": REFERENCE,
        "metadata": {"tally_key": REFERENCE},
        **changes,
    }


def payout(**changes: Any) -> dict[str, Any]:
    return {
        "id": "po_1",
        "object": "payout",
        "amount": 1234,
        "currency": "usd",
        "status": "pending",
        "created": 1_794_700_000,
        "destination": "ba_1",
        "metadata": {"tally_key": REFERENCE},
        **changes,
    }


def reply_to(instruction: Instruction, **changes: Any) -> dict[str, Any]:
    """The object Stripe makes for one of the instructions above."""
    if isinstance(instruction, Charge):
        return payment_intent(**changes)
    if isinstance(instruction, Refund):
        return refund(**changes)
    return transfer(**changes) if instruction.destination == "acct_1" else payout(**changes)


def listed(*items: dict[str, Any], more: bool = False) -> dict[str, Any]:
    return {"object": "list", "data": list(items), "has_more": more, "url": "/v1/x"}


def event(thing: dict[str, Any], kind: str = "payout.failed", **changes: Any) -> dict[str, Any]:
    return {
        "id": "evt_1",
        "object": "event",
        "type": kind,
        "created": 1_794_700_000,
        "data": {"object": thing},
        "request": {"id": "req_1", "idempotency_key": REFERENCE},
        **changes,
    }


async def send(stripe: Stripe, instruction: Instruction) -> Answer:
    return await stripe.send(instruction, leave())
