"""The simulator as a whole: one HTTP server, the books, and what happens by itself as the clock goes on.

/stripe /adyen /square /wise   the dialects; also without the prefix, as http://stripe.localhost:PORT or on a port of
                               their own: clients that know no prefix
/_sim/...                      control
everything else                the page, if there is one
"""

import asyncio
import contextlib
import ipaddress
import logging
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from tallystick.simulator.books import Books
from tallystick.simulator.clock import Clock
from tallystick.simulator.control import Control
from tallystick.simulator.dialect import Dialect, Endpoint, Reply, Request
from tallystick.simulator.endpoints import checked
from tallystick.simulator.faults import Faults
from tallystick.simulator.guard import dialect_host, foreign_host, refusal
from tallystick.simulator.handling import ROLL_FORWARD, Handling
from tallystick.simulator.keys import Keys
from tallystick.simulator.webhooks import Webhooks
from tallystick.simulator.wire import Connection, Exchange

Page = Callable[[Request, Control], Reply | None]

# Actions taken from the agenda in one go.
_AGENDA_BATCH: Final = 500
# Seconds after which the agenda is looked at in any case: simulated time is real time plus an offset.
_LONGEST_WAIT: Final = 5.0
# Stops of the clock on one way; what is due after so many happens at its end.
_MOST_STOPS: Final = 20_000
# Seconds, when something that happens by itself failed: it will fail again at once.
_AFTER_TROUBLE: Final = 0.5
_TEXT: Final = (("content-type", "text/plain"),)
_LOG: Final = logging.getLogger(__name__)


class NotLoopback(ValueError):
    """The control API has no password; it must not be reachable from elsewhere by accident."""


