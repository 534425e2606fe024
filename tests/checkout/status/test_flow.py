"""Waiting for an order: woken by the commit, wherever it happens; and memory that is never trusted while deaf.

Two services on one database are two processes' worth: they share nothing but what the database tells.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tallystick import app
from tallystick.access.store import ensure_tenant
from tallystick.checkout.order.rules import OrderReserved, order_id
from tallystick.checkout.order.store import OrderView, Reserved
from tallystick.checkout.payment.rules import Paying, PaymentPending
from tallystick.checkout.status import flow, store
from tallystick.checkout.status.rules import OrderStatus
from tallystick.checkout.status.store import CHANNEL, OrderName
from tallystick.errors import Busy, ShareUsed, Unreachable
from tallystick.ledger.claims import Tenant
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS, Limits, Settings
from tests import servers
from tests.deliveries import TRUSTED
from tests.faults.wire import wire
from tests.ledgers import broken, fetchval
from tests.orders import A_MOMENT, emptied, expired, receive
from tests.orders import execute as run
from tests.payments import age, new_key
from tests.providers.worlds import Control, impatient
from tests.settlements import superuser

# Longer than any test runs: what is woken within it is woken by nothing else.
NEVER = 3_600.0
# With a bug planted what is waited for never comes: then nobody waits as long as a busy machine may need.
IS_PLANTED = "TALLY_TEST_PLANT" in os.environ
PATIENCE_SECONDS = 6.0 if IS_PLANTED else 20.0
# As long as anybody may wait; and far less: whoever is answered within this was woken, and not told at the end.
WAIT = LIMITS.status_wait_seconds
WOKEN_SECONDS = 3.0 if IS_PLANTED else 6.0
# Nobody is woken by the poll; what is kept does not grow old; proofs count for long.
BY_NEWS = replace(LIMITS, status_poll_seconds=NEVER, status_age_seconds=NEVER, status_trust_seconds=NEVER)
# A listener that lost its connection stays deaf.
ONCE_DEAF = replace(BY_NEWS, status_echo_seconds=NEVER)
BY_POLL = replace(LIMITS, status_poll_seconds=0.1)
LAMP = OrderReserved(sku="lamp", quantity=1, amount_micros=25_000_000, currency="EUR")


@dataclass(frozen=True)
class Node:
    """One process's worth of the service, as one tenant."""

    service: app.Service
    tenant: Tenant

    @property
    def statuses(self) -> flow.OrderStatuses:
        return self.service.statuses

    async def order(self, key: str = "k") -> OrderView:
        await self.service.orders.set_stock(self.tenant, "lamp", 10_000)
        made = await self.service.orders.reserve(self.tenant, LAMP, key)
        assert isinstance(made, Reserved), made
        return made.view

    async def status(self, order: OrderView, wait: float = 0.0, after: str | None = None) -> OrderStatus:
        found = await self.statuses.read(self.tenant, order.id, wait_seconds=wait, after=after)
        assert isinstance(found, OrderStatus), found
        return found

    async def cancel(self, order: OrderView) -> None:
        found = await self.service.orders.cancel(self.tenant, order.id)
        assert isinstance(found, OrderView), found

    async def pay(self, order: OrderView, method: str | None = None) -> Any:
        return await self.service.payments.pay(
            self.tenant, order.id, order.reservation_token, idempotency_key=new_key(), payment_method=method
        )

    async def waits(self, order: OrderView, **more: Any) -> "asyncio.Task[OrderStatus]":
        """Somebody who waits, and has read how the order stands."""
        before = self.statuses.waiting
        waiting = asyncio.create_task(self.status(order, WAIT, **more))
        await until(lambda: self.statuses.waiting == before + 1 and self.watch(order).latest is not None)
        return waiting

    def watch(self, order: OrderView) -> flow.Watch:
        return self.statuses._watches[place(self, order)]

    async def listens(self) -> None:
        await self.statuses.read(self.tenant, "or_" + "0" * 32)
        await until(lambda: self.statuses.is_listening)


def place(node: Node, order: OrderView) -> OrderName:
    id_ = order_id(order.id)
    assert id_ is not None
    return node.tenant.number, id_


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def node(
    dsn: str, limits: Limits = LIMITS, *, tenant: str = "default", simulator_url: str | None = None, **settings: Any
) -> AsyncIterator[Node]:
    chosen = Settings(database_url=dsn, simulator_webhook_secret=TRUSTED, **settings)
    async with app.running(chosen, limits=limits, simulator_url=simulator_url) as service:
        yield Node(service, await ensure_tenant(service.database, tenant))


