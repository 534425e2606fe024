"""Processes of their own, without starting Python for each.

Starting it and importing pytest, its plugins and Tallystick takes longer than what most of these processes then do. So
a server imports them once (multiprocessing's forkserver: it has no threads and no loop), and forks.

It imports no more of Tallystick and of the tests than conftest.py does before it plants a bug: a name that one module
takes from another is taken before or after the planting as in a run that somebody starts by hand.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from subprocess import CompletedProcess
from typing import Final

CONFTEST: Final = "tests.conftest"


def run(
    work: Callable[..., None], *arguments: str, environment: Mapping[str, str], seconds: float | None = None
) -> CompletedProcess[str]:
    """Have the work done in a fork with that environment, in this process's folder, and wait for it.

    `seconds`: work that should end by itself, and goes on for longer, is a failure.
    """
    context = multiprocessing.get_context("forkserver")
    # Heard by the server when it starts, and no more.
    context.set_forkserver_preload([CONFTEST, *(plugin.module for plugin in entry_points(group="pytest11"))])
    with tempfile.TemporaryDirectory() as folder:
        printed, complained = Path(folder) / "stdout", Path(folder) / "stderr"
        place = (Path.cwd(), dict(environment))
        process = context.Process(target=_fork, args=(work, arguments, place, printed, complained))
        process.start()
        try:
            process.join(seconds)
            if process.is_alive():
                raise AssertionError(f"{arguments} still runs after {seconds} s: {complained.read_text()}")
        finally:
            # Whoever waits may be stopped, by a timeout: then nobody else would end it.
            process.kill()
            process.join()
        return CompletedProcess(arguments, process.exitcode or 0, printed.read_text(), complained.read_text())


def _fork(
    work: Callable[..., None],
    arguments: tuple[str, ...],
    place: tuple[Path, dict[str, str]],
    printed: Path,
    complained: Path,
) -> None:
    for path, stream in ((printed, sys.stdout), (complained, sys.stderr)):
        with path.open("wb") as output:
            os.dup2(output.fileno(), stream.fileno())
    folder, environment = place
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # The server's had no bug to plant: whoever imports it now has its own.
    sys.modules.pop(CONFTEST, None)
    work(*arguments)
