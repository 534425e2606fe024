"""A run of pytest with one bug planted, in a process of its own.

Most of what such a run took was starting Python and importing pytest, its plugins and Tallystick. So they are imported
once, by a server that forks for every bug (multiprocessing's forkserver). It imports no more of Tallystick and of the
tests than conftest.py does before it plants: a name that one module takes from another is taken before or after the
planting as in a run that somebody starts by hand.
"""

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import pytest

CONFTEST = "tests.conftest"
# The plugins' own asserts are of no interest.
QUIETLY = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")


def run(arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> tuple[str, str]:
    """Run pytest and wait for it. What it printed, and what it complained of; the folder keeps both."""
    printed, complained = folder / "stdout", folder / "stderr"
    context = multiprocessing.get_context("forkserver")
    # Heard by the server when it starts, and no more.
    context.set_forkserver_preload([CONFTEST, *(plugin.module for plugin in entry_points(group="pytest11"))])
    process = context.Process(target=_run, args=([*QUIETLY, *arguments], dict(environment), printed, complained))
    process.start()
    try:
        process.join()
    finally:
        # Whoever waits may be stopped, by a timeout: then nobody would end it.
        process.kill()
        process.join()
    return printed.read_text(), complained.read_text()


def _run(arguments: list[str], environment: dict[str, str], printed: Path, complained: Path) -> None:
    for path, stream in ((printed, sys.stdout), (complained, sys.stderr)):
        with path.open("wb") as output:
            os.dup2(output.fileno(), stream.fileno())
    os.environ.clear()
    os.environ.update(environment)
    # Pytest imports it again, and it plants the bug.
    sys.modules.pop(CONFTEST, None)
    sys.exit(pytest.main(arguments))
