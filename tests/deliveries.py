"""Webhooks as the simulator's dialect signs them, and what the database made of them, for the tests."""

import hmac
import json
import time
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import asyncpg

from tallystick import app
from tallystick.providers.words import Event, Forged
from tallystick.secret import Secret
from tallystick.webhooks.log.port import Delivery

SECRET = "whsec_tests"
# As a service's settings have it.
TRUSTED = Secret(SECRET)
_PROVIDER = app.simulator("http://127.0.0.1:1", TRUSTED)


def payment(number: int, **more: Any) -> dict[str, Any]:
    """A payment that succeeded."""
    return {
        "id": f"pi_{number}",
        "object": "payment_intent",
        "amount": 1_000 + number,
        "currency": "eur",
        "status": "succeeded",
        "created": 1_700_000_000,
        "metadata": {"tally_key": f"{number:064x}"},
        **more,
    }


def body(number: int, *, type: str = "payment_intent.succeeded", thing: Any = None, **more: Any) -> bytes:  # noqa: A002
    """An event's bytes. `evt_{number}` is its id."""
    event = {
        "id": f"evt_{number}",
        "object": "event",
        "type": type,
        "created": 1_700_000_000,
        "data": {"object": payment(number) if thing is None else thing},
        **more,
    }
    return json.dumps(event).encode()


def signature(raw: bytes, *, secret: str = SECRET, age_seconds: float = 0) -> str:
    """The value of the Stripe-Signature header."""
    at = int(time.time() - age_seconds)
    mac = hmac.new(secret.encode(), b"%d.%b" % (at, raw), sha256).hexdigest()
    return f"t={at},v1={mac}"


def headers(raw: bytes, **how: Any) -> dict[str, str]:
    return {"stripe-signature": signature(raw, **how), "content-type": "application/json"}


def event(number: int, **more: Any) -> Event:
    """As the receiver reads it."""
    raw = body(number, **more)
    found = _PROVIDER.receive([("stripe-signature", signature(raw))], raw, now=datetime.now(UTC))
    assert not isinstance(found, Forged), found
    return found[0]


def delivery(*numbers: int, provider: str = "simulator", **more: Any) -> Delivery:
    return Delivery(provider, tuple(event(number, **more) for number in numbers))


def request(number: int, *, provider: str = "simulator", **more: Any) -> bytes:
    """A whole HTTP request, signed now."""
    raw = body(number, **more)
    head = (
        f"POST /webhooks/{provider} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Stripe-Signature: {signature(raw)}\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


async def stored(dsn: str) -> dict[str, str]:
    """Status of each event by its id."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("SELECT event_id, status FROM tally.webhook_events")
    finally:
        await connection.close()
    assert len(rows) == len({row["event_id"] for row in rows}), "an event is there twice"
    return {row["event_id"]: row["status"] for row in rows}
