"""What would give money back twice, too early or not at all: each danger of the saga by itself."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import asyncpg
import pytest

from tallystick.checkout.order.rules import order_id
from tallystick.checkout.refund import store
from tallystick.checkout.refund.store import RecordWork, RefundResult
from tallystick.checkout.saga.store import HELD
from tallystick.database.migrate import migrate
from tallystick.movement.steps import Happened
from tallystick.providers.words import Answer, Looked, Refund, Sending
from tallystick.webhooks import store as webhook
from tests import servers
from tests.ledgers import broken, fetchval
from tests.orders import LONG, waits
from tests.payments import HURRIED, age
from tests.providers.worlds import Control
from tests.sagas import LEASE, Desk, desk
from tests.settlements import empty

PRICE = 25_000_000


@pytest.fixture(scope="module")
def attacked_dsn(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def dsn(attacked_dsn: str) -> str:
    """One database for all of these tests, emptied before each."""
    await migrate(attacked_dsn)
    await empty(attacked_dsn)
    return attacked_dsn


@pytest.fixture
async def till(dsn: str, control: Control) -> AsyncIterator[Desk]:
    async with desk(dsn, control) as opened:
        yield opened


class Watched:
    """The provider's refunds and questions, in the order in which they reach it."""

    def __init__(self, till: Desk) -> None:
        """From now on."""
        self.calls: list[tuple[str, bytes]] = []
        self.seen: list[Any] = []
        self._dsn = till.dsn
        provider: Any = cast("Any", till.shop.provider)
        self._send, self._look_up = provider.send, provider.look_up
        provider.send, provider.look_up = self.send, self.look_up

    async def send(self, asked: Refund, leave: Sending) -> Answer:
        assert isinstance(asked, Refund)
        self.calls.append(("refund", asked.key))
        self.seen.append(
            await fetchval(
                self._dsn,
                "SELECT r.fate || ' ' || l.status || ' ' || i.attempts FROM tally.payment_idempotency_log l"
                " JOIN tally.intent i ON i.tenant_id = l.tenant_id AND i.key = l.idempotency_key"
                " JOIN tally.payment_receipt r ON r.tenant_id = l.tenant_id"
                " AND r.payment_intent_id = l.payment_intent_id"
                " WHERE l.idempotency_key = $1",
                asked.key,
            )
        )
        answer: Answer = await self._send(asked, leave)
        return answer

    async def look_up(self, asked: Any, **more: Any) -> Looked:
        self.calls.append(("look_up", asked.key))
        looked: Looked = await self._look_up(asked, **more)
        return looked


async def test_nothing_is_given_back_before_receipt_log_and_intent_are_committed(till: Desk) -> None:
    """What another connection sees at the moment of the call is what a crash would leave."""
    _, payment = await till.ghost()
    watched = Watched(till)
    await till.tell(payment)
    await till.run()
    assert watched.seen == ["REFUND PENDING 1"]


async def test_a_refund_that_is_sent_again_has_the_first_ones_key(till: Desk, control: Control) -> None:
    control.plan("stripe.refund:rate_limited@1")
    order, payment = await till.ghost()
    watched = Watched(till)
    await till.tell(payment)
    await till.run()
    await age(till.dsn)
    await till.refunds.sweep()
    sent = [key for what, key in watched.calls if what == "refund"]
    assert len(sent) == 2
    assert len(set(sent)) == 1
    assert await till.refund_statuses(order) == ["COMPLETED"]


async def test_a_refund_that_may_have_run_is_asked_about_before_anything_is_sent(till: Desk, control: Control) -> None:
    control.plan("stripe.refund:execute_then_drop@1")
    order, payment = await till.ghost()
    watched = Watched(till)
    await till.tell(payment)
    await till.run()
    await age(till.dsn)
    await till.refunds.sweep()
    assert [what for what, _ in watched.calls] == ["refund", "look_up"]
    assert await till.refund_statuses(order) == ["COMPLETED"]


async def test_already_refunded_is_looked_up_and_not_believed(till: Desk, control: Control) -> None:
    """Nothing of ours is in the books: whoever it was, it is a person's business."""
    control.plan("stripe.refund:refused(charge_already_refunded)@1")
    order, payment = await till.ghost()
    watched = Watched(till)
    await till.tell(payment)
    await till.run()
    assert [what for what, _ in watched.calls] == ["refund", "look_up"]
    assert await till.refund_statuses(order) == ["FAILED"]
    assert await till.breaks() == ["refund_failed"]
    assert await till.ended() == {"evt_1": "UNPROCESSED"}
    assert (await till.balances())["owed"] == PRICE
    assert await broken(till.dsn) == {}


