"""A command that works on what is there makes no database, and says which one it talks to."""

import subprocess
from pathlib import Path

import click
import pytest

from tallystick.cli.tally import tally as commands
from tests import servers
from tests.cli.commands import TALLY, tally

# With the arguments that each needs to get as far as the database. `up`, `migrate`, `serve` and `work` are for a new
# one; `config`, `simulator`, `bench` and `probe` use none, or one of their own.
ON_WHAT_IS_THERE: dict[str, tuple[tuple[str, ...], ...]] = {
    "verify": ((),),
    "explain": (("tx_1",),),
    "events": (("list",), ("retry", "--all"), ("poison",)),
    "breaks": (("list",), ("resolve", "1", "--resolution", "looked")),
    "outbox": (("read", "a-follower"), ("relayed", "a-follower", "1:1"), ("list",), ("forget", "a-follower")),
    "settlements": (("list",),),
    "payments": (("list",), ("resolve", "ord_1", "--outcome", "never_charged", "--evidence", "looked")),
    "refunds": (
        ("list",),
        ("decide", "or_1", "--payment", "pi_1", "--decision", "refund"),
    ),
    "approvals": ((),),
    "policy": (("show",), ("authority",), ("checkout",), ("retention",)),
    "keys": (("list",), ("revoke", "tsk_x"), ("create", "--for", "anna")),
    "reconcile": ((),),
    "recover": ((),),
    "settle": ((),),
    "sweep": ((),),
    "retain": ((), ("--dry-run",)),
    "psql": (("-c", "SELECT 1"),),
    "providers": ((),),
}
MAY_MAKE = {"up", "serve", "work", "migrate", "config", "simulator", "bench", "probe"}


def test_every_command_is_one_or_the_other() -> None:
    assert isinstance(commands, click.Group)
    assert set(commands.commands) == ON_WHAT_IS_THERE.keys() | MAY_MAKE


EVERY_WAY = [(name, *more) for name, ways in ON_WHAT_IS_THERE.items() for more in ways]


@pytest.mark.parametrize("arguments", EVERY_WAY, ids=" ".join)
def test_without_a_database_none_is_made(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Looking into the wrong folder must not answer from a new, empty database."""
    home = tmp_path / "home"
    done = subprocess.run(
        [*TALLY, *arguments],
        env={"PATH": "/usr/bin:/bin", "TALLY_HOME": str(home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not home.exists(), done.stderr
    if arguments == ("providers",):
        return  # It answers from what is so about providers; of a database it needs nothing.
    assert done.returncode == 2, done.stderr
    assert str(home) in done.stderr
    assert "none was made" in done.stderr


@pytest.mark.parametrize("arguments", EVERY_WAY, ids=" ".join)
def test_each_says_which_database_it_talks_to(arguments: tuple[str, ...]) -> None:
    """Before it looks: also of one that is out of reach."""
    shown = tally(*arguments, dsn="postgresql://a:hunter2@127.0.0.1:1/x")
    assert "database: postgresql://a@127.0.0.1:1/x\n" in shown.stderr
    assert "hunter2" not in shown.stdout + shown.stderr


def test_a_password_in_the_query_is_not_said() -> None:
    shown = tally("verify", dsn="postgresql://a@127.0.0.1:1/x?password=hunter2")
    assert "hunter2" not in shown.stdout + shown.stderr
    assert "database: postgresql://a@127.0.0.1:1/x\n" in shown.stderr


def test_psql_opens_the_database_in_use(embedded18: servers.Server) -> None:
    shown = tally("psql", "-At", "-c", "SELECT name FROM tally.tenant", dsn=embedded18.fresh_database())
    assert shown.returncode == 0, shown.stderr
    assert "default" in shown.stdout.split()
    wrong = tally("psql", "-v", "ON_ERROR_STOP=1", "-c", "SELECT nonsense", dsn=embedded18.fresh_database())
    assert wrong.returncode == 1, "psql's own exit status"
