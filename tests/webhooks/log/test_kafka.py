"""Webhooks on a real Kafka: acknowledged by it before they are acknowledged by us, and then in the database once."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from tallystick import app
from tallystick.access.store import ensure_tenant
from tallystick.checkout.order.store import OrderView, Reserved
from tallystick.checkout.order.worker import SweeperWorker
from tallystick.checkout.payment.rules import Paying
from tallystick.errors import Busy, InFlight, LogUnreachable
from tallystick.ledger.claims import Tenant
from tallystick.providers.words import Event
from tallystick.settings import Settings
from tallystick.webhooks.intake import store
from tallystick.webhooks.log.kafka import KafkaLog
from tallystick.webhooks.log.port import Delivery
from tallystick.webhooks.receiver import WebhookReceiver
from tallystick.webhooks.record import encode, key
from tests import kafka as brokers
from tests import servers
from tests.checkouts import CARD, given_up
from tests.deliveries import TRUSTED, body, delivery, event, stored
from tests.http.test_webhook import ask
from tests.ledgers import broken, fetchval
from tests.orders import wish
from tests.payments import charged
from tests.providers.worlds import Control
from tests.sagas import expire
from tests.webhooks.log.grounds import (
    PATIENCE_SECONDS,
    QUICK,
    Ground,
    grounds,
    make_topic,
    new_topic,
    whole_topic,
)

ROWS = (
    "SELECT provider, event_id, type, purpose, provider_id, reference, parent, amount_micros, currency, state, word,"
    " occurred_at, status, body FROM tally.webhook_events JOIN tally.webhook_body USING (received_at, number)"
    " ORDER BY provider, event_id"
)

POISON = "SELECT array_agg(reason ORDER BY partition, first_offset) FROM tally.webhook_poison WHERE resolved_at IS NULL"


@pytest.fixture
def dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


async def rows(dsn: str) -> list[tuple[Any, ...]]:
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row) for row in await connection.fetch(ROWS)]
    finally:
        await connection.close()


@contextmanager
def halted(kafka: brokers.Single) -> Iterator[None]:
    kafka.halt()
    try:
        yield
    finally:
        kafka.go_on()


def odd_event(number: int, **more: Any) -> Event:
    """One that tells of no money, with whatever else is asked for."""
    facts: dict[str, Any] = {
        "provider": "stripe",
        "type": "radar.new",
        "dedup_key": f"odd_{number}",
        "change_key": "c",
        "object_id": "o",
        "occurred_at": None,
        "movement": None,
        "body": b"\x00\xff{}",
        **more,
    }
    return Event(**facts)


TOLD = (
    delivery(1),
    delivery(2, 3, 4),
    delivery(5, provider="stripe"),
    delivery(1, provider="stripe"),
    delivery(6, type="transfer.reversed", thing={"id": "x", "object": "unheard"}),
    Delivery("adyen", (odd_event(1), odd_event(2, type="t" * 900, dedup_key="k" * 900))),
    Delivery("wise", (odd_event(3, occurred_at=datetime(2024, 2, 29, 23, 59, 59, 123_456, UTC)),)),
)


async def test_the_database_gets_exactly_what_the_receiver_would_have_stored(
    embedded18: servers.Server, kafka: brokers.Single
) -> None:
    direct, through = embedded18.fresh_database(), embedded18.fresh_database()
    async with app.running(Settings(database_url=direct, simulator_webhook_secret=TRUSTED)) as service:
        for told in TOLD:
            await service.log.append(told)
    async with grounds(through, kafka.bootstrap) as ground:
        assert [await ground.service.log.append(told) for told in TOLD] == [len(told.events) for told in TOLD]
        assert await rows(through) == []
        taken = await ground.take_in()
        assert (taken.records, taken.fresh, taken.aside) == (len(TOLD), 10, 0)
    assert await rows(through) == await rows(direct)
    assert await broken(through) == {}


async def test_an_event_told_again_is_there_once_whoever_reads_it(dsn: str, kafka: brokers.Single) -> None:
    """Also after a restart, and when one delivery holds what another told alone."""
    topic = new_topic()
    async with grounds(dsn, kafka.bootstrap, topic) as ground:
        for told in (delivery(1), delivery(1), delivery(1, 2)):
            await ground.service.log.append(told)
        assert (await ground.take_in()).fresh == 2
    async with grounds(dsn, kafka.bootstrap, topic) as ground:
        await asyncio.gather(*(ground.service.log.append(told) for told in (delivery(2), delivery(3), delivery(3))))
        taken = await ground.take_in()
        assert (taken.records, taken.fresh) == (3, 1)
    assert set(await stored(dsn)) == {"evt_1", "evt_2", "evt_3"}
    assert await broken(dsn) == {}


async def test_one_events_tellings_lie_in_one_partition(dsn: str, kafka: brokers.Single) -> None:
    async with grounds(dsn, kafka.bootstrap) as ground:
        for number in range(12):
            await ground.service.log.append(delivery(number))
            await ground.service.log.append(delivery(number))
        found: dict[bytes, set[int]] = {}
        for message in whole_topic(kafka.bootstrap, ground.kafka.topic):
            found.setdefault(message.key(), set()).add(message.partition())
    assert len(found) == 12
    assert all(len(partitions) == 1 for partitions in found.values())
    assert len({partition for partitions in found.values() for partition in partitions}) > 1


async def test_nothing_is_acknowledged_that_kafka_has_not(dsn: str, kafka: brokers.Single) -> None:
    """The broker hangs: 503 with Retry-After within the bounded wait; when it is back, what was told again is there."""
    async with grounds(dsn, kafka.bootstrap, limits=QUICK) as ground:
        receiver = WebhookReceiver(ground.service, limits=QUICK)
        assert (await ask(receiver, body(1)))[0] == 200
        with halted(kafka):
            began = asyncio.get_running_loop().time()
            answers = await asyncio.gather(*(ask(receiver, body(number)) for number in range(2, 6)))
            assert asyncio.get_running_loop().time() - began < QUICK.kafka_append_seconds + 3
        assert {status for status, _, _ in answers} == {503}
        assert {told["retry-after"] for _, told, _ in answers} == {"1"}
        assert {problem["code"] for _, _, problem in answers} == {"webhook_not_stored"}
        assert receiver.refused["simulator", "log_unreachable"] == 4
        assert ground.service.log.waiting == 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            for number in range(1, 6):
                while (await ask(receiver, body(number)))[0] != 200:
                    pass
        await ground.take_in()
    assert set(await stored(dsn)) == {f"evt_{number}" for number in range(1, 6)}
    assert await broken(dsn) == {}


async def test_the_buffer_is_bounded(dsn: str, kafka: brokers.Single) -> None:
    """Past it the caller is told at once, and nobody else is harmed."""
    limits = replace(QUICK, queue=3)
    async with grounds(dsn, kafka.bootstrap, limits=limits) as ground:
        log = ground.service.log
        await log.append(delivery(1))
        with halted(kafka):
            waiting = [log.append(delivery(number)) for number in (2, 3, 4)]
            assert log.waiting == 3
            with pytest.raises(Busy):
                log.append(delivery(5))
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert answers == [1, 1, 1]
        assert await log.append(delivery(5)) == 1


async def test_leaving_answers_everybody(dsn: str, kafka: brokers.Single) -> None:
    topic = new_topic()
    async with grounds(dsn, kafka.bootstrap, topic) as ground:
        log = ground.service.log
        waiting = [log.append(delivery(number)) for number in range(20)]
    assert [future.result() for future in waiting] == [1] * 20
    with pytest.raises(Busy):
        log.append(delivery(1))
    assert len(whole_topic(kafka.bootstrap, topic)) == 20


async def test_a_client_whose_sequence_broke_is_replaced(dsn: str, kafka: brokers.Single) -> None:
    """An idempotent client that lost its place refuses everything for good: a receiver must not."""
    async with grounds(dsn, kafka.bootstrap) as ground:
        log = ground.service.log
        assert isinstance(log, KafkaLog)
        await log.append(delivery(1))
        first = log._producer
        log._note(KafkaError(KafkaError._FATAL, "sequence lost", fatal=True))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while log._producer is first:
                await asyncio.sleep(0.01)
        assert await log.append(delivery(2)) == 1
        assert (await ground.take_in()).fresh == 2


async def test_what_is_no_webhook_goes_aside_and_stops_nobody(dsn: str, kafka: brokers.Single) -> None:
    """Foreign, broken, of a newer version, refused by the database: kept whole, counted once, and read past."""
    good = delivery(1)
    newer = encode(good.provider, good.events).replace(b"webhook/1", b"webhook/2")
    refused = Delivery("simulator", (event(2), odd_event(9, type="a\0b")))
    records = {
        b"somebody else's": "it is no record of Tallystick",
        b"": "it is no record of Tallystick",
        encode(good.provider, good.events)[:-5]: "it cannot be read",
        newer: "it is of a version that this code does not know",
        encode("p" * 41, good.events): "its provider has no name that can be stored",
        encode(refused.provider, refused.events): "the database does not take it: CharacterNotInRepertoireError",
    }
    topic = make_topic(kafka.bootstrap, partitions=1)
    async with grounds(dsn, kafka.bootstrap, topic) as ground:
        await ground.service.log.append(delivery(10))
        for value in records:
            ground.put(value, b"k")
        ground.put(None)
        await ground.service.log.append(delivery(11))
        taken = await ground.take_in()
        assert (taken.records, taken.fresh, taken.aside) == (9, 2, 7)
        assert set(await stored(dsn)) == {"evt_10", "evt_11"}
        assert await fetchval(dsn, POISON) == [*records.values(), "it is no record of Tallystick"]
        kept = await fetchval(dsn, "SELECT array_agg(value ORDER BY first_offset) FROM tally.webhook_poison")
        assert kept == [*records, b""]
        # Read again from the beginning, as after a restore: the same rows.
        await fetchval(dsn, "UPDATE tally.webhook_offset SET next_offset = 0")
        await ground.service.intake.close()  # type: ignore[union-attr]
        again = await ground.take_in(lambda all_: all_.records >= 9)
        assert (again.records, again.fresh, again.aside) == (9, 0, 0)
    assert await broken(dsn) == {}


async def test_records_that_kafka_deleted_unread_are_told(dsn: str, kafka: brokers.Single) -> None:
    """Retention that is shorter than an outage loses what was acknowledged: nobody may find out by chance."""
    topic = make_topic(kafka.bootstrap, partitions=1)
    async with grounds(dsn, kafka.bootstrap, topic) as ground:
        await ground.service.log.append(delivery(1))
        assert (await ground.take_in()).records == 1
        for number in range(2, 7):
            await ground.service.log.append(delivery(number))
        await ground.service.intake.close()  # type: ignore[union-attr]
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        (deleting,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
        deleting.result(PATIENCE_SECONDS)
        taken = await ground.take_in()
        assert (taken.records, taken.fresh, taken.aside) == (2, 2, 1)
        (gap,) = await store.list_poison(ground.service.database, after=0, most=10)
        assert (gap.first_offset, gap.next_offset, gap.bytes) == (1, 4, None)
        assert gap.reason == "the log had deleted these records before they were read"
    assert set(await stored(dsn)) == {"evt_1", "evt_5", "evt_6"}


async def test_a_database_restored_from_a_backup_reads_again_what_it_lost(
    embedded18: servers.Server, kafka: brokers.Single
) -> None:
    """Kafka's own note is ahead of it: a consumer that believed it would skip what is in no database."""
    topic = new_topic()
    async with grounds(embedded18.fresh_database(), kafka.bootstrap, topic) as ground:
        await asyncio.gather(*(ground.service.log.append(delivery(number)) for number in range(30)))
        assert (await ground.take_in()).fresh == 30
        assert await ground.behind() == 0
    restored = embedded18.fresh_database()
    async with grounds(restored, kafka.bootstrap, topic) as ground:
        assert (await ground.take_in(lambda all_: all_.records >= 30)).fresh == 30
    assert len(await stored(restored)) == 30


