"""Square's objects as it writes them, and instructions of ours."""

from collections.abc import Sequence
from typing import Any

from tallystick.keys.derived import digest, square45
from tallystick.providers.square.account import SquareAccount
from tallystick.providers.square.adapter import Square
from tallystick.providers.words import Charge, Instruction, Refund, Transfer
from tallystick.secret import Secret

API_KEY = "EAAA-NeverShown"
KEY = digest("test", number=1)
IDEMPOTENCY_KEY = square45(KEY)
REFERENCE = IDEMPOTENCY_KEY[:40]

CHARGE = Charge(
    key=KEY, amount_micros=12_340_000, currency="USD", description="Order 7", payment_method="cnon:card-nonce-ok"
)
REFUND = Refund(key=KEY, payment_id="PAY1", amount_micros=12_340_000, currency="USD", reason="wrong size")
TRANSFER = Transfer(key=KEY, destination="anybody", amount_micros=12_340_000, currency="USD")
INSTRUCTIONS: Sequence[Charge | Refund] = (CHARGE, REFUND)


def adapter(base: str, **account: Any) -> Square:
    return Square(
        SquareAccount(
            api_key=Secret(API_KEY), location_id="LMAIN", api_base=base, requests_per_second=10_000, **account
        )
    )


def payment(**changes: Any) -> dict[str, Any]:
    return {
        "id": "PAY1",
        "amount_money": {"amount": 1234, "currency": "USD"},
        "total_money": {"amount": 1234, "currency": "USD"},
        "status": "COMPLETED",
        "created_at": "2026-11-15T12:00:01.500Z",
        "updated_at": "2026-11-15T12:00:02.000Z",
        "location_id": "LMAIN",
        "reference_id": REFERENCE,
        "version_token": "v1",
        **changes,
    }


def refund(**changes: Any) -> dict[str, Any]:
    return {
        "id": "PAY1_R1",
        "amount_money": {"amount": 1234, "currency": "USD"},
        "status": "PENDING",
        "payment_id": "PAY1",
        "created_at": "2026-11-15T12:00:01.500Z",
        "updated_at": "2026-11-15T12:00:02.000Z",
        "reason": f"{IDEMPOTENCY_KEY} wrong size",
        **changes,
    }


def payout(**changes: Any) -> dict[str, Any]:
    return {
        "id": "po_1",
        "amount_money": {"amount": -500, "currency": "USD"},
        "status": "SENT",
        "location_id": "LMAIN",
        "created_at": "2026-11-15T12:00:01Z",
        "version": 1,
        **changes,
    }


def made_for(instruction: Instruction, **changes: Any) -> dict[str, Any]:
    """The reply with the object Square makes for one of the instructions above."""
    if isinstance(instruction, Charge):
        return {"payment": payment(**changes)}
    return {"refund": refund(**changes)}


def event(name: str, thing: dict[str, Any], kind: str = "refund.updated", **changes: Any) -> dict[str, Any]:
    return {
        "merchant_id": "M1",
        "location_id": "LMAIN",
        "type": kind,
        "event_id": "6a8f5f28-54a1-4eb0-a98a-3111513fd4fc",
        "created_at": "2026-11-15T12:00:03.000Z",
        "data": {"type": name, "id": thing.get("id", ""), "object": {name: thing}},
        **changes,
    }
