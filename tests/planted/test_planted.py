"""A harness that cannot fail proves nothing: every planted bug is seen."""

import re

import pytest

from tests import servers
from tests.planted import planting
from tests.planted.bugs import BUGS


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_noticed(request: pytest.FixtureRequest, embedded18: servers.Postgres, name: str) -> None:
    """Each named test passes without the bug (it is part of this run) and fails with it."""
    wanted = BUGS[name].noticed_by
    on = BUGS[name].on
    lent = {servers.LENT: str(embedded18.folder)}
    if on is not None:
        lent |= request.getfixturevalue(on).lent
    run = planting.run(name, *wanted, lent=lent)
    counted = re.search(r"(\d+) failed", run.stdout)
    assert counted is not None, run.stdout + run.stderr
    assert int(counted.group(1)) == len(wanted), run.stdout
    assert " error" not in run.stdout.splitlines()[-1], run.stdout
