"""The ground of the probes: a PostgreSQL and a simulator of their own, thrown away afterwards.

Never the user's database, and never a real provider: an attack that wins would have moved money.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import tempfile
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, cast

import asyncpg

from tallystick.database.embedded import server as embedded
from tallystick.database.migrate import migrate
from tallystick.database.pool import Database
from tallystick.database.verify import verify
from tallystick.errors import NoSimulator
from tallystick.ledger.account import store as account
from tallystick.ledger.claims import Tenant
from tallystick.settlement.postings import clearing
from tallystick.simulator import process

_CONTROL_SECONDS: Final = 30.0
_CURRENCY: Final = "EUR"
_MOST_OBJECTS: Final = 10_000
# A rule that never strikes: the simulator counts the calls that would have matched.
_COUNTING: Final = "stripe.transfer:refused@999999999"


async def open_clearing(database: Database, tenant: Tenant) -> None:
    """Payouts of a probe need no money to have come in: the attacks are on how they are paid."""
    name = clearing(_CURRENCY)
    await account.put(database, tenant, name, currency=_CURRENCY, floor_micros=None, limits=())


class Books:
    """The simulator's own books: the second opinion on what was paid, to whom, how often."""

    def __init__(self, url: str) -> None:
        """`url` is the simulator's."""
        self.url = url

    async def transfers(self) -> Counter[str]:
        """How many transfers each account received."""
        return Counter(found["parent"] for found in await self._objects())

    async def amounts(self) -> Counter[str]:
        """How many minor units each account received."""
        total: Counter[str] = Counter()
        for found in await self._objects():
            total[found["parent"]] += found["amount"]
        return total

    async def reset(self) -> None:
        """Empty the books: another probe's database is another life, and its keys are the same."""
        await self._call("POST", "reset")

    async def plan(self, text: str) -> None:
        """Put a fault plan in force, instead of any before it."""
        await self._call("DELETE", "faults")
        if text:
            await self._call("POST", "faults", {"plan": text})

    async def count_calls(self) -> None:
        """From now on, count the transfers that were asked for."""
        await self.plan(_COUNTING)

    async def calls(self) -> int:
        """How many were asked for since, whatever came of them."""
        active = (await self._call("GET", "faults"))["active"]
        return sum(int(rule["seen"]) for rule in active if rule["rule"] == _COUNTING)

    async def idle_rules(self) -> list[str]:
        """Rules of the plan in force that never struck: an attack that did not happen."""
        active = (await self._call("GET", "faults"))["active"]
        return [rule["rule"] for rule in active if not rule["struck"]]

    async def advance(self, seconds: float) -> None:
        """Let time pass at the provider."""
        await self._call("POST", "clock", {"advance_seconds": seconds})

    async def _objects(self) -> list[dict[str, Any]]:
        found = await self._call("GET", f"objects?dialect=stripe&kind=transfer&limit={_MOST_OBJECTS}")
        return cast("list[dict[str, Any]]", found)

    async def _call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        return await asyncio.to_thread(self._ask, method, path, body)

    def _ask(self, method: str, path: str, body: object) -> Any:  # noqa: ANN401 - JSON
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/_sim/{path}", data, method=method)  # noqa: S310 - our own child
        with urllib.request.urlopen(request, timeout=_CONTROL_SECONDS) as reply:  # noqa: S310
            return json.load(reply)


class Ground:
    """A running server, and a provider each for Tallystick and the control: both can be attacked at once."""

    def __init__(self, server_dsn: str, books: Books, control_books: Books) -> None:
        """Use `opened`."""
        self._server_dsn = server_dsn
        self.books = books
        self.control_books = control_books

    async def clean(self) -> None:
        """Empty books, no faults: what another probe did is forgotten."""
        for books in (self.books, self.control_books):
            await books.reset()

    async def fresh_database(self, *, options: str = "") -> str:
        """The DSN of a new database with our schema in it. Not dropped: the whole server is thrown away."""
        name = f"probe_{secrets.token_hex(6)}"
        async with connected(self._server_dsn) as connection:
            await connection.execute(f"CREATE DATABASE {name} {options}")
        dsn = urllib.parse.urlunsplit(urllib.parse.urlsplit(self._server_dsn)._replace(path=f"/{name}"))
        await migrate(dsn)
        return dsn


@asynccontextmanager
async def connected(dsn: str, *, superuser: bool = False) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the attacker's: as the engine's own role, or as the one whom no trigger binds."""
    connection = await asyncpg.connect(dsn.replace("//tally@", "//postgres@") if superuser else dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def broken_invariants(dsn: str) -> list[str]:
    """The promises of the constitution that do not hold in this database."""
    return [f"{found.invariant} ({found.broken} of {found.checked})" async for found in verify(dsn) if found.broken]


@contextmanager
def opened() -> Iterator[Ground]:
    """Start them, with empty books, in a temporary home."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tally-probe-", ignore_cleanup_errors=True))
        home = Path(folder)
        # The server may run as another user, who must be able to enter.
        home.chmod(0o755)
        server = stack.enter_context(embedded.start(home / "home"))
        stack.callback(_drop, server.data)
        books = [stack.enter_context(_simulator(home, name)) for name in ("books", "control")]
        yield Ground(server.dsn, *books)


def _drop(data: Path) -> None:
    """Stop the server at once: nobody will miss the checkpoint, which takes longer than a probe."""
    with contextlib.suppress(OSError, ValueError):
        os.kill(int((data / "postmaster.pid").read_text().split("\n", 1)[0]), signal.SIGQUIT)


@contextmanager
def _simulator(home: Path, name: str) -> Iterator[Books]:
    try:
        simulator = process.start(home / f"{name}.sqlite", log=home / f"{name}.log")
    except process.NotStarted as error:
        raise NoSimulator(f"The probes need a simulator: {error}. Nothing was tried.") from error
    try:
        yield Books(simulator.url)
    finally:
        # Not politely: it would wait for the answers that an attack told it never to give.
        simulator.kill()
