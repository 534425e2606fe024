"""The topic: made if it is missing, looked at when a process starts, and asked how far it was read.

What makes an acknowledgement worth something is the topic's, not the client's: how many brokers have a record before it
is acknowledged, and how long they keep it. Where it is weaker than it could be, that is told, plainly.
"""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

import msgspec
import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from tallystick.errors import LogUnreachable, Misconfigured
from tallystick.settings import KafkaSettings, Limits
from tallystick.webhooks.log.port import Backlog

log = structlog.get_logger("tallystick.webhooks.log")

# As many copies as are usual; two of them must have a record before it is acknowledged.
_REPLICAS: Final = 3
_IN_SYNC: Final = 2
# What a broker says of a topic that others have just made.
_NOT_YET: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)
# And of a group that it has just begun to look after.
_COORDINATING: Final = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
_MADE_ROUNDS: Final = 50
_MADE_PAUSE_SECONDS: Final = 0.1
_DAY: Final = 86_400


def explained(error: KafkaException | KafkaError) -> str:
    """What the client says of it: its words hold addresses and names, and no credentials."""
    inner = error.args[0] if isinstance(error, KafkaException) else error
    return f"{inner.name()}: {inner.str()}" if isinstance(inner, KafkaError) else str(inner)


def client(settings: KafkaSettings, limits: Limits) -> dict[str, Any]:
    """What every client of this process is told."""
    return {
        **settings.security,
        "bootstrap.servers": settings.bootstrap,
        "client.id": "tallystick",
        # A broker that comes back is noticed at once, not after ten seconds.
        "reconnect.backoff.max.ms": 1_000,
        "socket.timeout.ms": int(limits.transaction_seconds * 1_000),
        "socket.keepalive.enable": True,
        # It would write to stderr on its own; what matters comes as an error.
        "log_level": 2,
    }


class _Found(msgspec.Struct, frozen=True):
    """A topic as it is."""

    brokers: int
    # Of the partition that has the fewest.
    replicas: int
    partitions: int
    config: Mapping[str, str] | None


