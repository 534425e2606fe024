"""The commands as a newcomer runs them: real processes, real output, real exit codes."""

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tallystick.database.verify import _PROMISES
from tallystick.settings import LIMITS
from tests import servers
from tests.cli.commands import TALLY, tally


@pytest.fixture(scope="module")
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


def test_help_lists_the_commands_and_the_exit_codes(dsn: str) -> None:
    shown = tally("--help", dsn=dsn)
    assert shown.returncode == 0
    for command in ("up", "serve", "migrate", "config", "keys", "verify", "explain", "providers", "simulator", "bench"):
        assert re.search(rf"^  {command}\b", shown.stdout, re.MULTILINE), command
    assert "3 a dependency is out of reach" in shown.stdout


def test_config_masks_secrets_and_names_origins(dsn: str) -> None:
    address = "postgresql://user:hunter2@127.0.0.1/x"
    for arguments in ((), ("--json",)):
        shown = tally("config", *arguments, dsn=address, TALLY_API_KEY="tsk_secret-that-is-long-enough")
        assert shown.returncode == 0
        assert "hunter2" not in shown.stdout + shown.stderr
        assert "tsk_secret-that-is-long-enough" not in shown.stdout + shown.stderr
    settings = {row["name"]: row for row in json.loads(shown.stdout)["settings"]}
    assert settings["TALLY_API_KEY"]["origin"] == "environment"
    assert settings["TALLY_PORT"] == {
        "name": "TALLY_PORT",
        "value": "8080",
        "origin": "default",
        "meaning": "where the API listens",
    }


def test_an_unknown_setting_is_exit_2(dsn: str) -> None:
    shown = tally("config", dsn=dsn, TALLY_PROVIDR="x")
    assert shown.returncode == 2
    assert "TALLY_PROVIDR" in shown.stderr


def test_wrong_usage_is_exit_2(dsn: str) -> None:
    assert tally("fly", dsn=dsn).returncode == 2
    assert tally("keys", "create", "--role", "king", "--for", "anna", dsn=dsn).returncode == 2


def test_an_unreachable_database_is_exit_3_without_the_password() -> None:
    shown = tally("verify", dsn="postgresql://user:hunter2@127.0.0.1:1/x")
    assert shown.returncode == 3
    assert "database_unreachable" in shown.stderr
    assert "hunter2" not in shown.stderr
    assert "Traceback" not in shown.stderr


def test_migrate_applies_once_and_prints_its_sql(embedded18: servers.Postgres) -> None:
    dsn = embedded18.empty_database()
    printed = tally("migrate", "--sql", dsn=dsn)
    assert "CREATE TABLE tally.operation" in printed.stdout
    first, second = tally("migrate", dsn=dsn), tally("migrate", dsn=dsn)
    assert first.returncode == second.returncode == 0
    assert "applied 1 ledger" in first.stdout
    assert second.stdout == ""
    assert "up to date" in second.stderr


def test_a_key_is_made_for_somebody(dsn: str) -> None:
    """A key of nobody's would leave what is done with it without an author."""
    assert tally("keys", "create", dsn=dsn).returncode == 2
    for name in ("", "unknown", "bootstrap", "worker", "anna/tsk_1", "an\nna"):
        refused = tally("keys", "create", "--for", name, dsn=dsn)
        assert (refused.returncode, refused.stdout) == (2, "")


def test_keys_are_made_listed_and_revoked(dsn: str) -> None:
    made = tally("keys", "create", "--tenant", "acme", "--role", "viewer", "--for", "anna", dsn=dsn)
    key = made.stdout.strip()
    assert key.startswith("tsk_")
    assert key not in made.stderr
    listed = json.loads(tally("keys", "list", "--tenant", "acme", "--json", dsn=dsn).stdout)["keys"]
    assert [(row["prefix"], row["role"], row["owner"], row["revoked_at"]) for row in listed] == [
        (key[:12], "viewer", "anna", None)
    ]
    assert tally("keys", "revoke", "--tenant", "acme", key[:12], dsn=dsn).returncode == 0
    again = tally("keys", "revoke", "--tenant", "acme", key[:12], dsn=dsn)
    assert again.returncode == 1
    assert "revoked before" in again.stderr


