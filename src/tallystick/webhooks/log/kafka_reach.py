"""How far the topic reaches, and how far of it is in the database: what the sweeper's watermark asks of Kafka."""

from collections.abc import Awaitable, Callable, Sequence

from tallystick.webhooks.log.kafka_topic import KafkaTopic

Stored = Callable[[Sequence[int]], Awaitable[dict[int, int]]]


class KafkaReach:
    """One topic, beside one database."""

    def __init__(self, topic: KafkaTopic, stored: Stored) -> None:
        """`stored` is the database's own note of how far it has read."""
        self._topic = topic
        self._stored = stored

    async def ends(self) -> dict[int, int]:
        """The high-water mark of each partition. Raises LogUnreachable."""
        return await self._topic.ends()

    async def read(self) -> dict[int, int]:
        """How far each partition was read. Raises LogUnreachable and Unreachable.

        The lower of two notes, as for the consumer itself: the database's is ahead of a topic that was made anew, and
        Kafka's of a database that was restored.
        """
        noted = await self._topic.noted()
        stored = await self._stored(list(noted))
        return {partition: min(offset, stored.get(partition, 0)) for partition, offset in noted.items()}
