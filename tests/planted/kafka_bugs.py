"""Bugs in webhooks that go to Kafka first: see `bugs`."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

from tallystick.webhooks.intake import store as intake
from tallystick.webhooks.intake.flow import Intake
from tallystick.webhooks.log.kafka import KafkaLog
from tests.planted.bug import Bug

LOG: Final = "tests/webhooks/log/test_kafka.py::"


def acknowledged_before_kafka() -> None:
    """The provider hears 200 while the record is still in our buffer."""
    original = KafkaLog.append

    def append(self: Any, delivery: Any) -> Any:
        original(self, delivery)
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answered.set_result(len(delivery.events))
        return answered

    cast("Any", KafkaLog).append = append


def noted_before_commit() -> None:
    """How far was read is noted, in the database and in Kafka, before what was read is stored."""
    original = Intake._store

    async def store(self: Any, batch: Any) -> Any:
        await intake.store(self._database, batch.topic, [], [], batch.ends())
        await self._reader.commit(batch)
        return await original(self, batch)

    cast("Any", Intake)._store = store


def kafkas_note_believed() -> None:
    """A consumer begins where Kafka says that it was, whatever the database has."""

    async def offsets(_database: Any, _topic: str, partitions: Any) -> dict[int, int]:
        return dict.fromkeys(partitions, 2**60)

    cast("Any", intake).offsets = offsets


def poison_dropped() -> None:
    """What cannot be read is passed over, and nobody ever hears of it."""
    intake._SQL["set_aside"] = intake._SQL["set_aside"].replace(
        "ORDER BY p.partition", "WHERE false ORDER BY p.partition"
    )


KAFKA_BUGS: Mapping[str, Bug] = {
    "acknowledged_before_kafka": Bug(
        acknowledged_before_kafka, (LOG + "test_nothing_is_acknowledged_that_kafka_has_not",), on="kafka"
    ),
    "noted_before_commit": Bug(
        noted_before_commit,
        (LOG + "test_a_consumer_killed_anywhere_loses_and_doubles_nothing[before-0]",),
        on="kafka",
    ),
    "kafkas_note_believed": Bug(
        kafkas_note_believed,
        (LOG + "test_a_database_restored_from_a_backup_reads_again_what_it_lost",),
        on="kafka",
    ),
    "poison_dropped": Bug(poison_dropped, (LOG + "test_what_is_no_webhook_goes_aside_and_stops_nobody",), on="kafka"),
}
