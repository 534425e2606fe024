"""The topic looked at: weaknesses are told plainly; operators see how far it was read, and whether it answers."""

import asyncio
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

import tallystick
from tallystick.errors import LogUnreachable, Misconfigured
from tallystick.http.api import build
from tallystick.settings import LIMITS, KafkaSettings
from tallystick.webhooks.log.kafka_topic import KafkaTopic
from tallystick.webhooks.record import encode
from tests import kafka as brokers
from tests import servers
from tests.cli.commands import TALLY, tally
from tests.deliveries import delivery, stored
from tests.ledgers import fetchval
from tests.webhooks.log.grounds import QUICK, grounds, make_topic, new_topic

NOBODY = "127.0.0.1:1"


def topic(kafka: brokers.Single, name: str) -> KafkaTopic:
    return KafkaTopic(KafkaSettings(kafka.bootstrap, name), QUICK)


WEAK = {
    "retention.ms": ("86400000", "retention.ms keeps records for 1.0 days"),
    "retention.bytes": ("1000000", "retention.bytes is set"),
    "cleanup.policy": ("compact", "cleanup.policy compacts"),
    "max.message.bytes": ("1048588", "max.message.bytes=1048588"),
    "min.insync.replicas": ("2", "min.insync.replicas=2 with 1 replica(s)"),
}


async def test_every_weakness_of_a_topic_is_told(kafka: brokers.Single) -> None:
    name = make_topic(kafka.bootstrap, partitions=1, config={key: value for key, (value, _) in WEAK.items()})
    notes = await topic(kafka, name).check()
    assert all(note.startswith(f"Kafka topic {name}: ") for note in notes)
    for told in (
        "1 broker(s), 1 replica(s): what is acknowledged is on one disk only",
        *(told for _, told in WEAK.values()),
    ):
        assert len([note for note in notes if told in note]) == 1, told


async def test_a_topic_that_is_missing_is_made_as_strong_as_the_brokers_allow(kafka: brokers.Single) -> None:
    """A second process that starts at once finds it; and one broker alone is told to be one disk."""
    name = new_topic()
    made, alone = await topic(kafka, name).check()
    assert made == (f"Kafka topic {name} was missing, and was made: 3 partitions, 1 replica(s), min.insync.replicas=1.")
    assert "on one disk only" in alone
    assert await topic(kafka, name).check() == (alone,)


async def test_a_client_that_does_not_take_its_settings_is_told_without_them() -> None:
    with pytest.raises(Misconfigured, match="TALLY_KAFKA_SECURITY") as told:
        KafkaTopic(KafkaSettings(NOBODY, "t", {"security.protocol": "hunter2"}), LIMITS)
    assert "sasl.password" not in str(told.value)


async def test_operators_see_how_far_the_log_was_read(embedded18: servers.Server, kafka: brokers.Single) -> None:
    dsn = embedded18.fresh_database()
    async with grounds(dsn, kafka.bootstrap) as ground:
        for number in range(4):
            await ground.service.log.append(delivery(number))
        ground.put(b"somebody else's")
        transport = httpx2.ASGITransport(app=build(ground.service))
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            ready = (await client.get("/readyz?verbose")).json()
            (check,) = [check for check in ready["checks"] if check["name"] == "kafka"]
            assert check == {
                "name": "kafka",
                "ok": True,
                "detail": "answers; 5 records are not in the database yet",
                "needed": False,
            }
            shown = (await client.get("/metrics")).text
            assert re.search(r"^tally_webhook_log_lag 5\.0$", shown, re.MULTILINE)
            assert re.search(r"^tally_webhook_log_current 1\.0$", shown, re.MULTILINE)
        await ground.take_in()
        # Another process, with figures of its own.
        transport = httpx2.ASGITransport(app=build(ground.service))
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            shown = (await client.get("/metrics")).text
    for name, value in (("log_lag", 0), ("log_read_total", 5), ("poison", 1)):
        assert re.search(rf"^tally_webhook_{name} {value}\.0$", shown, re.MULTILINE), name