async def test_the_sweepers_watermark_waits_for_what_lies_in_the_topic(dsn: str, kafka: brokers.Single) -> None:
    """Acknowledged by Kafka it is received, whenever the database has it."""
    async with grounds(dsn, kafka.bootstrap) as ground:
        watermark = ground.service.orders.watermark
        first = await watermark.read()
        assert first is not None
        await ground.service.log.append(delivery(1))
        assert [await watermark.read() for _ in range(3)] == [first] * 3
        assert (await ground.take_in()).fresh == 1
        # Stored, and not decided.
        assert await watermark.read() == first
        assert (await ground.service.events.run_once()).claimed == 1
        second = await watermark.read()
        assert second is not None
        assert second > first


async def test_an_order_paid_in_time_is_not_swept_while_its_webhook_lies_in_the_topic(
    dsn: str, kafka: brokers.Single, control: Control
) -> None:
    """Its time is over, and its provider was given up: nothing but the watermark keeps it for its money."""
    topic = new_topic()
    async with grounds(dsn, kafka.bootstrap, topic, simulator_url=control.url) as ground:
        service, owner = ground.service, await ensure_tenant(ground.service.database, "default")
        sweeper = SweeperWorker(service.orders)
        await sweeper.run_once()
        await service.orders.set_stock(owner, "lamp", 2)
        paid, unpaid = [await _reserved(service, owner, name) for name in ("paid", "unpaid")]
        answer = await service.payments.pay(
            owner, paid.id, paid.reservation_token, idempotency_key="click", payment_method=CARD
        )
        assert isinstance(answer, Paying), answer
        assert (await ask(WebhookReceiver(service), _told(control, answer.payment.payment_intent_id)))[0] == 200
        for order in (paid, unpaid):
            await expire(dsn, order)
        await given_up(dsn, paid.id)
        # Who was never charged waits for nobody.
        assert [(await sweeper.run_once()).cancelled for _ in range(3)] == [1, 0, 0]
        assert await _statuses(service, owner, paid, unpaid) == ["PENDING", "CANCELLED_BY_SWEEPER"]
        assert (await stored(dsn), await ground.behind()) == ({}, 1)
        # Another process has seen no mark yet.
        async with grounds(dsn, kafka.bootstrap, topic, simulator_url=control.url) as other:
            assert (await SweeperWorker(other.service.orders).run_once()).cancelled == 0
        assert (await ground.take_in()).fresh == 1
        assert [(await sweeper.run_once()).cancelled for _ in range(3)] == [0] * 3, "stored, and not decided"
        assert (await service.events.run_once()).claimed == 1
        assert [(await sweeper.run_once()).cancelled for _ in range(3)] == [0] * 3
        assert await _statuses(service, owner, paid) == ["PAID"]
    assert len(charged(control)) == 1