class Simulator:
    """A provider that misbehaves on demand. `page` answers what no dialect does; None from it is a 404."""

    def __init__(
        self, path: Path, dialects: Sequence[Dialect], *, seed: int = 0, plan: str = "", page: Page | None = None
    ) -> None:
        self._dialects: Mapping[str, Dialect] = {dialect.name: dialect for dialect in dialects}
        self.faults = Faults(seed)
        self.faults.add(plan)
        self.books = Books(path, [switch for dialect in dialects for switch in dialect.switches])
        self.clock = Clock(self.books)
        self._keys = Keys(self.books)
        self._webhooks = Webhooks(self.books, self.clock, self.faults, self._dialects)
        self._handling = Handling(books=self.books, clock=self.clock, faults=self.faults, keys=self._keys)
        self.control = Control(
            books=self.books,
            clock=self.clock,
            faults=self.faults,
            keys=self._keys,
            webhooks=self._webhooks,
            dialects=self._dialects,
            settle=self._settle,
            forget_delayed=self._handling.forget_delayed,
        )
        self._page = page
        self._connections: set[Connection] = set()
        self._answering: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._settling = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._more: list[asyncio.Server] = []
        self._tending: asyncio.Task[None] | None = None
        self._host = ""
        self.url = ""

    def set_endpoints(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Where webhooks go from now on. Raises KeyError for an unknown dialect, EndpointFault."""
        for dialect, endpoint in endpoints.items():
            self.books.set_endpoint(self._dialects[dialect].name, checked(dialect, endpoint))

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, anywhere: bool = False) -> None:
        """Listen. Raises NotLoopback for another address, unless it may be `anywhere`."""
        if not anywhere and not ipaddress.ip_address(host).is_loopback:
            raise NotLoopback(f"{host} is not loopback, and the control API has no password")
        self._host = host
        self.books.announce = self._webhooks.announce
        self.books.before_commit = self._webhooks.record_ended
        self.books.watch = self._webhooks.watch
        self.books.wake = self._awake.set
        self.books.commit()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self._handle, self._connections, self.clock.http_date), host, port, backlog=1024
        )
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{f'[{bound_host}]' if ':' in bound_host else bound_host}:{bound_port}"
        self._tending = asyncio.create_task(self._tend(), name="simulator")

    async def stop(self) -> None:
        """Stop listening, break off what is under way, close the books."""
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        for server in (self._server, *self._more):
            if server is not None:
                server.close()
        for connection in list(self._connections):
            connection.close()
        self._webhooks.stop()
        self.books.close()

    async def listen(self, name: str, port: int) -> str:
        """Have a dialect on a port of its own as well, without its prefix; its address. Raises KeyError."""
        dialect = self._dialects[name]

        def handle(request: Request, exchange: Exchange) -> None:
            self._handle_dialect(dialect, request, exchange)

        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(handle, self._connections, self.clock.http_date), self._host, port, backlog=1024
        )
        self._more.append(server)
        host, bound = server.sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{bound}"

    def _handle_dialect(self, dialect: Dialect, request: Request, exchange: Exchange) -> None:
        unwelcome = foreign_host(request, self._host)
        if unwelcome is not None:
            exchange.answer(Reply(403, msgspec.json.encode({"error": unwelcome})))
            return
        self._handling.handle(dialect, request, exchange)

    def _handle(self, request: Request, exchange: Exchange) -> None:
        _, name, *_ = (*request.path.split("/", 2), "")
        named = self._dialects.get(dialect_host(request))
        if named is not None:
            self._handle_dialect(named, request, exchange)
            return
        dialect = self._dialects.get(name)
        if dialect is not None:
            below = Request(
                request.method, request.path[len(name) + 1 :] or "/", request.query, request.headers, request.body
            )
            self._handle_dialect(dialect, below, exchange)
            return
        if name == "_sim":
            unwelcome = refusal(request, self._host, is_form=False)
            if unwelcome is not None:
                exchange.answer(Reply(403, msgspec.json.encode({"error": unwelcome})))
                return
            self._answer_later(self._answer_control(request, exchange))
            return
        try:
            found = None if self._page is None else self._page(request, self.control)
        except Exception:  # noqa: BLE001  a bug in the page must not end the connection without a word
            _LOG.exception("the page failed at %s %s", request.method, request.path)
            found = Reply(500, b"The page failed; the simulator's log tells why.", _TEXT)
        reply = found or Reply(404, b'{"error":"not found"}')
        if request.method == "POST" and self.clock.is_behind:
            # Whoever follows the redirect sees the time he asked for.
            self._answer_later(self._answer_settled(reply, exchange))
            return
        # A form of the page may have changed the books.
        self.books.after_commit(lambda error: exchange.answer(reply if error is None else Reply(500)))

    async def _answer_control(self, request: Request, exchange: Exchange) -> None:
        exchange.answer(await self.control.answer(request))

    async def _answer_settled(self, reply: Reply, exchange: Exchange) -> None:
        try:
            await self._settle()
        except Exception:  # noqa: BLE001  whoever asks must hear that something is wrong
            _LOG.exception("the clock could not go on")
            reply = Reply(500, b"The clock could not go on; the simulator's log tells why.", _TEXT)
        exchange.answer(reply)

    def _answer_later(self, answering: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(answering)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    # -- what happens by itself

    async def _tend(self) -> None:
        while True:
            try:
                await self._tend_once()
            except Exception:  # noqa: BLE001  without this task webhooks and later actions would end in silence
                _LOG.exception("what happens by itself failed; it is tried again")
                await asyncio.sleep(_AFTER_TROUBLE)

    async def _tend_once(self) -> None:
        self._awake.clear()
        self._run_agenda()
        await self.books.committed()
        rest = self._webhooks.rest()
        wait = min(self._until_next(), _LONGEST_WAIT if rest is None else rest)
        # Not wait_for: when the event comes at the moment we are cancelled, Python 3.11's forgets the cancelling.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._awake.wait()

    def _until_next(self) -> float:
        next_at = self._next_due_at()
        self.books.after_commit(_report_failure)
        if next_at is None:
            return _LONGEST_WAIT
        return min(max((next_at - self.clock.now()).total_seconds(), 0.001), _LONGEST_WAIT)

    def _next_due_at(self) -> datetime | None:
        return min(
            (at for at in (self.books.next_due_at(), self._webhooks.next_due_at()) if at is not None), default=None
        )

    def _run_agenda(self) -> int:
        due = self.books.due(self.clock.now(), _AGENDA_BATCH)
        for item in due:
            self.books.done(item)
            try:
                dialect = self._dialects[item.dialect]
                with self.books.alone():
                    if item.action == ROLL_FORWARD:
                        self._handling.roll_forward(dialect, item.object_id)
                    else:
                        dialect.act(self.books, self.clock.now(), item.action, item.object_id)
            except Exception:  # noqa: BLE001  a bug in a dialect must not end the server
                # An object may have been cancelled, or the books reset, since this was put on the agenda.
                _LOG.exception("%s could not %s %s", item.dialect, item.action, item.object_id)
        return len(due)

    async def _settle(self) -> None:
        """Take the clock where it is to go, and run everything that is due on the way, each at its time."""
        # One at a time: two that move the clock would each run what the other has just made due.
        async with self._settling:
            await self._run_due()
            for stop in range(_MOST_STOPS):
                if not self.clock.is_behind:
                    return
                self.clock.step(self._next_due_at() if stop < _MOST_STOPS - 1 else None)
                await self._run_due()

    async def _run_due(self) -> None:
        while self._run_agenda():
            pass
        await self._webhooks.drain()


def _report_failure(error: sqlite3.Error | None) -> None:
    if error is not None:
        _LOG.error("the books could not be committed: %s", error)
