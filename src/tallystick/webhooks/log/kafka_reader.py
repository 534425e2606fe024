"""Reading the topic: as one of a group of consumers, each record until it was stored and that was noted.

    read ──> (stored in the database, with how far that is) ──> noted in Kafka too
      └── not stored: rewound, and read again

Where to begin is the lower of two notes, the database's and Kafka's. The database's moves in the commit that stores the
records, so it is never ahead of them, not even in a database that was restored from a backup. Kafka's is gone when the
topic was made anew. Whatever is read twice the guard knows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from tallystick.errors import LogUnreachable, Unreachable, require
from tallystick.settings import LIMITS, Limits
from tallystick.webhooks.log.kafka_topic import KafkaTopic, explained
from tallystick.webhooks.record import Batch, Gap, Record

log = structlog.get_logger("tallystick.webhooks.log")

T = TypeVar("T")
# Of these partitions, how far the database has read; one it never read is absent.
Offsets = Callable[[Sequence[int]], Awaitable[dict[int, int]]]

# A consumer that does not read for this long is held to hang, and its partitions go to another: far longer than the
# longest pause under pressure and a transaction together.
_LONGEST_TURN_SECONDS: Final = 300


class KafkaReader:
    """One consumer. Opened by the first `read`, and after a failure by the next one. One call at a time."""

    def __init__(self, topic: KafkaTopic, offsets: Offsets, *, limits: Limits = LIMITS) -> None:
        """`offsets` is asked whenever partitions are given to this consumer."""
        self._topic = topic
        self._offsets = offsets
        self._limits = limits
        self._consumer: Consumer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # The client blocks, and takes calls from one thread at a time.
        self._thread: ThreadPoolExecutor | None = None
        # The next record of each partition that is ours: one that is missing was deleted unread.
        self._next: dict[int, int] = {}

    async def read(self, most: int) -> Batch:
        """Records in the order of each partition; none after a moment without any. Raises LogUnreachable.

        Nothing is lost by what it raises: the consumer begins again where the database is.
        """
        self._loop = asyncio.get_running_loop()
        try:
            return await self._in_thread(lambda: self._read(most))
        except BaseException:
            await self.close()
            raise

    async def commit(self, batch: Batch) -> None:
        """Note in Kafka that it was read, for whoever takes over and for the figures. Raises LogUnreachable."""
        ends = [TopicPartition(self._topic.name, partition, offset) for partition, offset in batch.ends().items()]
        await self._in_thread(lambda: self._commit(ends))

    async def rewind(self, batch: Batch) -> None:
        """Have it read again. Where that cannot be done in place, the next read begins where the database is."""
        try:
            await self._in_thread(lambda: self._rewind(batch.begins()))
        except LogUnreachable:
            await self.close()

    async def close(self) -> None:
        """Leave the group: others take over at once."""
        thread, self._thread = self._thread, None
        consumer, self._consumer = self._consumer, None
        self._next.clear()
        if thread is None:
            return
        if consumer is not None:
            with suppress(KafkaException, RuntimeError):
                await asyncio.get_running_loop().run_in_executor(thread, consumer.close)
        thread.shutdown(wait=False)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "kafka consumer")
        running = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            return await asyncio.shield(running)
        except KafkaException as error:
            raise LogUnreachable(explained(error)) from error
        except asyncio.CancelledError:
            # The thread cannot be cancelled; what it does is bounded, and must be over before anything else is asked.
            await asyncio.gather(running, return_exceptions=True)
            raise

    def _read(self, most: int) -> Batch:
        consumer = self._opened()
        # Waiting for a whole batch would keep a lone webhook waiting: one, and then what is there already.
        first = consumer.poll(self._limits.kafka_read_seconds)
        if first is None:
            return Batch(self._topic.name)
        records: list[Record] = []
        gaps: list[Gap] = []
        for message in (first, *consumer.consume(most - 1, 0)) if most > 1 else (first,):
            error = message.error()
            if error is not None:
                # The consumer is closed by it, so those read before are read again.
                raise LogUnreachable(f"topic {self._topic.name}: {explained(error)}")
            self._take(message, records, gaps)
        return Batch(self._topic.name, tuple(records), tuple(gaps))

    def _take(self, message: Message, records: list[Record], gaps: list[Gap]) -> None:
        partition, offset = message.partition() or 0, message.offset() or 0
        expected = self._next.get(partition, offset)
        if offset > expected:
            gaps.append(Gap(partition, expected, offset))
        self._next[partition] = offset + 1
        kind, milliseconds = message.timestamp()
        appended = None if kind == TIMESTAMP_NOT_AVAILABLE else milliseconds / 1_000
        records.append(Record(partition, offset, message.key(), message.value(), appended))

    def _commit(self, ends: list[TopicPartition]) -> None:
        if self._consumer is not None:
            self._consumer.commit(offsets=ends, asynchronous=False)

    def _rewind(self, begins: dict[int, int]) -> None:
        for partition, offset in begins.items():
            self._next[partition] = offset
            if self._consumer is not None:
                self._consumer.seek(TopicPartition(self._topic.name, partition, offset))

    def _opened(self) -> Consumer:
        if self._consumer is None:
            limits = self._limits
            consumer = Consumer(
                {
                    **self._topic.config,
                    "group.id": self._topic.group,
                    # Noted by us, when the database has it.
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",
                    "session.timeout.ms": int(limits.kafka_session_seconds * 1_000),
                    "heartbeat.interval.ms": int(limits.kafka_session_seconds * 1_000 / 4),
                    "max.poll.interval.ms": _LONGEST_TURN_SECONDS * 1_000,
                    "queued.max.messages.kbytes": limits.kafka_read_bytes // 1024,
                    "fetch.message.max.bytes": limits.kafka_record_bytes,
                    "fetch.max.bytes": max(limits.kafka_read_bytes, limits.kafka_record_bytes),
                    # Made by the check at the start, and not by asking for it.
                    "allow.auto.create.topics": False,
                }
            )
            consumer.subscribe([self._topic.name], on_assign=self._assigned, on_revoke=self._revoked)
            self._consumer = consumer
        return self._consumer

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Called from within `poll`, in the consumer's thread, while the loop waits for it."""
        seconds = self._limits.kafka_ask_seconds
        numbers = [given.partition for given in partitions]
        require(self._loop is not None, "a consumer reads within a loop")
        try:
            stored = asyncio.run_coroutine_threadsafe(_awaited(self._offsets(numbers)), self._loop).result(seconds)  # type: ignore[arg-type]
        except TimeoutError as error:
            raise Unreachable(f"it did not say within {seconds:g} s how far it has read") from error
        noted = {found.partition: max(found.offset, 0) for found in consumer.committed(partitions, timeout=seconds)}
        for given in partitions:
            begin = min(stored.get(given.partition, 0), noted.get(given.partition, 0))
            self._next[given.partition] = begin
            given.offset = begin or OFFSET_BEGINNING
        consumer.assign(partitions)
        log.info("topic_assigned", topic=self._topic.name, partitions=numbers)

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for taken in partitions:
            self._next.pop(taken.partition, None)


async def _awaited(asking: Awaitable[T]) -> T:
    return await asking