@pytest.fixture(scope="module")
def fresh(embedded18: servers.Server) -> str:
    return embedded18.fresh_database()


@pytest.fixture
async def dsn(fresh: str) -> str:
    return await emptied(fresh)


async def pay_unannounced(dsn: str, order: OrderView) -> None:
    """PENDING to PAID by somebody who tells nobody."""
    await receive(dsn, "id = $1", UUID(order.id.removeprefix("or_")), pays=True)


async def refund_unannounced(dsn: str) -> None:
    """What a refund of the charge that is there leaves in the log."""
    connection = await asyncpg.connect(superuser(dsn))
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(
                "INSERT INTO tally.payment_idempotency_log (tenant_id, idempotency_key, order_id, operation_type,"
                " attempt, amount_micros, currency, provider, payment_intent_id, due_at, created_at)"
                " SELECT tenant_id, sha256(idempotency_key), order_id, 'REFUND', 0, amount_micros, currency, provider,"
                " payment_intent_id, due_at, created_at FROM tally.payment_idempotency_log"
            )
    finally:
        await connection.close()


# --- woken by the commit


async def cancelled(there: Node, order: OrderView) -> None:
    await there.cancel(order)


async def swept(there: Node, order: OrderView) -> None:
    assert (await there.service.orders.sweep()).cancelled == 1


@pytest.mark.parametrize(("act", "status"), [(cancelled, "CANCELLED"), (swept, "CANCELLED_BY_SWEEPER")])
async def test_a_commit_of_another_process_wakes_who_waits(
    dsn: str, act: Callable[[Node, OrderView], Awaitable[None]], status: str
) -> None:
    quick: Any = {"reservation_ttl_seconds": A_MOMENT.total_seconds(), "reservation_grace_seconds": 0.0}
    async with node(dsn, BY_NEWS) as here, node(dsn, BY_NEWS, **quick) as there:
        await here.listens()
        order = await there.order()
        await expired(dsn)
        waiting = await here.waits(order)
        await act(there, order)
        found = await asyncio.wait_for(waiting, WOKEN_SECONDS)
        assert (found.id, found.status, found.payment, found.refund) == (order.id, status, None, None)
        assert here.statuses.found_by_poll == 0
    assert await broken(dsn) == {}


async def test_every_step_of_a_payment_wakes_who_waits(dsn: str, control: Control) -> None:
    """The click, and what the provider made of it: by a version each."""
    async with node(dsn, BY_NEWS) as here, node(dsn, BY_NEWS, simulator_url=control.url) as there:
        await here.listens()
        order = await there.order()
        seen = [await here.status(order)]

        async def follow(payment: str) -> None:
            while seen[-1].payment is None or seen[-1].payment.status != payment:
                seen.append(await here.status(order, WAIT, seen[-1].version))

        following = asyncio.create_task(follow("FAILED"))
        assert isinstance(await there.pay(order, "pm_card_chargeDeclined"), Rejected)
        await asyncio.wait_for(following, WOKEN_SECONDS)
        following = asyncio.create_task(follow("AWAITING_CUSTOMER"))
        paid = await there.pay(order)
        assert isinstance(paid, Paying)
        await asyncio.wait_for(following, WOKEN_SECONDS)
        assert seen[-1].payment == paid.payment
        assert seen[-1].status == "PENDING"
        assert len({one.version for one in seen}) == len(seen)


async def test_what_a_collector_finishes_wakes_who_waits(dsn: str, control: Control) -> None:
    async with node(dsn, BY_NEWS) as here, node(dsn, BY_NEWS, simulator_url=control.url) as there:
        await here.listens()
        order = await there.order()
        control.plan("stripe.charge:execute_then_drop")
        impatient(there.service.providers["simulator"])
        assert isinstance(await there.pay(order), PaymentPending)
        await age(dsn)
        before = await here.status(order)
        assert before.payment is not None
        assert before.payment.status == "PENDING"
        waiting = await here.waits(order, after=before.version)
        await there.service.payments.collect()
        found = await asyncio.wait_for(waiting, WOKEN_SECONDS)
        assert found.payment is not None
        assert found.payment.status == "AWAITING_CUSTOMER"


