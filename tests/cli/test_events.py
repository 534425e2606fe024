"""`tally events`, and webhooks of `tally up`'s own simulator: real processes, real exit codes."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tallystick.database import pool as postgres
from tallystick.database.migrate import migrate
from tallystick.settings import LIMITS
from tallystick.webhooks import inbox
from tallystick.webhooks.flow import Events
from tallystick.webhooks.rules import Failed
from tests import servers
from tests.cli.commands import tally
from tests.cli.payouts import Payouts, ended, until
from tests.deliveries import delivery
from tests.ledgers import fetchval
from tests.providers.worlds import Control


class Refusing:
    async def handle(self, events: object) -> list[Failed]:
        return [Failed("it cannot be")] * len(events)  # type: ignore[arg-type]


@pytest.fixture
async def dsn(embedded18: servers.Server) -> str:
    """Three events; the first two are dead."""
    made = embedded18.fresh_database()
    await migrate(made)
    database = await postgres.connect(made, connections=4)
    async with database.writing() as connection:
        await inbox.append(connection, [delivery(1), delivery(2)])
    limits = replace(LIMITS, event_tries=1)
    await Events(database, {"charge": Refusing()}, lease=timedelta(minutes=5), by="tests", limits=limits).run_once()
    async with database.writing() as connection:
        await inbox.append(connection, [delivery(3)])
    await database.close()
    return made


async def test_events_are_listed_newest_first(dsn: str) -> None:
    told = tally("events", "list", dsn=dsn)
    assert told.returncode == 0, told.stderr
    assert [re.findall(r"evt_\d", line)[0] for line in told.stdout.splitlines()] == ["evt_3", "evt_2", "evt_1"]
    assert "it cannot be" in told.stdout
    page = json.loads(tally("events", "list", "--limit", "1", "--json", dsn=dsn).stdout)
    assert [event["event_id"] for event in page] == ["evt_3"]
    rest = tally("events", "list", "--before", str(page[0]["number"]), "--json", dsn=dsn)
    assert [event["event_id"] for event in json.loads(rest.stdout)] == ["evt_2", "evt_1"]
    dead = json.loads(tally("events", "list", "--status", "DEAD_LETTER", "--json", dsn=dsn).stdout)
    assert [(event["event_id"], event["tries"], event["reason"]) for event in dead] == [
        ("evt_2", 1, "it cannot be"),
        ("evt_1", 1, "it cannot be"),
    ]
    assert json.loads(tally("events", "list", "--provider", "adyen", "--json", dsn=dsn).stdout) == []


async def test_a_dead_letter_is_tried_again_by_its_id_or_number(dsn: str) -> None:
    number = await fetchval(dsn, "SELECT number FROM tally.webhook_events WHERE event_id = 'evt_2'")
    told = tally("events", "retry", "evt_1", str(number), dsn=dsn)
    assert told.returncode == 0, told.stderr
    assert "2 dead letter(s)" in told.stdout
    assert await fetchval(dsn, "SELECT count(*) FROM tally.webhook_events WHERE status = 'UNPROCESSED'") == 3
    again = tally("events", "retry", "evt_1", "evt_9", "--json", dsn=dsn)
    assert again.returncode == 1
    assert json.loads(again.stdout) == {
        "retried": [],
        "not_dead": {"evt_1": "UNPROCESSED", "evt_9": "there is no such event"},
    }


async def test_all_dead_letters_at_once(dsn: str) -> None:
    assert len(json.loads(tally("events", "retry", "--all", "--json", dsn=dsn).stdout)["retried"]) == 2


async def test_an_event_is_explained_by_its_id_or_number(dsn: str) -> None:
    number = await fetchval(dsn, "SELECT number FROM tally.webhook_events WHERE event_id = 'evt_1'")
    told = tally("explain", "evt_1", dsn=dsn)
    assert told.returncode == 0, told.stderr
    assert told.stdout == tally("explain", str(number), dsn=dsn).stdout
    summary = told.stdout.splitlines()[1]
    assert "simulator told payment_intent.succeeded: DEAD_LETTER (it cannot be)" in summary
    assert f"number {number}, claimed 1 times, failed 1 times" in summary
    assert f"`tally events retry {number}`" in summary
    assert "it concerns nothing of tenant default" in summary
    assert f"charge pi_1 of 10.01 EUR is moved (succeeded), reference {1:064x}; its body of" in told.stdout
    assert "happened, says simulator" in told.stdout
    (found,) = json.loads(tally("explain", "evt_3", "--json", dsn=dsn).stdout)["found"]
    assert (found["what"], found["id"]) == ("event", "evt_3")
    assert [step["what"] for step in found["timeline"]][-1] == "due"
    assert tally("explain", "evt_4", dsn=dsn).returncode == 1


async def test_a_retry_of_nothing_is_wrong_usage(dsn: str) -> None:
    assert tally("events", "retry", dsn=dsn).returncode == 2
    assert tally("events", "retry", "--all", "evt_1", dsn=dsn).returncode == 2


async def test_the_simulator_of_tally_up_sends_its_webhooks_here(payouts: Payouts, tmp_path: Path) -> None:
    """A settlement is paid; its transfer's event is delivered by webhook, and processed."""
    everything = payouts.start("up", TALLY_PORT="0", TALLY_SIMULATOR_PORT="0", TALLY_HOME=str(tmp_path))
    assert everything.stderr is not None
    said = ""
    while "Ctrl-C" not in said:
        line = everything.stderr.readline()
        assert line, said
        said += line
    simulator = re.search(r"Simulator +(http://\S+)", said)
    assert simulator is not None, said
    control = Control(simulator.group(1))
    await until(lambda: control.call("GET", "endpoints")["stripe"], "the simulator knows where to send")
    assert control.call("GET", "endpoints")["stripe"].endswith("/webhooks/simulator")
    await payouts.create()

    async def is_processed() -> bool:
        statement = "SELECT count(*) FROM tally.webhook_events WHERE status = 'PROCESSED_OK' AND purpose = 'transfer'"
        return bool(await fetchval(payouts.dsn, statement))

    await until(is_processed, "the transfer's event is processed")
    await until(lambda: control.call("GET", "deliveries?state=delivered"), "it was delivered, not only listed")
    everything.terminate()
    assert ended(everything)[0] == 0