async def _reserved(service: app.Service, owner: Tenant, key: str) -> OrderView:
    made = await service.orders.reserve(owner, wish("lamp", currency="EUR"), key)
    assert isinstance(made, Reserved), made
    return made.view


async def _statuses(service: app.Service, owner: Tenant, *orders: OrderView) -> list[str]:
    found = [await service.orders.read(owner, order.id) for order in orders]
    return [order.status for order in found if isinstance(order, OrderView)]


def _told(control: Control, payment: str | None) -> bytes:
    """What the provider tells of a payment that came."""
    events = control.call("GET", f"events?dialect=stripe&object_id={payment}&limit=100")
    return json.dumps(next(one["body"] for one in events if one["type"] == "payment_intent.succeeded")).encode()


async def test_a_topic_made_anew_is_read_from_its_beginning(dsn: str, kafka: brokers.Single) -> None:
    """The database's note is of the old one: a consumer that believed it would skip the new one's first records."""
    topic = make_topic(kafka.bootstrap, partitions=1)
    async with grounds(dsn, kafka.bootstrap, topic) as ground:
        for number in range(5):
            await ground.service.log.append(delivery(number))
        assert (await ground.take_in()).fresh == 5
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for waiting in admin.delete_topics([topic]).values():
        waiting.result(PATIENCE_SECONDS)
    while topic in admin.list_topics(timeout=10).topics:
        await asyncio.sleep(0.05)
    async with grounds(dsn, kafka.bootstrap, topic) as ground:
        # More than the old one had: its note is a place within the new one.
        for number in range(5, 13):
            await ground.service.log.append(delivery(number))
        assert (await ground.take_in()).fresh == 8
    assert len(await stored(dsn)) == 13


