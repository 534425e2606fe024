"""Who migrates and who does not: a process that starts must not change what another version works on."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import tallystick
from tallystick.database import migrate as migrating
from tallystick.database.migrate import migrations
from tallystick.errors import SchemaMismatch
from tests import servers
from tests.cli.commands import TALLY, tally
from tests.database.test_migrate import connected
from tests.database.test_migrate_filled import RELEASED
from tests.ledgers import fetchval

COMMANDS = (
    ("serve",),
    ("work",),
    ("up",),
    ("settle",),
    ("sweep",),
    ("recover",),
    ("reconcile",),
    ("verify",),
    ("explain", "something"),
    ("keys", "list"),
    ("keys", "create", "--for", "somebody"),
    ("keys", "revoke", "tsk_"),
    ("policy", "show"),
    ("events", "list"),
    ("breaks", "list"),
    ("payments", "list"),
    ("payments", "resolve", "or_1", "--outcome", "never_charged", "--evidence", "the dashboard"),
    ("refunds", "list"),
    ("refunds", "decide", "or_1", "--payment", "pi_1", "--decision", "keep"),
    ("approvals",),
    ("outbox", "list"),
    ("outbox", "read", "warehouse"),
    ("outbox", "relayed", "warehouse", "1:1"),
    ("outbox", "forget", "warehouse"),
    ("retain",),
    ("retain", "--dry-run"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_no_command_migrates_a_database_that_it_was_given(
    command: tuple[str, ...], embedded18: servers.Postgres, tmp_path: Path
) -> None:
    dsn = embedded18.empty_database()
    more = {"TALLY_PORT": "0", "TALLY_SIMULATOR_PORT": "0", "TALLY_HOME": str(tmp_path)}
    shown = _ended([*TALLY, *command], dsn, more)
    said = (
        f"tally: This database has no schema of Tallystick yet, this version needs {migrations()[-1].number}: "
        "run `tally migrate`."
    )
    assert (shown.returncode, shown.stderr.splitlines()[-1:]) == (2, [said])
    assert await fetchval(dsn, "SELECT count(*) FROM pg_namespace WHERE nspname = 'tally'") == 0


def _ended(command: list[str], dsn: str, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What a command says that ends by itself; one that goes on is told to stop."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
    environment |= {"TALLY_DATABASE_URL": dsn, **more}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            printed, complained = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            printed, complained = process.communicate(timeout=30)
    return subprocess.CompletedProcess(command, process.returncode, printed, complained)


async def test_a_database_one_migration_behind_is_named_with_both_numbers(embedded18: servers.Postgres) -> None:
    dsn = embedded18.fresh_database()
    newest = migrations()[-1].number
    await fetchval(dsn, "DELETE FROM tally.migration WHERE number = $1", newest)
    shown = tally("keys", "list", dsn=dsn)
    assert shown.returncode == 2
    assert f"at migration {newest - 1}, this version needs {newest}: run `tally migrate`" in shown.stderr
    assert await fetchval(dsn, "SELECT max(number) FROM tally.migration") == newest - 1


async def test_the_library_migrates_no_database_that_it_was_given(embedded18: servers.Postgres) -> None:
    dsn = embedded18.empty_database()
    with pytest.raises(SchemaMismatch, match="run `tally migrate`"):
        async with tallystick.open(database_url=dsn):
            pass
    assert await fetchval(dsn, "SELECT count(*) FROM pg_namespace WHERE nspname = 'tally'") == 0


def test_the_embedded_database_is_migrated_by_up_alone(tmp_path: Path) -> None:
    """It is of one home, and of one version: a newcomer has nothing else to run. Other commands say what to do."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
    environment |= {"TALLY_HOME": str(tmp_path), "TALLY_PORT": "0", "TALLY_SIMULATOR_PORT": "0"}
    command = [*TALLY, "keys", "list"]
    before = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (before.returncode, "`tally migrate`" in before.stderr) == (2, True), before.stderr
    with subprocess.Popen([*TALLY, "up"], env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        while "Ctrl-C" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert re.search(r"API key +\S+", said)
        after = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (after.returncode, "admin" in after.stdout) == (0, True), after.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_mariadb_is_migrated_by_the_same_command(mariadb: servers.Server) -> None:
    dsn = mariadb.empty_database()
    first, second = tally("migrate", dsn=dsn), tally("migrate", dsn=dsn)
    assert (first.returncode, first.stdout.splitlines()[:1]) == (0, ["applied 1 ledger"]), first.stderr
    assert (second.returncode, second.stdout) == (0, "")


async def test_a_clearing_account_of_before_keeps_that_it_has_no_floor_and_verify_names_it(
    embedded18: servers.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it could promise yesterday it can today; that somebody should bound it is said, and is no breach."""
    dsn = embedded18.empty_database()
    wanted = migrations()
    monkeypatch.setattr(migrating, "migrations", lambda: wanted[:RELEASED])
    await migrating.migrate(dsn)
    async with connected(dsn) as owner:
        await owner.execute("INSERT INTO tally.tenant (name) VALUES ('acme')")
        await owner.execute(
            "INSERT INTO tally.account (tenant_id, id, currency, floor_micros)"
            " SELECT tenant_id, id, 'EUR', floor FROM tally.tenant,"
            " (VALUES ('settlement:clearing:EUR', NULL), ('settlement:clearing:USD', 0), ('plain', NULL::bigint))"
            " AS made (id, floor) WHERE name = 'acme'"
        )
    monkeypatch.undo()
    await migrating.migrate(dsn)
    assert await fetchval(dsn, "SELECT floor_micros IS NULL FROM tally.account WHERE id = 'settlement:clearing:EUR'")
    shown = tally("verify", "--json", dsn=dsn)
    found = json.loads(shown.stdout)
    assert (shown.returncode, found["holds"]) == (0, True), shown.stdout
    (notes,) = [one["notes"] for one in found["invariants"] if one["notes"]]
    assert ["settlement:clearing:EUR of tenant acme has no floor" in note for note in notes] == [True]
    said = tally("verify", dsn=dsn).stdout
    assert (said.count("has no floor"), "PUT /v1/accounts/settlement:clearing:EUR" in said) == (1, True)
