"""Providers: what an adapter costs beside the wire, how many calls one worker carries, what a webhook's check costs.

The simulator runs as a process of its own. Processor time is this process's alone; the baseline is the same bytes
over the same client without an adapter, so the difference is the adapter's.
"""

import asyncio
import hashlib
import hmac
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tallystick.bench.result import Result, median, ratio
from tallystick.errors import require
from tallystick.keys.derived import digest
from tallystick.providers.http import Http, Reply
from tallystick.providers.steady import steady
from tallystick.providers.stripe.account import StripeAccount
from tallystick.providers.stripe.adapter import Stripe
from tallystick.providers.stripe.webhook import verify
from tallystick.providers.words import Done, Sending, Transfer
from tallystick.secret import Secret
from tallystick.simulator.process import start

_AT_ONCE = 50
_IN_FLIGHT = 200
_SLOW_SECONDS = 1.0
_WEBHOOK_BYTES = 1024
_VERIFICATIONS = 20_000
_SECRET = "whsec_bench"  # noqa: S105 - signs nothing but this bench's own bytes
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def providers(*, seconds: float, runs: int) -> Result:
    """Processor milliseconds per transfer through the Stripe adapter, over HTTP to the simulator."""
    with tempfile.TemporaryDirectory() as folder:
        simulator = await asyncio.to_thread(start, Path(folder) / "books.sqlite")
        try:
            return await _measure(simulator.url, seconds=seconds, runs=runs)
        finally:
            await asyncio.to_thread(simulator.stop)


async def _measure(url: str, *, seconds: float, runs: int) -> Result:
    stripe = Stripe(
        StripeAccount(api_key=Secret("sk_test_bench"), api_base=f"{url}/stripe", requests_per_second=100_000.0)
    )
    plain = Http(f"{url}/stripe")
    through, without, rates, plain_rates = [], [], [], []
    for run in range(runs):
        rate, cost = await _load(seconds, lambda n, run=run: _transfer(stripe, run, n))  # type: ignore[misc]
        rates.append(rate)
        through.append(cost)
        rate, cost = await _load(seconds, lambda n, run=run: _exchange(plain, run, n))  # type: ignore[misc]
        plain_rates.append(rate)
        without.append(cost)
    value, baseline = median(through), median(without)
    in_flight = await _in_flight(stripe, url)
    await stripe.close()
    await plain.close()
    return Result(
        bench="providers",
        value=round(value, 4),
        unit="ms processor per call",
        baseline=round(baseline, 4),
        ratio=ratio(value, baseline),
        baseline_is="the same exchange without an adapter",
        details={
            "overhead_ms": round(max(0.0, value - baseline), 4),
            "transfers_per_second": round(median(rates)),
            "simulator_transfers_per_second": round(median(plain_rates)),
            f"seconds_for_{_IN_FLIGHT}_calls_of_1_s": round(in_flight, 3),
            "webhook_verification_us": round(_verification_us(), 2),
        },
    )


async def _load(seconds: float, call: Callable[[int], Awaitable[None]]) -> tuple[float, float]:
    """Calls per second, and processor milliseconds of this process for each."""
    count = 0
    began, processor = time.perf_counter(), time.process_time()
    ends = began + seconds

    async def worker() -> None:
        nonlocal count
        while time.perf_counter() < ends:
            count += 1
            await call(count)

    await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
    took, used = time.perf_counter() - began, time.process_time() - processor
    return count / took, 1000 * used / count


def _instruction(run: int, number: int, purpose: str) -> Transfer:
    key = digest("bench", purpose=purpose, run=run, number=number)
    return Transfer(key=key, destination="acct_bench", amount_micros=5_000_000, currency="USD")


def _leave() -> Sending:
    return Sending(first_sent_at=_NOW, not_after=_NOW + timedelta(seconds=10), sendable_until=steady() + 10)


async def _transfer(stripe: Stripe, run: int, number: int) -> None:
    answer = await stripe.send(_instruction(run, number, "adapter"), _leave())
    require(isinstance(answer, Done), f"a transfer of the bench was not done: {answer}")


async def _exchange(plain: Http, run: int, number: int) -> None:
    key = _instruction(run, number, "plain").key.hex()
    body = f"amount=500&currency=usd&destination=acct_bench&transfer_group={key}&metadata%5Btally_key%5D={key}"
    headers = [
        ("authorization", "Bearer sk_test_bench"),
        ("idempotency-key", key),
        ("content-type", "application/x-www-form-urlencoded"),
    ]
    request = plain.request("POST", "/v1/transfers", headers, body.encode())
    reply = await plain.send(request, sendable_until=steady() + 10, answer_seconds=20)
    require(isinstance(reply, Reply), f"an exchange of the bench was not answered: {reply}")


async def _in_flight(stripe: Stripe, url: str) -> float:
    """How long 200 calls take that are each answered after a second. One by one: 200 s."""
    control = Http(url)
    plan = json.dumps({"plan": f"stripe.transfer:slow_after({_SLOW_SECONDS:g})@*"}).encode()
    request = control.request("POST", "/_sim/faults", [], plan)
    await control.send(request, sendable_until=steady() + 10, answer_seconds=20)
    await control.close()
    began = time.perf_counter()
    await asyncio.gather(*(_transfer(stripe, -1, number) for number in range(_IN_FLIGHT)))
    return time.perf_counter() - began


def _verification_us() -> float:
    body = json.dumps({"id": "evt_1", "object": "event", "filler": "x" * _WEBHOOK_BYTES}).encode()[:_WEBHOOK_BYTES]
    stamp = int(_NOW.timestamp())
    signature = hmac.new(_SECRET.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    headers = [("content-type", "application/json"), ("stripe-signature", f"t={stamp},v1={signature}")]
    arguments: dict[str, Any] = {"secrets": (Secret(_SECRET),), "now": _NOW, "tolerance": timedelta(seconds=300)}
    require(verify(headers, body, **arguments) is None, "the bench's own signature was refused")
    began = time.process_time()
    for _ in range(_VERIFICATIONS):
        verify(headers, body, **arguments)
    return 1e6 * (time.process_time() - began) / _VERIFICATIONS
