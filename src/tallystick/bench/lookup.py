"""Look-ups: what it takes to tell whether a charge was made, among very many others of the same minutes.

The simulator runs as a process of its own and holds the others. The baseline is the same question to books that hold a
single page. The adapter may ask as fast as it can; how long it takes at the provider's own rate is computed from the
number of requests.
"""

import asyncio
import resource
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tallystick.bench.result import Result, median, ratio
from tallystick.errors import require
from tallystick.keys.derived import digest
from tallystick.providers.steady import steady
from tallystick.providers.stripe.account import StripeAccount
from tallystick.providers.stripe.adapter import Stripe
from tallystick.providers.stripe.facts import FACTS
from tallystick.providers.words import Absent, Charge, Done, Found, Looked, Sending, Undecided
from tallystick.secret import Secret
from tallystick.simulator.process import start

CHARGES = 10_000
_AT_ONCE = 64
_FEW = 50
# After an outage so many are asked about at once: a collector's chunk.
_QUESTIONS = 100
_MOST_QUESTIONS = 100


async def lookup(*, charges: int, runs: int) -> Result:
    """Seconds until a charge is known to be there, or absent, among `charges` others."""
    few, many = await _books(_FEW, runs), await _books(charges, runs)
    return Result(
        bench="lookup",
        value=many["absent_seconds"],
        unit=f"s among {charges:,}",
        baseline=few["absent_seconds"],
        ratio=ratio(many["absent_seconds"], few["absent_seconds"]),
        baseline_is=f"the same question among {_FEW}",
        details={name: round(value, 3) for name, value in many.items()},
    )


async def _books(charges: int, runs: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        simulator = await asyncio.to_thread(start, Path(folder) / "books.sqlite")
        try:
            began = datetime.now(UTC)
            await _fill(_stripe(simulator.url), charges)
            return await _measure(simulator.url, charges, began, runs)
        finally:
            await asyncio.to_thread(simulator.stop)


async def _measure(url: str, charges: int, began: datetime, runs: int) -> dict[str, float]:
    before = _peak_bytes()
    absent, found, requests = [], [], 0.0
    for _ in range(runs):
        # A new one each time: what it has seen is not to help it.
        seconds, requests = await _timed(url, began, charges + 1, Absent)
        absent.append(seconds)
        seconds, _ = await _timed(url, began, 0, Found)
        found.append(seconds)
    stripe = _stripe(url)
    at_once = time.perf_counter()
    await asyncio.gather(*(_asked(stripe, number, began) for number in range(min(_QUESTIONS, charges))))
    at_once = time.perf_counter() - at_once
    asked = stripe.asked
    await stripe.close()
    return {
        "absent_seconds": median(absent),
        "found_seconds": median(found),
        "requests": requests,
        "seconds_at_the_providers_rate": requests / FACTS.requests_per_second,
        "questions_at_once": float(min(_QUESTIONS, charges)),
        "seconds_of_all_of_them": at_once,
        "requests_of_all_of_them": float(asked),
        "memory_mb": (_peak_bytes() - before) / 2**20,
    }


async def _timed(url: str, began: datetime, number: int, wanted: type[Looked]) -> tuple[float, float]:
    stripe = _stripe(url)
    start_at = time.perf_counter()
    looked = await _asked(stripe, number, began)
    seconds = time.perf_counter() - start_at
    require(isinstance(looked, wanted), f"the look-up gave {looked!r}")
    asked = stripe.asked
    await stripe.close()
    return seconds, float(asked)


async def _asked(stripe: "_Counted", number: int, began: datetime) -> Looked:
    """Asked again as often as it takes, as a collector does."""
    for _ in range(_MOST_QUESTIONS):
        now = datetime.now(UTC)
        looked = await stripe.look_up(_charge(number), first_sent_at=began, now=now)
        if not isinstance(looked, Undecided) or looked.code != "lookup_unfinished":
            break
    return looked


class _Counted(Stripe):
    """Counts what it asks."""

    @property
    def asked(self) -> int:
        return self._line.asked


def _stripe(url: str) -> _Counted:
    account = StripeAccount(api_key=Secret("sk_test_bench"), api_base=f"{url}/stripe", requests_per_second=100_000.0)
    return _Counted(account)


async def _fill(stripe: Stripe, charges: int) -> None:
    numbers = iter(range(charges))

    async def lane() -> None:
        for number in numbers:
            now = datetime.now(UTC)
            permit = Sending(first_sent_at=now, not_after=now + timedelta(seconds=30), sendable_until=steady() + 30.0)
            answer = await stripe.send(_charge(number), permit)
            require(isinstance(answer, Done), f"the charge gave {answer!r}")

    await asyncio.gather(*(lane() for _ in range(_AT_ONCE)))
    await stripe.close()


def _charge(number: int) -> Charge:
    return Charge(key=digest("bench", lookup=number), amount_micros=1_000_000, currency="EUR")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