async def test_what_the_database_did_not_take_is_read_again(dsn: str, kafka: brokers.Single) -> None:
    """Somebody holds a key: nothing of the batch is stored, nothing is noted, and all of it comes again."""
    async with grounds(dsn, kafka.bootstrap) as ground:
        for number in range(10):
            await ground.service.log.append(delivery(number))
        holder = await asyncpg.connect(dsn)
        holding = holder.transaction()
        await holding.start()
        await holder.execute("INSERT INTO tally.webhook_guard VALUES ('simulator', 'evt_5', 0)")
        intake = ground.service.intake
        assert intake is not None
        with pytest.raises(InFlight):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    await intake.run_once()
        # A batch before it may have come through; of this one nothing, and its records are not noted as read.
        there = await stored(dsn)
        assert "evt_5" not in there
        assert await fetchval(dsn, "SELECT coalesce(sum(next_offset), 0) FROM tally.webhook_offset") == len(there)
        assert await ground.behind() == 10 - len(there)
        await holding.rollback()
        await holder.close()
        assert (await ground.take_in()).fresh == 10 - len(there)
        assert len(await stored(dsn)) == 10
    assert await broken(dsn) == {}


@pytest.mark.parametrize(("point", "there"), [("before", 0), ("between", 20), ("after", 20)])
async def test_a_consumer_killed_anywhere_loses_and_doubles_nothing(
    dsn: str, kafka: brokers.Single, point: str, there: int
) -> None:
    topic = make_topic(kafka.bootstrap, partitions=1)
    async with grounds(dsn, kafka.bootstrap, topic) as ground:
        await asyncio.gather(*(ground.service.log.append(delivery(number)) for number in range(20)))
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.webhooks.log.intake_child", dsn, kafka.bootstrap, topic, point),
            stdout=subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            said, _ = await child.communicate()
        assert (said.endswith(b"dying\n"), child.returncode) == (True, -9)
        assert len(await stored(dsn)) == there
        await ground.service.log.append(delivery(20))
        taken = await ground.take_in(lambda all_: all_.fresh >= 21 - there)
        assert taken.fresh == 21 - there
        await ground.take_in()
    assert set(await stored(dsn)) == {f"evt_{number}" for number in range(21)}
    assert await broken(dsn) == {}


