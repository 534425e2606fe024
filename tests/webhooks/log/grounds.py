"""A service whose webhooks go to Kafka first, for the tests."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tallystick import app
from tallystick.settings import LIMITS, KafkaSettings, Limits, Settings
from tallystick.webhooks.intake.flow import Taken
from tests.deliveries import TRUSTED

PATIENCE_SECONDS = 60
# Nobody dies and nothing is silent: a machine that stands still for seconds is no reason to give anybody up.
CALM = replace(
    LIMITS,
    kafka_session_seconds=30.0,
    kafka_append_seconds=30.0,
    kafka_ask_seconds=30.0,
    kafka_read_seconds=0.2,
    kafka_partitions=3,
)
# Where somebody dies or falls silent: it is noticed within a test.
QUICK = replace(CALM, kafka_session_seconds=1.5, kafka_append_seconds=2.0, kafka_ask_seconds=LIMITS.kafka_ask_seconds)

_numbers = itertools.count(1)


def new_topic() -> str:
    """Of a name that no other test and no other run has."""
    return f"webhooks.{os.getpid()}.{next(_numbers)}"


class Ground:
    """One service, on one topic."""

    def __init__(self, service: app.Service, kafka: KafkaSettings) -> None:
        self.service = service
        self.kafka = kafka

    async def take_in(self, until: Callable[[Taken], bool] = lambda _all: False) -> Taken:
        """Run the intake until enough was taken in all, or Kafka has nothing more for this database."""
        intake = self.service.intake
        assert intake is not None
        records = fresh = aside = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                taken = await intake.run_once()
                records, fresh, aside = records + taken.records, fresh + taken.fresh, aside + taken.aside
                together = Taken(records=records, fresh=fresh, aside=aside)
                if until(together) or (not taken.records and await self.behind() == 0):
                    return together

    async def behind(self) -> int:
        backlog = await self.service.log.backlog()
        assert backlog is not None
        return backlog.behind

    def put(self, value: bytes | None, key: bytes = b"") -> None:
        """A record of somebody else's."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0})
        producer.produce(self.kafka.topic, value, key)
        assert producer.flush(PATIENCE_SECONDS) == 0


@asynccontextmanager
async def grounds(
    dsn: str,
    bootstrap: str,
    topic: str | None = None,
    *,
    limits: Limits = CALM,
    checking: bool = True,
    simulator_url: str | None = None,
) -> AsyncIterator[Ground]:
    kafka = KafkaSettings(bootstrap, topic or new_topic())
    settings = Settings(database_url=dsn, kafka=kafka, simulator_webhook_secret=TRUSTED, reservation_grace_seconds=0.0)
    async with app.running(settings, limits=limits, simulator_url=simulator_url) as service:
        if checking:
            await service.log.check()
        yield Ground(service, kafka)


def make_topic(
    bootstrap: str,
    *,
    partitions: int = 3,
    placed: list[list[int]] | None = None,
    config: dict[str, str] | None = None,
) -> str:
    """A topic with settings of its own; `placed` names the brokers of each partition."""
    name = new_topic()
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wanted = config or {}
    topic = (
        NewTopic(name, partitions, 1, config=wanted)
        if placed is None
        else NewTopic(name, len(placed), replica_assignment=placed, config=wanted)
    )
    (making,) = admin.create_topics([topic]).values()
    making.result(PATIENCE_SECONDS)
    while True:
        found = admin.list_topics(timeout=10).topics.get(name)
        if found is not None and all(partition.leader >= 0 for partition in found.partitions.values()):
            return name


def whole_topic(bootstrap: str, topic: str) -> list[Any]:
    """Every message in it up to now, read to the ends that the brokers name, by an independent consumer."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}.looker", "log_level": 0})
    partitions = consumer.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions
    found: list[Any] = []
    for number in partitions:
        start, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=PATIENCE_SECONDS)
        consumer.assign([TopicPartition(topic, number, start)])
        for _ in range(start, end):
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            assert message.error() is None
            found.append(message)
    consumer.close()
    return found