async def test_a_process_wakes_its_own_callers_without_the_database(dsn: str) -> None:
    """It knows what it did: nothing has to come back over the wire."""
    async with node(dsn, ONCE_DEAF) as here:
        order = await here.order()
        waiting = await here.waits(order)
        await run(superuser(dsn), f"SELECT pg_terminate_backend(pid) FROM {LISTENERS}")
        await here.cancel(order)
        assert (await asyncio.wait_for(waiting, WOKEN_SECONDS)).status == "CANCELLED"


async def test_a_process_does_not_read_twice_what_it_changed_itself(dsn: str) -> None:
    """Its own announcement comes back to it: it has read the order by then, after the commit."""
    async with node(dsn, BY_NEWS) as here, node(dsn, BY_NEWS) as there:
        await here.listens()
        await there.listens()
        order = await here.order()
        waiting = [await here.waits(order), await there.waits(order)]
        read_here, read_there = (one.statuses._reader.batches for one in (here, there))
        # Nothing has changed, and so nobody is woken: all that happens is reading.
        tenant_number, id_ = place(here, order)
        here.service.announcer.changed(tenant_number, [id_])
        await until(lambda: there.statuses._reader.batches == read_there + 1)
        # The next announcement comes in after the one before, to both.
        await there.cancel(order)
        await asyncio.wait_for(asyncio.gather(*waiting), WOKEN_SECONDS)
        assert here.statuses._reader.batches == read_here + 2


async def test_a_process_killed_between_commit_and_notify_is_found_by_the_poll(dsn: str) -> None:
    """The announcement is the speed; the poll is the guarantee."""
    async with node(dsn, BY_POLL) as here:
        await here.listens()
        order = await here.order()
        waiting = await here.waits(order)
        killed = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-m", "tests.checkout.status.leaver", dsn, order.id], check=False
        )
        assert killed.returncode == -9
        found = await asyncio.wait_for(waiting, WOKEN_SECONDS)
        assert found.status == "CANCELLED"
        await until(lambda: here.statuses.found_by_poll == 1)


async def test_the_poll_finds_a_changed_payment_and_a_refund_too(dsn: str, control: Control) -> None:
    """Marks move with every row that an answer is made of, whoever wrote it."""
    async with node(dsn, simulator_url=control.url) as here:
        order = await here.order()
        at = [place(here, order)]
        marks = [await store.marks(here.service.database, at)]
        await here.pay(order)
        marks.append(await store.marks(here.service.database, at))
        await refund_unannounced(dsn)
        marks.append(await store.marks(here.service.database, at))
        assert len({one[at[0]] for one in marks}) == 3
        # Reading and locking move nothing.
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                await connection.execute("SELECT * FROM tally.orders FOR UPDATE")
        finally:
            await connection.close()
        await here.status(order)
        assert await store.marks(here.service.database, at) == marks[-1]


# --- when it is answered


async def test_a_final_order_is_answered_at_once_and_followed_by_its_version(dsn: str) -> None:
    async with node(dsn, BY_NEWS) as here:
        order = await here.order()
        pending = await here.status(order)
        await here.cancel(order)
        found = await here.status(order, WAIT)
        assert found.status == "CANCELLED"
        assert await here.status(order, WAIT, pending.version) == found
        # Whoever has this one waits for the next, and gets it again when the time is over.
        began = time.monotonic()
        assert await here.status(order, 0.2, found.version) == found
        assert time.monotonic() - began >= 0.2