async def test_a_sweeper_that_lost_its_claim_changes_nothing(till: Desk, control: Control) -> None:
    """Paused past its lease with an answer in hand: the row is another's by then."""
    control.plan("stripe.refund:rate_limited@1")
    order, payment = await till.ghost()
    await till.tell(payment)
    await till.run()
    claims = []
    for _ in range(2):
        await age(till.dsn)
        async with till.shop.database.writing() as connection:
            (claimed,) = await store.claim_due(connection, providers=["stripe"], most=10, lease=timedelta(minutes=1))
        claims.append(claimed)
    late, live = (
        RefundResult(
            tenant=one.tenant, key=one.owed.key, claim_number=one.owed.claim_number, entry=Happened(f"re_{number}")
        )
        for number, one in enumerate(claims)
    )
    assert await RecordWork(till.shop.database).commit([late], patient=True) == [False]
    assert await till.refund_statuses(order) == ["PENDING"]
    assert (await till.balances())["owed"] == PRICE
    assert await RecordWork(till.shop.database).commit([live], patient=True) == [True]
    # A batch that is run again after a lost COMMIT finds its own results, and posts nothing twice.
    assert await RecordWork(till.shop.database).commit([live], patient=True) == [True]
    assert await till.balances() == {"taken": 0, "owed": 0}
    (refund,) = await till.refunds_of(order)
    assert refund.view.refund_id == "re_1"


async def test_orders_are_locked_in_one_order(dsn: str, control: Control) -> None:
    """Who waits for the first of two orders holds nothing of the second: two batches can never wait for each other."""
    async with desk(dsn, control, limits=LONG) as till:
        bought = [await till.bought(f"k{number}") for number in range(2)]
        first, second = sorted(bought, key=lambda one: str(order_id(one[0].id)))
        # Told in the other order.
        for number, (_, payment) in enumerate((second, first)):
            await till.tell(payment, f"evt_{number}")
        lock = "SELECT 1 FROM tally.orders WHERE id = $1 FOR NO KEY UPDATE NOWAIT"
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                assert await connection.fetchval(lock, order_id(first[0].id)) == 1
                claimed = await webhook.claim(till.shop.database, most=10, lease=LEASE, by="test")
                settling = asyncio.create_task(till.saga.handle(claimed))
                await waits(dsn)
                try:
                    assert await connection.fetchval(lock, order_id(second[0].id)) == 1
                except asyncpg.LockNotAvailableError:
                    settling.cancel()
                    pytest.fail("the second order is locked before the first")
            await settling
        finally:
            await connection.close()
        assert [await till.status(order) for order, _ in bought] == ["PAID", "PAID"]


@pytest.mark.parametrize(
    "held",
    [
        "SELECT 1 FROM tally.orders WHERE id = $1 FOR NO KEY UPDATE",
        "SELECT 1 FROM tally.sku s WHERE s.sku = (SELECT sku FROM tally.orders WHERE id = $1) FOR NO KEY UPDATE",
    ],
    ids=["an order", "a stock"],
)
async def test_a_lock_that_nobody_lets_go_of_holds_up_its_own_order_alone(
    dsn: str, control: Control, held: str
) -> None:
    """A person's open transaction, at night: whoever else has paid in the same batch is PAID all the same."""
    limits = replace(HURRIED, event_outage_seconds=0.0)
    async with desk(dsn, control, limits=limits) as till:
        bought = {sku: await till.bought(f"k-{sku}", sku=sku) for sku in ("lamp", "shade", "cord")}
        late, late_payment = await till.ghost("k-late", sku="bulb")
        for sku, (_, payment) in bought.items():
            await till.tell(payment, f"evt_{sku}")
        await till.tell(late_payment, "evt_late")
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                assert await connection.fetchval(held, order_id(bought["lamp"][0].id)) == 1
                await till.run()
                told = await till.ended()
                reason = await fetchval(dsn, "SELECT reason FROM tally.webhook_events WHERE event_id = 'evt_lamp'")
                statuses = {sku: await till.status(order) for sku, (order, _) in bought.items()}
        finally:
            await connection.close()
        assert statuses == {"lamp": "PENDING", "shade": "PAID", "cord": "PAID"}
        assert told.pop("evt_lamp") == "UNPROCESSED"
        assert set(told.values()) == {"PROCESSED_OK", "PROCESSED_COMPENSATED"}
        assert reason == HELD
        assert await till.refund_statuses(late) == ["COMPLETED"]
        await till.run()
        assert await till.status(bought["lamp"][0]) == "PAID"
        assert await broken(dsn) == {}


@pytest.mark.parametrize("code", ["53100", "58030"], ids=["no room on its disk", "a disk that fails"])
async def test_a_database_that_cannot_write_is_an_outage_and_no_fault_of_the_event(
    dsn: str, control: Control, code: str
) -> None:
    """Counted as tries, an hour of a full disk would make dead letters of everybody's payments."""
    limits = replace(HURRIED, event_outage_seconds=0.0, event_tries=2)
    async with desk(dsn, control, limits=limits) as till:
        order, payment = await till.bought("k-lamp", sku="lamp")
        await till.tell(payment, "evt_lamp")
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(
                f"CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"RAISE 'could not extend file: No space left on device' USING ERRCODE = '{code}'; END $$; "
                f"CREATE TRIGGER aa_refuse BEFORE UPDATE ON tally.orders FOR EACH ROW EXECUTE FUNCTION public.refuse()"
            )
            for _ in range(4):
                await till.run()
            assert await till.ended() == {"evt_lamp": "UNPROCESSED"}
            assert await connection.fetchval("SELECT tries FROM tally.webhook_events") == 0
        finally:
            await connection.execute("DROP FUNCTION IF EXISTS public.refuse CASCADE")
            await connection.close()
        await till.run()
        assert await till.status(order) == "PAID"
        assert await broken(dsn) == {}