async def test_kafka_out_of_reach_takes_nobody_out_of_rotation(embedded18: servers.Server) -> None:
    """Orders and payments are served without it: only webhooks are told to come back."""
    limits = replace(QUICK, kafka_ask_seconds=0.3)
    async with grounds(embedded18.fresh_database(), NOBODY, limits=limits, checking=False) as ground:
        with pytest.raises(LogUnreachable):
            await ground.service.log.backlog()
        transport = httpx2.ASGITransport(app=build(ground.service))
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            answer = await client.get("/readyz?verbose")
            assert (answer.status_code, answer.json()["status"]) == (200, "ready")
            (check,) = [check for check in answer.json()["checks"] if check["name"] == "kafka"]
            assert (check["ok"], check["needed"]) == (False, False)
            shown = (await client.get("/metrics")).text
    assert re.search(r"^tally_webhook_log_current 0\.0$", shown, re.MULTILINE)
    assert "tally_webhook_log_lag " not in shown


async def test_commands_say_that_kafka_is_out_of_reach_and_those_without_need_of_it_do_not_care(
    embedded18: servers.Server,
) -> None:
    dsn = embedded18.fresh_database()
    # At once: each asks for seconds before it gives up.
    runs = [
        asyncio.to_thread(tally, command, dsn=dsn, TALLY_KAFKA_BOOTSTRAP=NOBODY, TALLY_PORT="0")
        for command in ("serve", "work")
    ]
    for told in await asyncio.gather(*runs):
        assert told.returncode == 3, told.stderr
        assert "log_unreachable: Kafka" in told.stderr
        assert "Traceback" not in told.stderr
    listed = tally("events", "list", dsn=dsn, TALLY_KAFKA_BOOTSTRAP=NOBODY)
    assert (listed.returncode, listed.stdout) == (0, "")


async def test_without_the_client_it_is_said_how_to_get_it(embedded18: servers.Server) -> None:
    absent = "import sys; sys.modules['confluent_kafka'] = None; " + TALLY[2]
    told = subprocess.run(
        [sys.executable, "-c", absent, "events", "list"],
        env={"TALLY_DATABASE_URL": await _migrated(embedded18), "TALLY_KAFKA_BOOTSTRAP": NOBODY, **_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 2, told.stderr
    assert "pip install 'tallystick[kafka]'" in told.stderr


def test_nobody_asks_in_the_way_that_ends_the_process() -> None:
    """Its client has no group to tell when a broker says that it does not look after ours (decision 0016)."""
    sources = Path(tallystick.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if "list_consumer_group_offsets" in path.read_text()] == []


async def test_poison_is_listed_read_again_and_dismissed(embedded18: servers.Server, kafka: brokers.Single) -> None:
    """One that a newer version appended is stored once this one is as new."""
    dsn = embedded18.fresh_database()
    name = make_topic(kafka.bootstrap, partitions=1)
    async with grounds(dsn, kafka.bootstrap, name) as ground:
        good = delivery(1)
        ground.put(encode(good.provider, good.events).replace(b"webhook/1", b"webhook/2"))
        ground.put(b"somebody else's")
        assert (await ground.take_in()).aside == 2
    listed = tally("events", "poison", dsn=dsn)
    assert listed.returncode == 1, listed.stderr
    assert [line.split("  ")[-1] for line in listed.stdout.splitlines()] == [
        "it is of a version that this code does not know",
        "it is no record of Tallystick",
    ]
    # The newer code, which knows that version.
    newer = "import tallystick.webhooks.record as record; record._VERSION = b'2\\n'; " + TALLY[2]
    told = subprocess.run(
        [sys.executable, "-c", newer, "events", "poison", "--retry"],
        env={"TALLY_DATABASE_URL": dsn, **_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 1, told.stderr
    assert "stored, 1 new event(s)" in told.stderr
    assert set(await stored(dsn)) == {"evt_1"}
    left = await fetchval(dsn, "SELECT number FROM tally.webhook_poison WHERE resolved_at IS NULL")
    assert tally("events", "poison", "--dismiss", str(left), "--reason", "a slip", dsn=dsn).returncode == 0
    assert await fetchval(dsn, "SELECT resolution FROM tally.webhook_poison ORDER BY number DESC LIMIT 1") == "a slip"
    by = await fetchval(dsn, "SELECT resolved_by FROM tally.webhook_poison ORDER BY number DESC LIMIT 1")
    shown = tally("explain", str(left), dsn=dsn)
    assert f"resolved by {by}: a slip" in shown.stdout, shown


async def _migrated(server: servers.Server) -> str:
    dsn = server.fresh_database()
    assert tally("migrate", dsn=dsn).returncode == 0
    return dsn


def _path() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
