"""The simulator in a process of its own: listen, say where in one line of JSON, stop on SIGTERM.

Used by the command line, and by `python -m tallystick.simulator`.
"""

import asyncio
import gc
import json
import signal
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import uvloop

from tallystick.simulator.dialect import Endpoint
from tallystick.simulator.dialects import every_dialect
from tallystick.simulator.endpoints import EndpointFault, checked
from tallystick.simulator.page.page import SimulatorPage
from tallystick.simulator.server import Simulator

# Most objects live for one call; the default of 700 looks at all of them again and again.
_COLLECT_EVERY: Final = 50_000
_LAST_PORT: Final = 65_535


def run(
    books: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    faults: str = "",
    seed: int = 0,
    endpoints: Mapping[str, Endpoint] | None = None,
    anywhere: bool = False,
    until_stdin_closes: bool = False,
    listen: Mapping[str, int] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. `faults` is a plan, or the path of a file with one.

    `listen`: dialects that have a port of their own as well, for clients that know no prefix.
    """
    gc.set_threshold(_COLLECT_EVERY)
    uvloop.run(
        _serve(
            books,
            host=host,
            port=port,
            plan=plan_text(faults),
            seed=seed,
            endpoints=endpoints or {},
            anywhere=anywhere,
            until_stdin_closes=until_stdin_closes,
            listen=listen or {},
        )
    )


def plan_text(faults: str) -> str:
    """The plan itself, or what the file of that name holds. A rule has a colon and a dot, and no file is meant."""
    if faults and ":" not in faults and Path(faults).is_file():
        return Path(faults).read_text(encoding="utf-8")
    return faults


def endpoint(text: str) -> tuple[str, Endpoint]:
    """`DIALECT=URL,SECRET[,SECRET]`; Wise's secret is made where none is given. Raises ValueError."""
    dialect, _, rest = text.partition("=")
    url, *secrets = rest.split(",")
    known = [each.name for each in every_dialect()]
    if dialect not in known:
        raise ValueError(f"{dialect!r} is no dialect. An endpoint is DIALECT=URL,SECRET[,SECRET] of {', '.join(known)}")
    try:
        return dialect, checked(dialect, Endpoint(url, tuple(secrets)))
    except EndpointFault as fault:
        raise ValueError(f"{dialect}: an endpoint is DIALECT=URL,SECRET[,SECRET]. {fault}") from fault


def own_port(text: str) -> tuple[str, int]:
    """`DIALECT=PORT`; 0 is any free one. Raises ValueError."""
    dialect, _, port = text.partition("=")
    known = [each.name for each in every_dialect()]
    if dialect not in known or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ValueError(f"{text!r}: a port of its own is DIALECT=PORT of {', '.join(known)}")
    return dialect, int(port)


class BooksInUse(Exception):
    """Another simulator has these books."""

    def __init__(self, books: Path, url: str) -> None:
        """`url` is where it listens, as far as it is known."""
        where = f" at {url}" if url else ""
        super().__init__(
            f"another simulator has the books {books}{where}: use that one (its page and POST {url}/_sim/faults take a "
            "plan), stop it first, or give this one books and a port of its own (--books FILE --port 0)"
        )


def address_of(books: Path) -> str:
    """Where the simulator that has these books listens; nothing where it does not say."""
    try:
        return _address(books).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _address(books: Path) -> Path:
    return books.with_name(f"{books.name}.address")


class _Leash(asyncio.Protocol):
    """Notices the end of whoever holds the other end of our standard input."""

    def __init__(self, stopped: asyncio.Event) -> None:
        self._stopped = stopped

    def eof_received(self) -> None:
        self._stopped.set()


async def _serve(
    books: Path,
    *,
    host: str,
    port: int,
    plan: str,
    seed: int,
    endpoints: Mapping[str, Endpoint],
    anywhere: bool,
    until_stdin_closes: bool,
    listen: Mapping[str, int],
) -> None:
    try:
        simulator = Simulator(books, every_dialect(), seed=seed, plan=plan, page=SimulatorPage(every_dialect(), host))
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        raise BooksInUse(books, address_of(books)) from error
    simulator.set_endpoints(endpoints)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if until_stdin_closes:
        await loop.connect_read_pipe(lambda: _Leash(stopped), sys.stdin)
    await simulator.start(host, port, anywhere=anywhere)
    # For whoever comes with the same books: the lock on them tells that we are here, this where.
    _address(books).write_text(simulator.url, encoding="ascii")
    more = {dialect: await simulator.listen(dialect, its_port) for dialect, its_port in listen.items()}
    sys.stdout.write(json.dumps({"url": simulator.url, **more}) + "\n")
    sys.stdout.flush()
    await stopped.wait()
    await simulator.stop()
    _address(books).unlink(missing_ok=True)
