"""Paid in time, while nobody works: `tally serve` takes orders, payments and webhooks; `tally work` comes later."""

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tallystick.access import store as tenants
from tests.checkouts import CARD, compare
from tests.cli.commands import TALLY, tally
from tests.ledgers import broken, fetchval
from tests.providers.worlds import Control

ORDERS = 20
PRICE = 12_000_000
PATIENCE_SECONDS = 60.0
STARTED = "Ctrl-C finishes what is held"


@contextmanager
def process(command: str, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """`tally COMMAND` as a process of its own, ended by its id."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
    with log.open("wb") as said:
        running = subprocess.Popen([*TALLY, command], env={**clean, **environment}, stdout=said, stderr=said)
    try:
        yield running
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(PATIENCE_SECONDS)


def heard(log: Path, pattern: str, running: subprocess.Popen[bytes]) -> str:
    """What the process said, once it has."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and running.poll() is None:
        found = re.search(pattern, log.read_text())
        if found is not None:
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"it never said {pattern!r}: {log.read_text()}")


async def until(dsn: str, question: str, what: str) -> None:
    """The database answers yes."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await fetchval(dsn, question):
            await asyncio.sleep(0.05)
    assert await fetchval(dsn, question), what


async def bought(client: httpx2.AsyncClient, number: int) -> str:
    """Reserved and paid with a card that is charged at once; the order's id."""
    wish = {"sku": "phone", "quantity": 1, "amount_micros": PRICE, "currency": "EUR"}
    made = await client.post("/v1/orders", json=wish, headers={"idempotency-key": f"buyer-{number}"})
    assert made.status_code == 201, made.text
    order = made.json()
    body = {"reservation_token": order["reservation_token"], "payment_method": CARD}
    paid = await client.post(f"/v1/orders/{order['id']}/pay", json=body, headers={"idempotency-key": f"pay-{number}"})
    assert (paid.status_code, paid.json()["status"]) == (201, "COMPLETED"), paid.text
    return str(order["id"])


@pytest.mark.parametrize("sweep_first", [False, True], ids=["work", "sweep then work"])
async def test_what_was_paid_in_time_is_paid_however_late_the_workers_come(
    dsn: str, control: Control, tmp_path: Path, *, sweep_first: bool
) -> None:
    """Twenty buyers pay, their webhooks are stored; TTL and grace are long over when the first worker starts.

    Whether the sweeper of `tally work` comes before its saga is chance; `tally sweep`, run before it, is no chance.
    """
    key = tenants.new_key()
    environment = {
        "TALLY_DATABASE_URL": dsn,
        "TALLY_HOME": str(tmp_path),
        "TALLY_SIMULATOR_PORT": str(urlsplit(control.url).port),
        "TALLY_PORT": "0",
        "TALLY_API_KEY": key,
        "TALLY_RESERVATION_TTL_SECONDS": "8",
        "TALLY_RESERVATION_GRACE_SECONDS": "0.5",
    }
    serve_log, work_log = tmp_path / "serve.log", tmp_path / "work.log"
    with process("serve", serve_log, **environment) as serving:
        address = heard(serve_log, r"http://127\.0\.0\.1:\d+(?=/v1)", serving)
        endpoint: dict[str, Any] = {
            "url": f"{address}/webhooks/simulator",
            "secrets": [(tmp_path / "simulator" / "webhook_secret").read_text().strip()],
        }
        await asyncio.to_thread(control.call, "PUT", "endpoints/stripe", endpoint)
        async with httpx2.AsyncClient(
            base_url=address, timeout=60, headers={"authorization": f"Bearer {key}"}
        ) as client:
            stocked = await client.put("/v1/skus/phone", json={"stock": ORDERS})
            assert stocked.status_code == 200, stocked.text
            orders = await asyncio.gather(*(bought(client, number) for number in range(ORDERS)))
            told = (
                "SELECT count(*) = 20 FROM tally.webhook_events WHERE purpose = 'charge' AND state = 'moved'"
                " AND status = 'UNPROCESSED'"
            )
            await until(dsn, told, "the webhooks are stored, and nobody has worked on them")
            # What the test is about: all of them were in time, and only the workers are late.
            in_time = "SELECT max(received_at) < (SELECT min(expires_at) FROM tally.orders) FROM tally.webhook_events"
            assert await fetchval(dsn, in_time), "this machine was too slow for eight seconds"
            overdue = (
                "SELECT bool_and(status = 'PENDING' AND expires_at + interval '1.5 s' < clock_timestamp())"
                " FROM tally.orders"
            )
            await until(dsn, overdue, "TTL and grace are over")
            if sweep_first:
                swept = tally("sweep", "--json", dsn=dsn, **environment)
                assert (swept.returncode, json.loads(swept.stdout)["cancelled"]) == (0, 0), swept
            with process("work", work_log, **environment) as working:
                heard(work_log, STARTED, working)
                ended = "SELECT count(*) = 0 FROM tally.orders WHERE status = 'PENDING'"
                await until(dsn, ended, "every order has ended")
                found = [(await client.get(f"/v1/orders/{order}")).json()["status"] for order in orders]
                assert found == ["PAID"] * ORDERS, json.dumps(found)
                await until(
                    dsn,
                    "SELECT count(*) = 0 FROM tally.webhook_events WHERE status IN ('UNPROCESSED', 'IN_PROCESSING')",
                    "every event is at its end",
                )
    entries = [*control.made("stripe", "payment_intent"), *control.made("stripe", "refund")]
    halves = await compare(dsn, entries)
    assert (halves.charged, halves.paid, halves.refunds) == (ORDERS * PRICE, ORDERS * PRICE, 0)
    assert halves.is_equal, halves
    assert await broken(dsn) == {}
