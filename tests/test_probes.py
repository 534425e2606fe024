"""The five probes hold; and each of them sees a hole when there is one."""

import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.keys import derived as keys
from tallystick.keys.names import settlement_id
from tallystick.movement import store as intents
from tallystick.movement.rules import Begin, KnownIntent, Wanted
from tallystick.movement.steps import Send
from tallystick.probes import double_payment, fee_bypass, key_nondeterminism, stuck_recovery_race
from tallystick.probes.ground import Ground, connected, opened
from tallystick.probes.report import Outcome, Probed, Tried
from tallystick.probes.runner import PROBES, probe
from tallystick.settlement import store as settlement
from tallystick.settlement.tick import flow as settling
from tests.cli.commands import TALLY

SEED = int(os.environ.get("TALLY_TEST_SEED", "7"))
WON, LOST = Outcome(won=True, told="seen"), Outcome(won=False, told="unseen")


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with opened() as made:
        yield made


@pytest.mark.parametrize("name", PROBES)
async def test_the_probe_holds(ground: Ground, name: str, record_property: Callable[[str, object], None]) -> None:
    """No attack wins, and each of them would have won against the naive implementation."""
    probed = await probe(name, ground, seed=SEED)
    record_property("counted", f"{probed.line()}, seed {SEED}")
    assert probed.verdict == "held", "\n".join(probed.troubles())


@pytest.mark.parametrize(
    ("ways", "verdict"),
    [
        ([(LOST, WON), (LOST, WON)], "held"),
        ([(LOST, WON), (WON, WON)], "BROKEN"),
        ([(WON, LOST)], "BROKEN"),
        ([(LOST, WON), (LOST, LOST)], "BLUNT"),
        ([], "BLUNT"),
    ],
)
def test_a_probe_holds_only_when_every_control_wins(ways: list[tuple[Outcome, Outcome]], verdict: str) -> None:
    """An attack that cannot win against anybody proves nothing."""
    tried = tuple(Tried(way=str(i), attack=attack, control=control) for i, (attack, control) in enumerate(ways))
    probed = Probed(probe="example", ways=tried, seconds=0.0)
    assert probed.verdict == verdict
    assert bool(probed.troubles()) == (verdict != "held" and bool(ways))


def _won(ways: tuple[Tried, ...]) -> set[str]:
    return {tried.way for tried in ways if tried.attack.won}


async def test_a_blind_repetition_past_the_horizon_is_seen(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: recovery does not ask, and neither it nor the intent looks at how long the provider remembers."""

    def always(known: KnownIntent, _wanted: Wanted, **_now: Any) -> Begin:
        return Begin(1 if known.last is None else known.last.number + 1)

    monkeypatch.setattr(settling, "next_step", lambda *_args, **_facts: Send(0))
    monkeypatch.setattr(intents, "permit", always)
    way = "answer lost, key forgotten"
    monkeypatch.setattr(double_payment, "WAYS", {way: double_payment.WAYS[way]})
    assert way in _won(await double_payment.double_payment(ground))


async def test_a_fee_that_only_the_code_guards_is_seen(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the trigger that computes the fee again is not there."""
    fresh: Callable[..., Awaitable[str]] = ground.fresh_database

    async def unguarded() -> str:
        dsn = await fresh()
        async with connected(dsn) as connection:
            await connection.execute("DROP TRIGGER settlement_created ON tally.settlement")
        return dsn

    monkeypatch.setattr(ground, "fresh_database", unguarded)
    way = "inserted by hand"
    monkeypatch.setattr(fee_bypass, "WAYS", {way: fee_bypass.WAYS[way]})
    assert _won(await fee_bypass.fee_bypass(ground)) == {way}


async def test_a_late_send_is_seen(ground: Ground, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Planted in the stopped process: its steady clock stands still while it is stopped."""
    _plant(monkeypatch, tmp_path, "import tallystick.providers.steady as s\ns.steady = lambda: 0.0\n")
    way = "stopped between connecting and writing"
    monkeypatch.setattr(stuck_recovery_race, "_RACES", {way: stuck_recovery_race._RACES[way]})
    (tried,) = await stuck_recovery_race.stuck_recovery_race(ground)
    assert tried.attack.won
    assert "sends by workers whose permit had run out" in tried.attack.told


def test_fields_that_run_together_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a key without the lengths of its fields."""
    monkeypatch.setattr(keys, "_sized", lambda content: content)
    monkeypatch.setattr(keys, "_typed", lambda value, _name: str(value).encode())
    pairs = key_nondeterminism.PAIRS["a number and its digits"]
    assert key_nondeterminism._collides(pairs).won
    assert key_nondeterminism._by_release().won


async def test_a_read_without_a_tenant_is_seen(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: settlements are read as the owner, whoever asks."""

    async def row_of(database: Any, _tenant: Any, name: str) -> Any:
        async with database.owning() as connection:
            tenants = await connection.fetch("SELECT tenant_id FROM tally.tenant")
            for row in tenants:
                id_ = settlement_id(name)
                found = await connection.fetch(settlement._SQL["by_ids"], [row["tenant_id"]], [id_])
                if found:
                    return found[0]
        return settlement.unknown(name)

    monkeypatch.setattr(settlement, "row_of", row_of)
    assert "read by id" in _won((await probe("cross_tenant_leak", ground)).ways)


def test_the_command_says_what_won_and_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Planted: every key is new. One line of JSON on stdout, sentences on stderr, exit status 1."""
    _plant(monkeypatch, tmp_path, "import os\nimport tallystick.keys.derived as k\nk._VERSION = os.urandom(8)\n")
    shown = subprocess.run(
        [*TALLY, "probe", "key_nondeterminism", "--json"], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 1, shown.stderr
    told = json.loads(shown.stdout)
    assert told["holds"] is False
    (one,) = told["probes"]
    assert (one["probe"], one["verdict"], one["control_won"]) == ("key_nondeterminism", "BROKEN", one["tried"])
    assert one["won"] == sum(way["attack"]["won"] for way in one["ways"]) > 0
    assert "two keys for one: after a restart: won against Tallystick" in shown.stderr


def _plant(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> None:
    """Have every Python process that is started from now on run this first."""
    (folder / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))
