"""Settlements that commands are run on: a database, a simulator, and what either says afterwards."""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any, Self
from urllib.parse import urlsplit

import asyncpg

from tallystick.audit.author import sign
from tallystick.settlement.store import SettlementView
from tests.cli.commands import TALLY, tally
from tests.ledgers import fetchval
from tests.providers.worlds import WORLDS, Control
from tests.settlements import pass_time, rows, shop

PATIENCE_SECONDS = 60


class Payouts:
    """One database and one simulator, seen from outside: through commands."""

    def __init__(self, dsn: str, control: Control) -> None:
        self.dsn = dsn
        self.control = control
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """No command outlives its test, however that ends."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    @property
    def settings(self) -> dict[str, str]:
        return {"TALLY_SIMULATOR_PORT": str(urlsplit(self.control.url).port)}

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        return tally(*arguments, dsn=self.dsn, **{**self.settings, **more})

    def start(self, *arguments: str, program: Sequence[str] = TALLY, **more: str) -> "subprocess.Popen[str]":
        """A command that goes on beside the test."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
        process = subprocess.Popen(
            [*program, *arguments],
            env={**plain, "TALLY_DATABASE_URL": self.dsn, **self.settings, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    async def create(self, attribution: str = "a-1", **fields: Any) -> SettlementView:
        sign("tests/library")
        async with shop(self.dsn, self.control) as made:
            return await made.create(attribution, **fields)

    async def create_many(self, count: int, *, world: str | None = None, **fields: Any) -> None:
        """For the simulator as a provider of its own, or for one of the providers it imitates."""
        async with AsyncExitStack() as stack:
            providers = None
            if world is not None:
                one = next(found for found in WORLDS if found.name == world)
                provider = one.make(self.control.url, "", "")
                stack.push_async_callback(provider.close)
                providers, fields = {world: provider}, {"provider": world, "destination": one.destination, **fields}
            made = await stack.enter_async_context(shop(self.dsn, self.control, providers=providers))
            await made.create_many(count, **fields)

    async def pass_time(self, span: timedelta) -> None:
        """For us and for the provider."""
        await pass_time(self.dsn, span)
        self.control.advance(seconds=span.total_seconds())

    async def statuses(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in await rows(self.dsn):
            found[row.status] = found.get(row.status, 0) + 1
        return found

    async def count(self, condition: str) -> int:
        """Rows of settlements that are so."""
        return int(await fetchval(self.dsn, f"SELECT count(*) FROM tally.settlement_state WHERE {condition}"))


async def until(holds: Callable[[], Any], what: str) -> None:
    """Look again until it holds; a server that is down meanwhile is no answer."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < ends:
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            found = holds()
            if await found if asyncio.iscoroutine(found) else found:
                return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{what}: not within {PATIENCE_SECONDS} s")


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Wait for it; its status and what it said."""
    output, talk = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, output, talk
