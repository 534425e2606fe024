"""The log on Kafka: a delivery is a record, durable when every replica in sync has it; a consumer feeds the database.

    append ──> record (buffer, bounded) ──> Kafka, acks=all ──> acknowledged ──> 200
                  └── full: Busy               └── not within seconds: LogUnreachable, 503; the provider sends it again

A delivery is one record, so it is stored whole or not at all. One that was given up may have been written after all:
the guard of the database recognises it when the provider tells it again.
"""

import asyncio
import threading
from collections import deque
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from tallystick.errors import Busy, LogUnreachable, require
from tallystick.settings import LIMITS, Limits
from tallystick.webhooks.log.kafka_topic import KafkaTopic, explained
from tallystick.webhooks.log.port import Backlog, Delivery
from tallystick.webhooks.record import encode, key

log = structlog.get_logger("tallystick.webhooks.log")

# How long the client's thread waits for news before it looks whether it should end.
_POLL_SECONDS: Final = 0.1
# How long a client that is given up may take to tell its callers.
_DROP_SECONDS: Final = 5.0
# Failures are told once in so many seconds: there may be thousands at once.
_TELL_SECONDS: Final = 5.0

_Answer = tuple["asyncio.Future[int]", int, KafkaError | None]


class KafkaLog:
    """Appends to a topic. Use as an async context manager; leaving it waits, bounded, for what is on its way."""

    def __init__(self, topic: KafkaTopic, *, limits: Limits = LIMITS) -> None:
        """Connects by itself, and again whenever it must."""
        self._topic = topic
        self._limits = limits
        self._producer: Producer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = True
        self._ended = threading.Event()
        self._is_fatal = False
        self._waiting: set[asyncio.Future[int]] = set()
        # Filled by the client's thread, emptied by the loop's.
        self._answers: deque[_Answer] = deque()
        self._is_telling = False
        self._told_at = -_TELL_SECONDS

    async def __aenter__(self) -> Self:
        """Start the client."""
        self._loop = asyncio.get_running_loop()
        self._producer = self._made()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, args=(self._producer,), name="kafka producer", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Refuse what comes now, let what is on its way be acknowledged or given up, stop."""
        self._closing = True
        try:
            if self._waiting:
                await asyncio.wait(self._waiting, timeout=self._limits.kafka_append_seconds + 1)
        finally:
            if self._thread is not None:
                self._ended.set()
                await asyncio.to_thread(self._thread.join)
            self._tell()
            for future in self._waiting:
                if not future.done():
                    future.set_exception(LogUnreachable("this process ends"))

    @property
    def waiting(self) -> int:
        """Deliveries that Kafka has not acknowledged yet."""
        return len(self._waiting)

    def append(self, delivery: Delivery) -> "asyncio.Future[int]":
        """See the port. Whether an event was told before is found out by whoever reads the topic: all are counted."""
        loop, producer = self._loop, self._producer
        if self._closing or loop is None or producer is None or len(self._waiting) >= self._limits.queue:
            raise Busy(self._limits.retry_after_seconds)
        future: asyncio.Future[int] = loop.create_future()
        told = len(delivery.events)
        if not told:
            future.set_result(0)
            return future
        value = encode(delivery.provider, delivery.events)
        try:
            producer.produce(
                self._topic.name,
                value,
                key(delivery.provider, delivery.events),
                on_delivery=partial(self._delivered, future, told),
            )
        except BufferError as full:
            raise Busy(self._limits.retry_after_seconds) from full
        except KafkaException as error:
            self._note(error.args[0])
            future.set_exception(LogUnreachable(explained(error)))
            return future
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    async def check(self) -> tuple[str, ...]:
        """See the port."""
        return await self._topic.check()

    async def backlog(self) -> Backlog | None:
        """See the port."""
        return await self._topic.backlog()

    def _made(self) -> Producer:
        limits = self._limits
        return Producer(
            {
                **self._topic.config,
                "acks": "all",
                "enable.idempotence": True,
                "message.timeout.ms": int(limits.kafka_append_seconds * 1_000),
                "linger.ms": limits.kafka_linger_seconds * 1_000,
                "compression.type": "lz4",
                "message.max.bytes": limits.kafka_record_bytes,
                # The bound is ours. The client counts a message for a moment after it was acknowledged.
                "queue.buffering.max.messages": limits.queue * 2,
                # What the receiver holds at once, and what was read from it.
                "queue.buffering.max.kbytes": 2 * limits.webhook_bytes // 1024,
                # As Java clients place a key.
                "partitioner": "murmur2_random",
                "error_cb": self._note,
            }
        )

    def _serve(self, producer: Producer) -> None:
        """The client's thread: acknowledgements are called back from here."""
        while not self._ended.is_set():
            producer.poll(_POLL_SECONDS)
            if self._is_fatal:
                # Its sequence of records is broken for good; those on their way are given up, and told so.
                self._is_fatal = False
                broken, producer = producer, self._made()
                self._producer = producer
                _dropped(broken)
        _dropped(producer)

    def _note(self, error: KafkaError) -> None:
        """Called from either thread."""
        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 - the client's public names begin so
            self._is_fatal = True

    def _delivered(self, future: "asyncio.Future[int]", told: int, error: KafkaError | None, _message: Any) -> None:  # noqa: ANN401
        """From the client's thread. Many come at once: the loop is woken for the first only."""
        if error is not None:
            self._note(error)
        self._answers.append((future, told, error))
        if not self._is_telling:
            self._is_telling = True
            require(self._loop is not None, "a client runs within a loop")
            self._loop.call_soon_threadsafe(self._tell)  # type: ignore[union-attr]

    def _tell(self) -> None:
        """Answer the callers, on the loop."""
        # Before the first is taken: what is added from now on wakes the loop again.
        self._is_telling = False
        answers = self._answers
        while answers:
            future, told, error = answers.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(told)
            else:
                self._warn(error)
                future.set_exception(LogUnreachable(explained(error)))

    def _warn(self, error: KafkaError) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= _TELL_SECONDS:
            self._told_at = now
            log.warning("webhook_not_appended", topic=self._topic.name, reason=explained(error), waiting=self.waiting)


def _dropped(producer: Producer) -> None:
    """Give up what it holds; each caller is told."""
    producer.purge()
    producer.flush(_DROP_SECONDS)
