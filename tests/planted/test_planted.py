"""A harness that cannot fail proves nothing: every planted bug is seen."""

import os
import re
from pathlib import Path

import pytest

from tests import servers
from tests.planted import planting
from tests.planted.bugs import BUGS


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_noticed(
    request: pytest.FixtureRequest, embedded18: servers.Postgres, tmp_path: Path, name: str
) -> None:
    """Each named test passes without the bug (it is part of this run) and fails with it."""
    wanted = BUGS[name].noticed_by
    on = BUGS[name].on
    lent = {} if on is None else request.getfixturevalue(on).lent
    printed, complained = planting.run(
        ["-q", "-p", "no:cacheprovider", *wanted],
        {**os.environ, "TALLY_TEST_PLANT": name, servers.LENT: str(embedded18.folder), **lent},
        tmp_path,
    )
    counted = re.search(r"(\d+) failed", printed)
    assert counted is not None, printed + complained
    assert int(counted.group(1)) == len(wanted), printed
    assert " error" not in printed.splitlines()[-1], printed