async def test_what_changed_between_reading_and_waiting_is_not_missed(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interleaving is forced: the commit is announced after the row was read, before the caller waits."""
    async with node(dsn, BY_NEWS) as here:
        order = await here.order()
        reads = Held(monkeypatch)
        waiting = asyncio.create_task(here.status(order, WAIT))
        await reads.reached()
        await here.cancel(order)
        reads.let_go()
        assert (await asyncio.wait_for(waiting, WOKEN_SECONDS)).status == "CANCELLED"


async def test_the_end_of_the_time_tells_the_truth_not_what_was_last_heard(dsn: str) -> None:
    async with node(dsn, ONCE_DEAF) as here:
        order = await here.order()
        waiting = asyncio.create_task(here.status(order, 0.5))
        await until(lambda: place(here, order) in here.statuses._watches and here.watch(order).latest is not None)
        await pay_unannounced(dsn, order)
        assert (await waiting).status == "PAID"


async def test_another_tenants_order_is_unknown_also_to_memory(dsn: str) -> None:
    async with node(dsn, BY_NEWS) as here:
        other = await ensure_tenant(here.service.database, "other")
        await here.listens()
        order = await here.order()
        await here.status(order)
        await here.status(order)
        assert here.statuses.hits == 1
        for wait in (0.0, WAIT):
            found = await here.statuses.read(other, order.id, wait_seconds=wait)
            assert isinstance(found, Rejected)
            assert found.code == "order_unknown"
        assert here.statuses.waiting == 0


async def test_orders_of_several_tenants_are_read_behind_their_own_walls(dsn: str) -> None:
    """The session is one tenant's at a time, and the database shows it no other's rows."""
    async with node(dsn) as here, node(dsn, tenant="other") as there:
        mine, theirs = place(here, await here.order()), place(there, await there.order())
        crossed = (mine[0], theirs[1]), (theirs[0], mine[1])
        reader = store.Reader(here.service.database)
        for _ in range(2):
            assert (await reader.read([mine, theirs, *crossed])).keys() == {mine, theirs}
        connection = reader._connection
        assert connection is not None
        # Whatever the statement asks for.
        assert await connection.fetchval("SELECT count(DISTINCT tenant_id) FROM tally.orders") == 1
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("SET TRANSACTION READ WRITE; DELETE FROM tally.orders")
        # A session that is lost is made anew; whether the reader knows of it before he asks is the network's to say.
        await run(superuser(dsn), f"SELECT pg_terminate_backend({connection.get_server_pid()})")
        with suppress(Unreachable):
            await reader.read([mine])
        assert connection.is_closed()
        assert (await reader.read([mine])).keys() == {mine}
        reader.end()


# --- bounds


async def test_a_thousand_who_wait_for_one_order_hold_no_connection_and_are_woken_together(dsn: str) -> None:
    async with node(dsn, ONCE_DEAF) as here, node(dsn, BY_NEWS) as there:
        await here.listens()
        order = await here.order()
        waiting = [asyncio.create_task(here.status(order, WAIT)) for _ in range(1_000)]
        await until(lambda: here.statuses.waiting == 1_000 and not here.statuses._reader._unanswered)
        batches = here.statuses._reader.batches
        busy = "SELECT count(*) FROM pg_stat_activity WHERE state <> 'idle' AND datname = current_database()"
        # Only the one who asks.
        assert await fetchval(superuser(dsn), busy) == 1
        await there.cancel(order)
        found = await asyncio.wait_for(asyncio.gather(*waiting), WOKEN_SECONDS)
        assert {one.status for one in found} == {"CANCELLED"}
        assert here.statuses._reader.batches == batches + 1
        assert (here.statuses.waiting, here.statuses._watches) == (0, {})


async def test_orders_that_change_together_are_read_together(dsn: str) -> None:
    async with node(dsn, BY_POLL) as here:
        await here.listens()
        orders = await asyncio.gather(*(here.order(f"k{number}") for number in range(300)))
        waiting = [asyncio.create_task(here.status(order, WAIT)) for order in orders]
        await until(lambda: here.statuses.waiting == 300 and not here.statuses._reader._unanswered)
        await receive(dsn, pays=True)
        batches = here.statuses._reader.batches
        found = await asyncio.wait_for(asyncio.gather(*waiting), WOKEN_SECONDS)
        assert {one.status for one in found} == {"PAID"}
        # One of the poll before, perhaps; never one for each.
        assert here.statuses._reader.batches - batches <= 3


async def test_too_many_who_wait_are_refused_and_nobody_else(dsn: str) -> None:
    async with node(dsn, replace(BY_NEWS, status_waiters=2)) as here:
        order = await here.order()
        waiting = [await here.waits(order) for _ in range(2)]
        with pytest.raises(Busy):
            await here.status(order, WAIT)
        assert (await here.status(order)).status == "PENDING"
        await here.cancel(order)
        await asyncio.gather(*waiting)
        assert (await here.status(order, WAIT)).status == "CANCELLED"


async def test_one_tenant_cannot_take_all_the_waiting_there_is(dsn: str) -> None:
    async with node(dsn, replace(BY_NEWS, status_waiters=4, status_waiters_per_tenant=2)) as here:
        order = await here.order()
        waiting = [await here.waits(order) for _ in range(2)]
        with pytest.raises(ShareUsed):
            await here.status(order, WAIT)
        other = Node(here.service, await ensure_tenant(here.service.database, "other"))
        others = await other.order()
        waiting.append(await other.waits(others))
        await here.cancel(order)
        await other.cancel(others)
        await asyncio.gather(*waiting)
        # What was waited for is given back.
        assert (await here.status(order, WAIT)).status == "CANCELLED"
        assert not any(here.statuses._waiting_of.values())


async def test_who_hangs_up_is_forgotten_at_once(dsn: str) -> None:
    async with node(dsn, BY_NEWS) as here:
        order = await here.order()
        first, second = await here.waits(order), await here.waits(order)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert (here.statuses.waiting, here.watch(order).watchers) == (1, 1)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert (here.statuses.waiting, here.statuses._watches) == (0, {})


async def test_a_process_that_ends_answers_who_waits(dsn: str) -> None:
    async with node(dsn, BY_NEWS) as here:
        order = await here.order()
        waiting = await here.waits(order)
        here.statuses.stop_waiting()
        assert (await asyncio.wait_for(waiting, 5)).status == "PENDING"
        # And lets nobody wait any more.
        assert (await asyncio.wait_for(here.status(order, WAIT), 5)).status == "PENDING"


# --- memory

LISTENERS = "pg_stat_activity WHERE query ILIKE 'LISTEN%' AND datname = current_database()"


class Held:
    """Reads are held between the row and what is made of it, until let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_there = asyncio.Event()
        self._gate = asyncio.Event()
        original = store.Reader.read

        async def read(reader: store.Reader, places: Any) -> Any:
            found = await original(reader, places)
            self._is_there.set()
            await self._gate.wait()
            return found

        monkeypatch.setattr(store.Reader, "read", read)

    async def reached(self) -> None:
        await asyncio.wait_for(self._is_there.wait(), PATIENCE_SECONDS)

    def let_go(self) -> None:
        self._gate.set()


async def test_an_announced_change_is_never_answered_from_memory(dsn: str) -> None:
    async with node(dsn, BY_NEWS) as here, node(dsn, BY_NEWS) as there:
        await here.listens()
        order = await there.order()
        assert [(await here.status(order)).status for _ in range(3)] == ["PENDING"] * 3
        assert here.statuses.hits == 2
        waiting = await here.waits(order)
        await there.cancel(order)
        # The announcement was heard here when this one is woken.
        await asyncio.wait_for(waiting, WOKEN_SECONDS)
        assert (await here.status(order)).status == "CANCELLED"


async def test_a_failure_is_never_answered_from_memory(dsn: str, control: Control) -> None:
    """The stale "failed" of the source: the buyer's next attempt has gone through, and he is told that it failed."""
    async with node(dsn, BY_NEWS) as here, node(dsn, BY_NEWS, simulator_url=control.url) as there:
        await here.listens()
        order = await there.order()
        assert isinstance(await there.pay(order, "pm_card_chargeDeclined"), Rejected)
        for _ in range(3):
            failed = await here.status(order)
            assert failed.payment is not None
            assert failed.payment.status == "FAILED"
        assert here.statuses.hits == 0
        assert isinstance(await there.pay(order), Paying)
        # Committed, and perhaps not announced yet: even so.
        found = await here.status(order)
        assert found.payment is not None
        assert found.payment.status == "AWAITING_CUSTOMER"


async def test_what_was_read_before_the_announcement_is_not_kept_after_it(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interleaving is forced: row read, change committed and announced, row put into memory."""
    async with node(dsn, BY_NEWS) as here, node(dsn, BY_NEWS) as there:
        await here.listens()
        order = await there.order()
        reads = Held(monkeypatch)
        reading = asyncio.create_task(here.status(order))
        await reads.reached()
        heard = list(here.statuses._cache._changes)
        await there.cancel(order)
        await until(lambda: here.statuses._cache._changes != heard)
        reads.let_go()
        # It was asked before the commit: either answer is true.
        assert (await reading).status == "PENDING"
        assert (await here.status(order)).status == "CANCELLED"
        assert here.statuses.hits == 0


async def test_losing_the_connection_disables_memory_rather_than_trusting_it(dsn: str) -> None:
    async with node(dsn, ONCE_DEAF) as here:
        await here.listens()
        order = await here.order()
        await here.status(order)
        await here.status(order)
        assert here.statuses.hits == 1
        assert await fetchval(superuser(dsn), f"SELECT count(pg_terminate_backend(pid)) FROM {LISTENERS}") == 1
        await until(lambda: here.statuses._cache._epoch > 1)
        await pay_unannounced(dsn, order)
        assert [(await here.status(order)).status for _ in range(3)] == ["PAID"] * 3
        assert not here.statuses.is_listening
        assert (here.statuses.hits, here.statuses.distrusted) == (1, 3 + 1)


async def test_a_connection_that_comes_back_brings_memory_back_without_what_was_missed(dsn: str) -> None:
    async with node(dsn, replace(BY_NEWS, status_echo_seconds=0.1)) as here, node(dsn, BY_NEWS) as there:
        await here.listens()
        order = await there.order()
        await here.status(order)
        waiting = await here.waits(order)
        for _ in range(2):
            epoch = here.statuses._cache._epoch
            await run(superuser(dsn), f"SELECT pg_terminate_backend(pid) FROM {LISTENERS} AND pid <> pg_backend_pid()")
            await until(lambda epoch=epoch: here.statuses._cache._epoch > epoch)  # type: ignore[misc]
            await until(lambda: here.statuses.is_listening)
        await pay_unannounced(dsn, order)
        await here.listens()
        # Whoever waited while it was deaf is told at the reconnect, without the poll.
        await run(superuser(dsn), f"SELECT pg_terminate_backend(pid) FROM {LISTENERS} AND pid <> pg_backend_pid()")
        assert (await asyncio.wait_for(waiting, WOKEN_SECONDS)).status == "PAID"
        await here.listens()
        hits = here.statuses.hits
        assert [(await here.status(order)).status for _ in range(2)] == ["PAID"] * 2
        assert here.statuses.hits > hits


async def test_a_connection_that_is_lost_in_the_middle_of_its_proof_is_opened_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The echo it waits for comes no more: whoever waits for it is deaf for as long."""
    real, cuts = store.notify, 0

    async def notify(database: Any, announcements: Any, *, channel: str = CHANNEL) -> None:
        nonlocal cuts
        if channel == CHANNEL or cuts:
            await real(database, announcements, channel=channel)
            return
        cuts += await fetchval(superuser(dsn), f"SELECT count(pg_terminate_backend(pid)) FROM {LISTENERS}")

    monkeypatch.setattr(store, "notify", notify)
    async with node(dsn, replace(BY_NEWS, status_echo_seconds=0.1)) as here:
        await here.listens()
    assert cuts == 1


async def test_a_connection_that_falls_silent_without_breaking_is_noticed(dsn: str) -> None:
    """Half-open, or behind a pooler: it answers nobody, no reset comes, and announcements go nowhere."""
    limits = replace(BY_NEWS, status_echo_seconds=0.1, status_trust_seconds=0.6)
    async with wire(dsn) as (line, through), node(through, limits) as here, node(dsn, BY_NEWS) as there:
        await here.listens()
        order = await there.order()
        await here.status(order)
        await here.status(order)
        assert here.statuses.hits >= 1
        line.is_mute = True
        await there.cancel(order)
        await until(lambda: not here.statuses.is_listening)
        assert [(await here.status(order)).status for _ in range(3)] == ["CANCELLED"] * 3
        # Those who wait meanwhile are not lost either.
        line.is_mute = False
        await until(lambda: here.statuses.is_listening)
        assert (await here.status(order)).status == "CANCELLED"


async def test_a_change_that_nobody_announced_is_told_when_what_is_kept_is_too_old(dsn: str) -> None:
    limits = replace(BY_NEWS, status_age_seconds=0.3)
    async with node(dsn, limits) as here:
        await here.listens()
        order = await here.order()
        await here.status(order)
        await pay_unannounced(dsn, order)
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await here.status(order)).status != "PAID":
                await asyncio.sleep(0.01)
        print(f"seen after {time.monotonic() - began:.3f} s, kept for at most 0.3 s")


async def test_an_announcement_nobody_can_read_forgets_everything(dsn: str) -> None:
    async with node(dsn, BY_NEWS) as here:
        await here.listens()
        order = await here.order()
        await here.status(order)
        waiting = await here.waits(order)
        await pay_unannounced(dsn, order)
        await run(dsn, f"NOTIFY {CHANNEL}, 'some other version of us'")
        assert (await asyncio.wait_for(waiting, WOKEN_SECONDS)).status == "PAID"
        assert (await here.status(order)).status == "PAID"
