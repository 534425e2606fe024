"""A run of pytest with one bug planted, in a process of its own."""

import os
import sys
from collections.abc import Mapping
from subprocess import CompletedProcess

import pytest

from tests import forks

# The plugins' own asserts are of no interest.
QUIETLY = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")


def run(name: str, *tests: str, lent: Mapping[str, str]) -> CompletedProcess[str]:
    """These tests with that bug, at the servers that are lent. conftest.py plants it."""
    # Wide enough for the reasons: a summary is cut to the width of a terminal.
    environment = {**os.environ, **lent, "TALLY_TEST_PLANT": name, "COLUMNS": "1000"}
    for says_ci in ("CI", "BUILD_NUMBER"):
        environment.pop(says_ci, None)  # There pytest explains a failure at any length, and nobody reads this one.
    return forks.run(_pytest, "-q", "-p", "no:cacheprovider", *QUIETLY, *tests, environment=environment)


def _pytest(*arguments: str) -> None:
    sys.exit(pytest.main(list(arguments)))
