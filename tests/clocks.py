"""A PostgreSQL whose wall clock a test can move while it runs.

libfaketime is loaded into the server's processes. Their steady clock stays the machine's: timeouts and waits take as
long as they take.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from tallystick.database.embedded.place import choose
from tests import servers
from tests.providers.worlds import Control
from tests.servers import cannot_be_tested

_LIBRARY: Final = "*/faketime/libfaketime.so.1"


def faketime() -> Path | servers.Missing:
    """The library that moves a program's clock."""
    found = sorted(Path("/usr/lib").glob(_LIBRARY))
    return found[0] if found else servers.Missing("faketime", "not in /usr/lib; install Debian's faketime")


class Clock:
    """The wall clock of servers that are started with its `environment`: it goes where a test says."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            # Read each time: the file is how it is moved.
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.set(timedelta())

    def set(self, ahead: timedelta) -> None:
        """So far from the machine's own, from now on, for every process of those servers."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{ahead.total_seconds():+.0f}")
        new.chmod(0o644)
        # In one step: nobody reads half of it.
        new.rename(self._file)


class Movable(servers.Postgres):
    """A server of a test's own, whose wall clock goes where the test says; its steady clock is the machine's."""

    settings = "max_connections = 300\nshared_buffers = 32MB\n"

    def __init__(self, library: Path, purpose: str) -> None:
        folder = servers._folder(purpose, is_shared=True)
        (folder / "embedded").mkdir()
        place = choose(folder)
        super().__init__("PostgreSQL 18 (embedded)", folder, place.programs, place.account)
        self._clock = Clock(library, folder / "clock")
        self.environment = self._clock.environment

    def set_clock(self, ahead: timedelta) -> None:
        """So far from the machine's own, from now on, for every process of the server."""
        self._clock.set(ahead)

    def replace_data(self, folder: Path) -> None:
        """The server is down, and comes up with these files in place of its own."""
        shutil.rmtree(self._data)
        folder.rename(self._data)


class Time:
    """What the provider's clock says, and how wrong the database's is."""

    def __init__(self, server: Movable, control: Control) -> None:
        self._server = server
        self._control = control
        self._passed = timedelta()
        self._wrong = timedelta()

    def passes(self, span: timedelta) -> None:
        """In both."""
        self._passed += span
        self._control.advance(seconds=span.total_seconds())
        self._server.set_clock(self._passed + self._wrong)

    def is_wrong_by(self, span: timedelta) -> None:
        """The database's clock, from now on."""
        self._wrong = span
        self._server.set_clock(self._passed + span)


def required() -> Path:
    """The library. Skips where there is none, or fails where everything must be tested."""
    library = faketime()
    if isinstance(library, servers.Missing):
        cannot_be_tested(f"{library.name}: {library.reason}")
    return library


@contextmanager
def movable(purpose: str) -> Iterator[Movable]:
    """One that runs."""
    server = Movable(required(), purpose)
    try:
        server.start()
        yield server
    finally:
        server.remove()
