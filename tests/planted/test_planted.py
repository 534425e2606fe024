"""A harness that cannot fail proves nothing: every planted bug is seen."""

import os
import re
import subprocess
import sys

import pytest

from tests import servers
from tests.planted.bugs import BUGS


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_noticed(request: pytest.FixtureRequest, embedded18: servers.Postgres, name: str) -> None:
    """Each named test passes without the bug (it is part of this run) and fails with it."""
    wanted = BUGS[name].noticed_by
    on = BUGS[name].on
    lent = {} if on is None else request.getfixturevalue(on).lent
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *wanted],
        env={**os.environ, "TALLY_TEST_PLANT": name, servers.LENT: str(embedded18.folder), **lent},
        capture_output=True,
        text=True,
        check=False,
    )
    counted = re.search(r"(\d+) failed", run.stdout)
    assert counted is not None, run.stdout + run.stderr
    assert int(counted.group(1)) == len(wanted), run.stdout
    assert " error" not in run.stdout.splitlines()[-1], run.stdout