class KafkaTopic:
    """One topic on one cluster. Nothing is asked before it is asked for."""

    def __init__(self, settings: KafkaSettings, limits: Limits) -> None:
        """Raises Misconfigured when the client does not take the settings."""
        self.name = settings.topic
        self.group = f"tallystick.{settings.topic}"
        self._limits = limits
        self._config = client(settings, limits)
        self._member: Consumer | None = None
        self._guard = threading.Lock()
        try:
            self._admin = AdminClient(self._config)
        except (KafkaException, ValueError, TypeError) as error:
            reason = explained(error) if isinstance(error, KafkaException) else str(error)
            raise Misconfigured(f"TALLY_KAFKA_SECURITY: the client does not take it: {reason}") from error

    @property
    def config(self) -> dict[str, Any]:
        """For another client of the same cluster."""
        return dict(self._config)

    async def check(self) -> tuple[str, ...]:
        """Make the topic if there is none; what should be known of it. Raises LogUnreachable and Misconfigured."""
        found = await self._look()
        made: tuple[str, ...] = ()
        if found is None:
            made = (await self._make(),)
            found = await self._look_again()
        return (*made, *self._weaknesses(found))

    async def backlog(self) -> Backlog:
        """How far consumers are behind. Raises LogUnreachable."""
        partitions = await self._partitions()
        read = await self._noted(partitions)
        end = await self._ends(partitions)
        behind = sum(max(0, offset - read.get(partition, 0)) for partition, offset in end.items())
        return Backlog(behind=behind, read=sum(read.values()))

    async def ends(self) -> dict[int, int]:
        """The high-water mark of each partition: whatever was acknowledged lies before it. Raises LogUnreachable."""
        return await self._ends(await self._partitions())

    async def noted(self) -> dict[int, int]:
        """How far each partition was read, by Kafka's own note. Raises LogUnreachable."""
        return await self._noted(await self._partitions())

    async def _partitions(self) -> list[TopicPartition]:
        metadata = await self._metadata()
        if self.name not in metadata.topics:
            raise LogUnreachable(f"there is no topic {self.name}")
        return [TopicPartition(self.name, partition) for partition in metadata.topics[self.name].partitions]

    async def _ends(self, partitions: list[TopicPartition]) -> dict[int, int]:
        """Where the next record of each partition will lie."""
        wanted = {partition: OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]
        for left in reversed(range(_MADE_ROUNDS)):
            asked = self._admin.list_offsets(wanted, request_timeout=self._limits.kafka_ask_seconds)
            try:
                return {partition.partition: (await _answer(answer)).offset for partition, answer in asked.items()}
            except LogUnreachable as error:
                if not left or _code(error) not in _NOT_YET:
                    raise
            await asyncio.sleep(_MADE_PAUSE_SECONDS)
        return {}

    async def _noted(self, partitions: list[TopicPartition]) -> dict[int, int]:
        """How far Kafka has noted that consumers have read."""
        for left in reversed(range(_MADE_ROUNDS)):
            try:
                found = await asyncio.to_thread(self._committed, partitions)
            except LogUnreachable as error:
                if not left or _code(error) not in _COORDINATING:
                    raise
            else:
                return {one.partition: max(one.offset, 0) for one in found}
            await asyncio.sleep(_MADE_PAUSE_SECONDS)
        return {}

    def _committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Asked as a member of the group would, who never joins it: see decision 0016."""
        with self._guard:
            if self._member is None:
                self._member = Consumer({**self._config, "group.id": self.group, "enable.auto.commit": False})
            member = self._member
        try:
            found: list[TopicPartition] = member.committed(partitions, timeout=self._limits.kafka_ask_seconds)
        except KafkaException as error:
            raise LogUnreachable(explained(error)) from error
        failed = next((one.error for one in found if one.error is not None), None)
        if failed is not None:
            raise LogUnreachable(explained(failed)) from KafkaException(failed)
        return found

    async def _metadata(self) -> Any:  # noqa: ANN401 - the client's own
        try:
            # All topics: asking for one by name would let a broker make it, as weak as its defaults are.
            return await asyncio.to_thread(self._admin.list_topics, timeout=self._limits.kafka_ask_seconds)
        except KafkaException as error:
            raise LogUnreachable(explained(error)) from error

    async def _look(self) -> _Found | None:
        metadata = await self._metadata()
        topic = metadata.topics.get(self.name)
        if topic is None or (topic.error is not None and topic.error.code() in _NOT_YET):
            return None
        if topic.error is not None:
            raise LogUnreachable(f"topic {self.name}: {explained(topic.error)}")
        resource = ConfigResource(ResourceType.TOPIC, self.name)
        try:
            (asked,) = self._admin.describe_configs([resource], request_timeout=self._limits.kafka_ask_seconds).values()
            config = {name: entry.value for name, entry in (await _answer(asked)).items()}
        except LogUnreachable:
            # Who may write need not be allowed to look.
            config = None
        replicas = min((len(partition.replicas) for partition in topic.partitions.values()), default=0)
        return _Found(len(metadata.brokers), replicas, len(topic.partitions), config)

    async def _look_again(self) -> _Found:
        """Until every broker that is asked knows the topic."""
        for _ in range(_MADE_ROUNDS):
            found = await self._look()
            if found is not None:
                return found
            await asyncio.sleep(_MADE_PAUSE_SECONDS)
        raise LogUnreachable(f"topic {self.name} was made and is not there yet")

    async def _make(self) -> str:
        brokers = len((await self._metadata()).brokers)
        replicas = min(_REPLICAS, brokers)
        config = {
            "min.insync.replicas": str(min(_IN_SYNC, brokers)),
            "cleanup.policy": "delete",
            "retention.ms": str(int(self._limits.kafka_retention_seconds * 1_000)),
            "max.message.bytes": str(self._limits.kafka_record_bytes),
            "unclean.leader.election.enable": "false",
        }
        topic = NewTopic(self.name, self._limits.kafka_partitions, replicas, config=config)
        (making,) = self._admin.create_topics([topic], request_timeout=self._limits.kafka_ask_seconds).values()
        try:
            await _answer(making)
        except LogUnreachable as error:
            code = _code(error)
            if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
                raise Misconfigured(
                    f"TALLY_KAFKA_TOPIC: there is no topic {self.name}, and it may not be made with these credentials. "
                    f"Make it as docs/operating.md says."
                ) from error
            # Another process that starts now was quicker.
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return (
            f"Kafka topic {self.name} was missing, and was made: {self._limits.kafka_partitions} partitions, "
            f"{replicas} replica(s), min.insync.replicas={config['min.insync.replicas']}."
        )

    def _weaknesses(self, found: _Found) -> tuple[str, ...]:
        """Everything that could lose an acknowledged webhook, or refuse all of them."""
        said: list[str] = []
        if found.brokers < _IN_SYNC or found.replicas < _IN_SYNC:
            said.append(
                f"{found.brokers} broker(s), {found.replicas} replica(s): what is acknowledged is on one disk only, "
                f"and lost with it. Use at least two brokers, better three, and as many replicas."
            )
        config = found.config
        if config is None:
            return tuple(self._said(line) for line in (*said, "its settings may not be read with these credentials."))
        in_sync = int(config.get("min.insync.replicas", 1))
        if found.replicas >= _IN_SYNC and in_sync < _IN_SYNC:
            said.append(
                f"min.insync.replicas={in_sync}: a webhook is acknowledged with one copy, and lost with that broker. "
                f"Set it to {_IN_SYNC}."
            )
        if in_sync > found.replicas:
            said.append(
                f"min.insync.replicas={in_sync} with {found.replicas} replica(s): older brokers answer 503 to every "
                f"webhook, newer ones are content with the replicas there are. Add replicas."
            )
        kept = int(config.get("retention.ms", -1)) / 1_000
        if 0 <= kept < self._limits.kafka_retention_seconds:
            said.append(
                f"retention.ms keeps records for {kept / _DAY:.1f} days: what is not read by then is lost. "
                f"Keep them for {self._limits.kafka_retention_seconds / _DAY:g} days."
            )
        if int(config.get("retention.bytes", -1)) >= 0:
            said.append("retention.bytes is set: a flood deletes records that nobody has read. Set it to -1.")
        if "compact" in config.get("cleanup.policy", "delete"):
            said.append("cleanup.policy compacts: records of one key replace each other. Set it to delete.")
        if int(config.get("max.message.bytes", 0)) < self._limits.kafka_record_bytes:
            said.append(
                f"max.message.bytes={config.get('max.message.bytes')}: the largest webhooks will be answered with 503. "
                f"Set it to {self._limits.kafka_record_bytes}."
            )
        if config.get("unclean.leader.election.enable") == "true":
            said.append("unclean.leader.election.enable: a broker that is behind may take over and lose what it lacks.")
        return tuple(self._said(line) for line in said)

    def _said(self, line: str) -> str:
        return f"Kafka topic {self.name}: {line}"


async def _answer(asked: "Future[Any]") -> Any:  # noqa: ANN401 - whatever was asked for
    try:
        return await asyncio.wrap_future(asked)
    except KafkaException as error:
        raise LogUnreachable(explained(error)) from error


def _code(error: LogUnreachable) -> int | None:
    cause = error.__cause__
    return cause.args[0].code() if isinstance(cause, KafkaException) else None
