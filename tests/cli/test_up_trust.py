"""What `tally up` and `tally serve` believe, and what they show: webhook secrets, the first key, the simulator."""

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import servers
from tests.cli.commands import TALLY, tally
from tests.deliveries import body, headers
from tests.providers.worlds import Control

CONFIGURED = "tsk_a_configured_key_of_forty_characters"
# Listened on for a moment, by a service that has nothing.
EVERYWHERE = "0.0.0.0"  # noqa: S104
OTHER = "tsk_b_configured_key_of_forty_characters"


@pytest.fixture(scope="module")
def dsn(embedded18: servers.Server) -> str:
    found = embedded18.fresh_database()
    assert tally("migrate", dsn=found).returncode == 0
    return found


@contextmanager
def running(command: str, until: str, **environment: str) -> Iterator[str]:
    """What it said until then, while it runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
    defaults = {"TALLY_PORT": "0", "TALLY_SIMULATOR_PORT": "0"}
    process = subprocess.Popen(
        [*TALLY, command], env={**kept, **defaults, **environment}, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = ""
    try:
        while until not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        yield said
    finally:
        process.terminate()
        process.communicate(timeout=60)


def status(url: str, *, data: bytes | None = None, **given: str) -> int:
    request = urllib.request.Request(url, data=data, headers={name.replace("_", "-"): v for name, v in given.items()})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def address(said: str, what: str = "API") -> str:
    found = re.search(rf"{what} +(http://[^/\s]+)", said)
    assert found is not None, said
    return found.group(1)


def test_the_simulators_webhooks_are_signed_with_a_secret_of_this_home_alone(dsn: str, tmp_path: Path) -> None:
    kept = tmp_path / "simulator" / "webhook_secret"
    with running("up", "Ctrl-C", TALLY_DATABASE_URL=dsn, TALLY_HOME=str(tmp_path)) as said:
        secret, hook = kept.read_text().strip(), f"{address(said)}/webhooks/simulator"
        raw = body(1)
        assert status(hook, data=raw, **_named(headers(raw, secret="whsec_simulator"))) == 400
        assert status(hook, data=raw, **_named(headers(raw, secret=secret))) == 200
    assert len(secret) > 40
    assert kept.stat().st_mode & 0o077 == 0
    with running("serve", "Metrics", TALLY_DATABASE_URL=dsn, TALLY_HOME=str(tmp_path)) as said:
        assert kept.read_text().strip() == secret
        assert status(f"{address(said)}/webhooks/simulator", data=raw, **_named(headers(raw, secret=secret))) == 200
    other = tmp_path / "other"
    with running("serve", "Metrics", TALLY_DATABASE_URL=dsn, TALLY_HOME=str(other)) as said:
        assert status(f"{address(said)}/webhooks/simulator", data=raw, **_named(headers(raw, secret=secret))) == 400


def _named(given: dict[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in given.items()}


@pytest.mark.parametrize("command", ["serve", "up"])
def test_where_others_can_reach_it_no_simulator_stands_in_unless_it_was_asked_for(
    command: str, dsn: str, tmp_path: Path
) -> None:
    # A service that starts goes on until somebody stops it.
    shown = tally(command, dsn=dsn, TALLY_HOST=EVERYWHERE, TALLY_PORT="0", TALLY_HOME=str(tmp_path))
    assert shown.returncode == 2
    assert "TALLY_PROVIDER=simulator" in shown.stderr
    assert "Traceback" not in shown.stderr
    asked = {"TALLY_DATABASE_URL": dsn, "TALLY_HOME": str(tmp_path), "TALLY_PROVIDER": "simulator"}
    with running(command, "Metrics", TALLY_HOST=EVERYWHERE, **asked) as said:
        assert "Metrics    http://" in said


def test_a_configured_key_is_not_shown_and_its_successor_takes_its_place(dsn: str, tmp_path: Path) -> None:
    place = {"TALLY_DATABASE_URL": dsn, "TALLY_HOME": str(tmp_path)}
    with running("up", "Ctrl-C", TALLY_API_KEY=CONFIGURED, **place) as said:
        assert CONFIGURED not in said
        assert re.search(r"API key +as TALLY_API_KEY says", said)
        assert _opens(said, CONFIGURED)
    with running("up", "Ctrl-C", TALLY_API_KEY=OTHER, **place) as said:
        assert OTHER not in said
        assert (_opens(said, OTHER), _opens(said, CONFIGURED)) == (True, False)
    # Back to the first: it was given up, and is not taken up again by itself.
    with running("serve", "Metrics", TALLY_API_KEY=CONFIGURED, **place) as said:
        assert "TALLY_API_KEY was revoked before" in said
        assert (_opens(said, OTHER), _opens(said, CONFIGURED)) == (True, False)


def test_a_development_key_is_shown_and_made_anew_after_a_configured_one(dsn: str, tmp_path: Path) -> None:
    place = {"TALLY_DATABASE_URL": dsn, "TALLY_HOME": str(tmp_path)}
    with running("up", "Ctrl-C", **place) as said:
        first = _shown(said)
        assert _opens(said, first)
    with running("up", "Ctrl-C", **place) as said:
        assert _shown(said) == first, "scripts go on working"
    with running("up", "Ctrl-C", TALLY_API_KEY="tsk_c_configured_key_of_forty_characters", **place) as said:
        assert not _opens(said, first)
    with running("up", "Ctrl-C", **place) as said:
        second = _shown(said)
        assert second != first
        assert _opens(said, second)


def _opens(said: str, key: str) -> bool:
    return status(f"{address(said)}/v1/accounts", authorization=f"Bearer {key}") == 200


def _shown(said: str) -> str:
    found = re.search(r"API key +(tsk_\S+)", said)
    assert found is not None, said
    return found.group(1)


def test_a_second_simulator_on_the_same_books_says_who_has_them(dsn: str, tmp_path: Path) -> None:
    """Literally what somebody types beside `tally up`."""
    plan = "stripe.transfer:execute_then_drop"
    with running("up", "Ctrl-C", TALLY_DATABASE_URL=dsn, TALLY_HOME=str(tmp_path)) as said:
        url = address(said, "Simulator")
        shown = tally("simulator", "--faults", plan, dsn=dsn, TALLY_HOME=str(tmp_path), TALLY_SIMULATOR_PORT="0")
        assert shown.returncode == 2
        assert "another simulator has the books" in shown.stderr
        assert f"at {url}" in shown.stderr
        assert "locked" not in shown.stderr
        assert "Traceback" not in shown.stderr
        # What it is told to do instead works.
        Control(url).call("POST", "faults", {"plan": plan})
        assert plan in json.dumps(Control(url).call("GET", "faults"))
    own = tmp_path / "rehearsal.sqlite"
    process = subprocess.Popen(
        [*TALLY, "simulator", "--books", str(own), "--port", "0", "--faults", plan],
        env={**os.environ, "TALLY_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["url"].startswith("http://127.0.0.1:")
    process.terminate()
    assert process.wait(30) == 0
