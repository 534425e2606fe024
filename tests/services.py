"""The service as its commands run it, in processes of their own, and a customer who does a little of everything."""

import asyncio
import os
import re
import signal
import subprocess

import httpx2

from tests.checkouts import CARD
from tests.cli.commands import TALLY
from tests.providers.worlds import Control

SECRET = "whsec_of_a_service_with_settings_of_its_own"
PATIENCE_SECONDS = 60


def settings(control: Control) -> dict[str, str]:
    """With the simulator as Stripe, under a secret of its own."""
    return {
        "TALLY_PROVIDER": "stripe",
        "TALLY_STRIPE_API_KEY": "sk_test_of_the_service",
        "TALLY_STRIPE_API_BASE": f"{control.url}/stripe",
        "TALLY_STRIPE_WEBHOOK_SECRET": SECRET,
    }


async def trade(said: str, api_key: str, control: Control) -> None:
    """Operations, an order that is paid and told by a webhook, and a payout, by the API that said where it listens."""
    address = re.search(r"API +(http://\S+)/v1", said)
    assert address is not None, said
    headers = {"authorization": f"Bearer {api_key}"}
    async with httpx2.AsyncClient(base_url=address[1], headers=headers, timeout=PATIENCE_SECONDS) as client:
        await _trade(client, control, address[1])


async def _trade(client: httpx2.AsyncClient, control: Control, address: str) -> None:
    endpoint = {"url": f"{address}/webhooks/stripe", "secrets": [SECRET]}
    await asyncio.to_thread(control.call, "PUT", "endpoints/stripe", endpoint)
    for name in ("a", "b"):
        answer = await client.put(f"/v1/accounts/{name}", json={"currency": "EUR", "floor_micros": None})
        assert answer.status_code == 201, answer.text
    move = {"kind": "transfer", "debit": "a", "credit": "b", "amount_micros": 7, "currency": "EUR"}
    first = await client.post("/v1/operations", json=move, headers={"idempotency-key": "move"})
    again = await client.post("/v1/operations", json=move, headers={"idempotency-key": "move"})
    assert (first.status_code, again.content) == (201, first.content), first.text
    assert (await client.put("/v1/skus/lamp", json={"stock": 5})).status_code == 200
    wish = {"sku": "lamp", "quantity": 1, "amount_micros": 5_000_000, "currency": "EUR"}
    order = (await client.post("/v1/orders", json=wish, headers={"idempotency-key": "order"})).json()
    click = {"reservation_token": order["reservation_token"], "payment_method": CARD}
    paid = await client.post(f"/v1/orders/{order['id']}/pay", json=click, headers={"idempotency-key": "pay"})
    assert paid.status_code == 201, paid.text
    payout = {"attribution_id": "a-1", "squad_id": "s", "gross_micros": 3_000_000, "currency": "EUR"}
    settled = await client.post(
        "/v1/settlements",
        json={**payout, "destination": "acct_1", "source": "a"},
        headers={"idempotency-key": "settle"},
    )
    assert settled.status_code == 201, settled.text
    # Told by the database, not found by looking again.
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await client.get(f"/v1/orders/{order['id']}/status?wait=20")).json()["status"] != "PAID":
            pass


class Started:
    """A command that goes on, from when it is ready until it has ended as it was told."""

    _READY = re.compile(r"Webhooks |Ctrl-C finishes")

    def __init__(self, command: str, dsn: str, more: dict[str, str]) -> None:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
        self._process = subprocess.Popen(
            [*TALLY, command],
            env={**plain, "TALLY_DATABASE_URL": dsn, **more},
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> str:
        assert self._process.stderr is not None
        said = ""
        while not self._READY.search(said):
            line = self._process.stderr.readline()
            assert line, said
            said += line
        return said

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            self._process.kill()
