"""A harness that cannot fail proves nothing: every planted bug is seen."""

import re
from collections.abc import Iterator

import pytest

from tests import servers, simulators
from tests.planted import planting
from tests.planted.bugs import BUGS

# How a failed test says why, in its summary.
REASON = re.compile(r"^FAILED \S.*? - (?:[a-z_]+\.)*(\w+)", re.MULTILINE)
# A plant that fits the code no longer breaks it in another way than it means to. What is noticed is an assertion, an
# invariant, a refusal of the database.
ROTTEN = {
    "AttributeError",
    "ImportError",
    "IndexError",
    "KeyError",
    "ModuleNotFoundError",
    "NameError",
    "PostgresSyntaxError",
    "SyntaxError",
    "TypeError",
    "UnboundLocalError",
    "UndefinedColumnError",
    "UndefinedFunctionError",
    "UndefinedTableError",
}


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[simulators.Lender]:
    lender = simulators.Lender(tmp_path_factory.mktemp("lent"))
    yield lender
    lender.end()


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_noticed(
    request: pytest.FixtureRequest, embedded18: servers.Postgres, simulator: simulators.Lender, name: str
) -> None:
    """Each named test passes without the bug (it is part of this run) and fails with it."""
    wanted = BUGS[name].noticed_by
    on = BUGS[name].on
    lent = {servers.LENT: str(embedded18.folder), **simulator.lent}
    if on is not None:
        lent |= request.getfixturevalue(on).lent
    run = planting.run(name, *wanted, lent=lent)
    counted = re.search(r"(\d+) failed", run.stdout)
    assert counted is not None, run.stdout + run.stderr
    assert int(counted.group(1)) == len(wanted), run.stdout
    assert " error" not in run.stdout.splitlines()[-1], run.stdout
    reasons = REASON.findall(run.stdout)
    assert len(reasons) == len(wanted), run.stdout
    assert not set(reasons) & ROTTEN - set(BUGS[name].also), f"it stumbles over {reasons} instead of being noticed"