@pytest.fixture(scope="module")
def service(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """`tally up` on a free port; address and API key as it printed them."""
    home = tmp_path_factory.mktemp("home")
    process = subprocess.Popen(
        [*TALLY, "up"],
        env={
            **os.environ,
            "TALLY_DATABASE_URL": dsn,
            "TALLY_PORT": "0",
            "TALLY_SIMULATOR_PORT": "0",
            "TALLY_HOME": str(home),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = ""
    while "Ctrl-C" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    address = re.search(r"API +(http://\S+)/v1", said)
    key = re.search(r"API key +(\S+)", said)
    assert address is not None
    assert key is not None
    yield address.group(1), key.group(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert (home / "api_key").stat().st_mode & 0o077 == 0


def call(service: tuple[str, str], method: str, path: str, body: object, key: str = "") -> tuple[int, bytes]:
    address, api_key = service
    headers = {
        "Authorization": f"Bearer {api_key}",
        "Content-Type": "application/json",
        "Idempotency-Key": key,
    }
    request = urllib.request.Request(address + path, method=method, data=json.dumps(body).encode(), headers=headers)
    with urllib.request.urlopen(request) as answer:
        return answer.status, answer.read()


def test_up_serves_and_verify_and_explain_tell_of_it(dsn: str, service: tuple[str, str]) -> None:
    for name, floor in (("world", None), ("dev_1", 0)):
        assert call(service, "PUT", f"/v1/accounts/{name}", {"currency": "USD", "floor_micros": floor})[0] == 201
    topup = {
        "kind": "topup",
        "account": "dev_1",
        "source": "world",
        "amount_micros": 5_000_000,
        "currency": "USD",
    }
    status, body = call(service, "POST", "/v1/operations", topup, "first-topup")
    assert status == 201
    transaction = json.loads(body)

    verified = tally("verify", dsn=dsn)
    assert verified.returncode == 0
    assert verified.stdout.count("holds ") == len(verified.stdout.splitlines()) == len(_PROMISES)

    by_key = tally("explain", "first-topup", dsn=dsn)
    assert by_key.returncode == 0
    assert transaction["id"] in by_key.stdout
    assert "entry 1 of dev_1: 5.00 USD, balance 5.00 USD" in by_key.stdout
    by_id = json.loads(tally("explain", transaction["id"], "--json", dsn=dsn).stdout)
    assert by_id["found"][0]["id"] == transaction["id"]
    assert "balance 5.00 USD" in tally("explain", "dev_1", dsn=dsn).stdout


def test_explain_of_nothing_is_exit_1_and_claims_nothing(dsn: str) -> None:
    shown = tally("explain", "never-used", dsn=dsn)
    assert shown.returncode == 1
    assert "I do not know 'never-used'" in shown.stderr
    assert "money" not in shown.stderr


def test_verify_finds_damage_and_is_exit_1(embedded18: servers.Server, tmp_path: Path) -> None:
    import asyncio  # noqa: PLC0415

    from tests.ledgers import fetchval, ledger  # noqa: PLC0415

    damaged = embedded18.fresh_database()

    async def damage() -> None:
        async with ledger(damaged) as one:
            await one.account("a", 100)
        await fetchval(damaged, "ALTER TABLE tally.account DISABLE TRIGGER USER")
        await fetchval(damaged, "UPDATE tally.account SET balance_micros = balance_micros + 1 WHERE id = 'a'")

    asyncio.run(damage())
    shown = tally("verify", "--json", dsn=damaged)
    assert shown.returncode == 1
    verdicts = {row["invariant"]: row["broken"] for row in json.loads(shown.stdout)["invariants"]}
    assert verdicts["balances"] == 1
    assert verdicts["conservation"] == 1
    assert verdicts["solvency"] == 0


@pytest.mark.parametrize("name", ["ledger", "hot", "idle", "http", "batch", "growth", "gate", "gate-http"])
def test_every_bench_runs_and_reports(dsn: str, name: str) -> None:
    """Small sizes: that it runs and verifies, not how fast."""
    shown = tally("bench", name, "--json", "--seconds", "0.5", "--runs", "1", "--rows", "20000", dsn=dsn)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert {"bench", "value", "unit", "baseline", "ratio"} <= result.keys()
    assert result["value"] > 0


def test_genuine_webhooks_are_stored_beside_slow_and_forged_ones(dsn: str) -> None:
    """The bench itself stops where one was not acknowledged, or not stored.

    Beside a busy suite half of them are answered within a second: nobody waits until a slow sender is given up, which
    takes many. The promised figure is asked for by TALLY_TEST_FULL.
    """
    is_full = os.environ.get("TALLY_TEST_FULL") == "1"
    shown = tally("bench", "abuse", "--json", "--seconds", "5" if is_full else "1", "--runs", "1", dsn=dsn)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    details = result["details"]
    assert details["slow_senders"] == 500
    assert 0 < details["p50_ms"] < 1_000 < LIMITS.body_seconds * 1_000
    assert details["p50_ms"] <= result["value"] <= details["longest_ms"]
    assert details["forged_per_second"] > 1_000
    if is_full:
        assert details["forged_per_second"] >= 4_500
        assert result["value"] < 250


def test_the_lookup_bench_asks_for_one_among_many(dsn: str) -> None:
    """It stops where the one that is there is not found, or one that is not there is."""
    shown = tally("bench", "lookup", "--json", "--rows", "300", dsn=dsn)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert min(result["value"], result["baseline"], result["details"]["found_seconds"]) > 0
    # A hundred a page, and none of them left out.
    assert result["details"]["requests"] == 3


def test_the_saga_bench_pays_and_gives_back(dsn: str) -> None:
    """The bench itself stops where an event did not come to its end, or where the books do not verify."""
    shown = tally("bench", "saga", "--json", "--seconds", "0.5", "--runs", "1", dsn=dsn)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    details = result["details"]
    assert min(result["value"], result["baseline"], details["compensations_per_second"]) > 0
    # Few statements for many events; the baseline is one by one.
    assert details["paid_statements_per_event"] < 0.2
    assert details["baseline_statements_per_event"] > 10
    assert min(details["paid_worker_us_per_event"], details["paid_server_us_per_event"]) > 0


def test_the_checkout_bench_sells_over_http(dsn: str) -> None:
    """It stops where the buyers, the database and the provider's books do not tell the same."""
    shown = tally("bench", "checkout", "--json", "--seconds", "0.5", "--runs", "1", dsn=dsn)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    assert min(result["value"], result["baseline"], result["details"]["ratio_to_plain"]) > 0
    assert {"p99_ms", "service_us_per_checkout", "simulator_us_per_checkout"} <= result["details"].keys()


def test_the_settlement_bench_pays_over_both_providers_and_times_its_claim(dsn: str) -> None:
    """The bench itself stops where a row is not paid once, or where the books do not verify."""
    sizes = ("--seconds", "0.5", "--runs", "1", "--rows", "2000", "--finished", "2000")
    shown = tally("bench", "settlement", "--json", *sizes, dsn=dsn)
    assert shown.returncode == 0, shown.stderr
    result = json.loads(shown.stdout)
    details = result["details"]
    assert (
        min(result["value"], result["baseline"], details["http_settlements_per_second"], details["http_baseline"]) > 0
    )
    assert details["statements_per_settlement"] < 0.2
    assert details["baseline_statements_per_settlement"] > 10
    assert details["memory_rows"] == 2000
    assert len(details["memory_at_each_tenth_mb"]) > 0
    assert 0 < details["memory_start_mb"] <= details["memory_peak_mb"] < 200
    for beside in ("alone", "beside_finished", "beside_pending"):
        assert details[f"claim_{beside}_ms"] > 0
        assert "settlement_pending" in details[f"claim_{beside}_plan"]
