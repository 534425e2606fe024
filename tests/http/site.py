"""A real server on a real database, in a thread of its own; a raw socket for what no client library sends."""

import asyncio
import contextlib
import dataclasses
import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import uvloop

from tallystick import app
from tallystick.access import store as tenant
from tallystick.audit.author import by_key
from tallystick.http import api, server
from tallystick.ledger.flow import Engine
from tallystick.ledger.kinds import Kind, Kinds, Operation, Reading
from tallystick.ledger.outcome import Rejected
from tallystick.ledger.rules import Leg
from tallystick.ledger.store import PostgresLedger
from tallystick.settings import LIMITS, Limits, Settings
from tests.deliveries import TRUSTED
from tests.settlements import open_clearing

PATIENCE_SECONDS = 60
TENANTS = ("default", "other", "example")
# The currencies in which their payouts need no money to have come in.
CLEARED = ("EUR", "USD", "GBP", "JPY", "CHF", "NOK", "DKK", "PLN", "HUF", "RON")


class Broken(Operation, tag_field="kind", tag="broken", frozen=True):
    """A user's kind with a bug."""


class Picky(Operation, tag_field="kind", tag="picky", frozen=True):
    """A user's kind with a refusal of its own."""


def _break(_operation: Any, _reading: Reading) -> Iterable[Leg]:
    raise RuntimeError("a secret of the handler")


BROKEN = Kind(Broken, accounts=lambda _operation, _transactions: (), decide=_break)
PICKY = Kind(
    Picky,
    accounts=lambda _operation, _transactions: (),
    decide=lambda _operation, _reading: Rejected("too_picky", "No.", "Ask otherwise."),
)


@dataclass(frozen=True, slots=True)
class Site:
    """Where the server listens, and its keys by tenant and role."""

    port: int
    keys: dict[tuple[str, str], str]

    def client(self, tenant_name: str = "default", role: str = "admin") -> httpx2.Client:
        return httpx2.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"authorization": f"Bearer {self.keys[tenant_name, role]}"},
            timeout=PATIENCE_SECONDS,
        )

    def author(self, role: str = "admin", tenant_name: str = "default") -> str:
        """How the journal names who uses this key: each belongs to a person of its own."""
        return by_key(f"{role} person", self.keys[tenant_name, role][:12])

    def raw(self, head: str | bytes, body: bytes = b"") -> tuple[int, bytes]:
        """Send these very bytes; the status and all that came back until the answer was whole."""
        head = head.encode() if isinstance(head, str) else head
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS) as connection:
            connection.sendall(head.replace(b"\n", b"\r\n") + b"\r\n\r\n" + body)
            received = b""
            while b"\r\n\r\n" not in received or b"}" not in received:
                part = connection.recv(65536)
                if not part:
                    break
                received += part
        return int(received.split(b" ", 2)[1]), received


@contextlib.contextmanager
def running(
    dsn: str,
    *,
    limits: Limits = LIMITS,
    kinds: tuple[Kind, ...] = (BROKEN, PICKY),
    simulator_url: str | None = None,
) -> Iterator[Site]:
    """The site, until the block ends. `limits` are the engine's."""
    listening: list[Site] = []
    ready = threading.Event()
    stopping: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    failure: list[BaseException] = []

    async def live() -> None:
        stop = asyncio.Event()
        stopping.append((asyncio.get_running_loop(), stop))
        async with app.running(
            Settings(database_url=dsn, simulator_webhook_secret=TRUSTED), simulator_url=simulator_url
        ) as service:
            keys = {}
            for name in TENANTS:
                found = await tenant.ensure_tenant(service.database, name)
                await open_clearing(service.database, found, *CLEARED)
                for role in tenant.ROLES:
                    keys[name, role] = tenant.new_key()
                    await tenant.add_key(service.database, found, role, keys[name, role], owner=f"{role} person")
            async with Engine(PostgresLedger(service.database), Kinds(kinds), limits=limits) as engine:
                own = dataclasses.replace(service, engine=engine)

                def on_listening(_host: str, port: int) -> None:
                    listening.append(Site(port, keys))
                    ready.set()

                serving = asyncio.create_task(server.serve(api.build(own), "127.0.0.1", 0, on_listening=on_listening))
                await stop.wait()
                serving.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await serving

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(live())
        except BaseException as error:  # noqa: BLE001 - told to the test that waits
            failure.append(error)
            ready.set()

    thread = threading.Thread(target=run, name="site")
    thread.start()
    try:
        if not ready.wait(PATIENCE_SECONDS) or failure:
            raise RuntimeError("the site did not start") from (failure[0] if failure else None)
        yield listening[0]
    finally:
        loop, stop = stopping[0]
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_SECONDS)