async def test_two_consumers_share_the_topic(dsn: str, kafka: brokers.Single) -> None:
    """One joins while the other works, and leaves again: each record is stored once, by one or by both."""
    topic = new_topic()
    async with grounds(dsn, kafka.bootstrap, topic) as one, grounds(dsn, kafka.bootstrap, topic) as other:
        done = asyncio.Event()

        async def work(ground: Ground) -> None:
            intake = ground.service.intake
            assert intake is not None
            while not done.is_set():
                await intake.run_once()
            await intake.close()

        async def tell() -> None:
            for number in range(200):
                await one.service.log.append(delivery(number))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(await stored(dsn)) < 200:
                    await asyncio.sleep(0.05)
            done.set()

        await asyncio.gather(work(one), work(other), tell())
    assert len(await stored(dsn)) == 200
    assert await broken(dsn) == {}


def test_a_key_names_the_provider_and_the_first_event() -> None:
    assert key("simulator", delivery(7, 8).events) == b"simulator/evt_7"


async def test_an_address_where_nobody_answers_is_told(dsn: str) -> None:
    async with grounds(
        dsn, "127.0.0.1:1", limits=replace(QUICK, kafka_ask_seconds=0.5, kafka_append_seconds=0.5), checking=False
    ) as ground:
        with pytest.raises(LogUnreachable):
            await ground.service.log.check()
        with pytest.raises(LogUnreachable):
            await ground.service.log.append(delivery(1))
