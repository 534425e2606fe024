"""Three brokers, one killed (SIGKILL) while webhooks arrive: every one that was acknowledged is in the database, once.

TALLY_TEST_SEED chooses when the kill comes; the counts are printed.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tallystick.webhooks.receiver import WebhookReceiver
from tests import kafka as brokers
from tests import servers
from tests.deliveries import body, stored
from tests.http.test_webhook import ask
from tests.ledgers import broken
from tests.servers import cannot_be_tested
from tests.webhooks.log.grounds import PATIENCE_SECONDS, QUICK, Ground, grounds, make_topic

SEED = int(os.environ.get("TALLY_TEST_SEED", "7"))
CALLERS = 20


@pytest.fixture
def cluster() -> Iterator[brokers.Cluster]:
    """Three brokers of its own: one will be killed."""
    for lacking in brokers.missing():
        cannot_be_tested(f"{lacking.name}: {lacking.reason}")
    made = brokers.Cluster(3)
    try:
        made.start()
        yield made
    finally:
        made.remove()


def partition(bootstrap: str, topic: str) -> Any:
    """Its first partition as the brokers know it: leader, replicas, those in sync."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return admin.list_topics(timeout=10).topics[topic].partitions[0]


class Provider:
    """Tells events on many connections; what was not acknowledged is told again."""

    def __init__(self, receiver: WebhookReceiver) -> None:
        self._receiver = receiver
        self._next = 0
        self._again: list[int] = []
        self.acknowledged: set[int] = set()
        self.refused = 0

    async def tell(self, enough: Callable[[], bool]) -> None:
        async def caller() -> None:
            while not enough() or self._again:
                number = self._again.pop() if self._again else self._take()
                status, _, _ = await ask(self._receiver, body(number))
                assert status in (200, 503)
                if status == 200:
                    self.acknowledged.add(number)
                else:
                    self.refused += 1
                    self._again.append(number)

        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*(caller() for _ in range(CALLERS)))

    def _take(self) -> int:
        self._next += 1
        return self._next


async def test_a_broker_killed_under_load_loses_and_doubles_nothing(
    embedded18: servers.Server, cluster: brokers.Cluster, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(SEED)
    dsn = embedded18.fresh_database()
    # Long enough for another broker to be chosen as the leader.
    limits = replace(QUICK, kafka_append_seconds=15.0)
    async with grounds(dsn, cluster.bootstrap, limits=limits) as ground:
        victim: int = partition(cluster.bootstrap, ground.kafka.topic).leader
        other = victim % 3 + 1
        pair = make_topic(cluster.bootstrap, placed=[[other, victim]], config={"min.insync.replicas": "2"})
        notes = await ground.service.log.check()
        assert notes == (), "a topic made on three brokers has no weakness"
        provider = Provider(WebhookReceiver(ground.service, limits=limits))
        enough = asyncio.Event()
        working = asyncio.create_task(_take_in(ground, enough))

        async def kill() -> None:
            most = chance.randrange(100, 300)
            while len(provider.acknowledged) < most:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(cluster.brokers[victim - 1].kill)
            most = len(provider.acknowledged) + 300
            while len(provider.acknowledged) < most:
                await asyncio.sleep(0.001)
            enough.set()

        await asyncio.gather(provider.tell(enough.is_set), kill())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(await stored(dsn)) < len(provider.acknowledged):
                await asyncio.sleep(0.05)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert set(await stored(dsn)) == {f"evt_{number}" for number in provider.acknowledged}
    assert await broken(dsn) == {}

    await _too_few_replicas(embedded18.fresh_database(), cluster, pair, cluster.brokers[victim - 1])
    record_property(
        "counted",
        f"kafka, three brokers, one killed: seed {SEED}: {len(provider.acknowledged)} acknowledged, "
        f"{provider.refused} answered 503 and told again, 0 lost, 0 doubled",
    )


async def _take_in(ground: Ground, enough: asyncio.Event) -> None:
    """As the worker does, without its pauses."""
    intake: Any = ground.service.intake
    while True:
        try:
            await intake.run_once()
        except Exception:  # noqa: BLE001 - a broker is gone: the same again
            await asyncio.sleep(0.05)


async def _too_few_replicas(dsn: str, cluster: brokers.Cluster, topic: str, dead: brokers.Broker) -> None:
    """Two copies are asked for, and one of the two brokers is gone: one copy is no acknowledgement."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(partition(cluster.bootstrap, topic).isrs) > 1:
            await asyncio.sleep(0.05)
    async with grounds(dsn, cluster.bootstrap, topic, limits=QUICK, checking=False) as ground:
        receiver = WebhookReceiver(ground.service, limits=QUICK)
        status, told, problem = await ask(receiver, body(1))
        assert (status, told["retry-after"], problem["code"]) == (503, "1", "webhook_not_stored")
        dead.start()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await ask(receiver, body(1)))[0] != 200:
                pass
        await ground.take_in()
    assert set(await stored(dsn)) == {"evt_1"}
