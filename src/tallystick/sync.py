"""The synchronous twin, for Django, Flask and scripts.

    with tallystick.sync.open() as tally:
        tally.submit(tallystick.Transfer(...), idempotency_key="invoice-17")

The engine runs on an event loop in a thread of its own; calls from any number of threads share its group commit.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from tallystick import library
from tallystick.checkout.order.store import OrderView, Reserved, SkuView
from tallystick.checkout.payment.rules import Paying, PaymentPending
from tallystick.checkout.refund.request.rules import RefundGiven, RefundPending
from tallystick.checkout.status.rules import OrderStatus
from tallystick.errors import Forked, TallystickError
from tallystick.ledger.account.store import AccountView, EntryView
from tallystick.ledger.kinds import Kind, Operation
from tallystick.ledger.outcome import Outcome, Rejected
from tallystick.ledger.velocity import VelocityLimit
from tallystick.settlement.store import Made, SettlementView

T = TypeVar("T")

_THREAD = "tallystick"


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


class Tally:
    """`tallystick.Tally` for callers without an event loop. Safe to share between threads."""

    def __init__(self, tally: library.Tally, loop: asyncio.AbstractEventLoop) -> None:
        """Use `tallystick.sync.open()`."""
        self._tally = tally
        self._loop = loop
        self._closed = False
        self._guard = threading.Lock()

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            # Before the lock, which some thread of the parent may hold for ever.
            self._tally.require_own_process()
        except Forked:
            call.close()
            raise
        with self._guard:
            if self._closed or threading.current_thread().name == _THREAD:
                call.close()
                message = "This Tally was closed." if self._closed else "A kind's handler must not call the Tally."
                raise TallystickError(message)
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        return future.result()

    def _close(self) -> None:
        with self._guard:
            self._closed = True

    def submit(self, operation: Operation, *, idempotency_key: str) -> Outcome:
        """See `tallystick.Tally.submit`."""
        return self._wait(self._tally.submit(operation, idempotency_key=idempotency_key))

    def submit_many(self, operations: Iterable[tuple[Operation, str]]) -> Sequence[Outcome | TallystickError]:
        """See `tallystick.Tally.submit_many`."""
        # A generator is drawn out here: on the engine's own thread it could wait for itself.
        return self._wait(self._tally.submit_many(list(operations)))

    def put_account(
        self,
        account_id: str,
        *,
        currency: str,
        floor_micros: int | None = 0,
        limits: Sequence[VelocityLimit] = (),
    ) -> AccountView | Rejected:
        """See `tallystick.Tally.put_account`."""
        return self._wait(
            self._tally.put_account(account_id, currency=currency, floor_micros=floor_micros, limits=limits)
        )

    def account(self, account_id: str) -> AccountView | Rejected:
        """See `tallystick.Tally.account`."""
        return self._wait(self._tally.account(account_id))

    def balance_at(self, account_id: str, moment: datetime) -> int | Rejected:
        """See `tallystick.Tally.balance_at`."""
        return self._wait(self._tally.balance_at(account_id, moment))

    def entries(self, account_id: str, *, before: int | None = None, most: int = 100) -> Sequence[EntryView] | Rejected:
        """See `tallystick.Tally.entries`."""
        return self._wait(self._tally.entries(account_id, before=before, most=most))

    def create_settlement(
        self,
        *,
        attribution_id: str,
        squad_id: str,
        gross_micros: int,
        currency: str,
        destination: str,
        provider: str | None = None,
        source: str | None = None,
        idempotency_key: str,
    ) -> Made | Rejected:
        """See `tallystick.Tally.create_settlement`."""
        return self._wait(
            self._tally.create_settlement(
                attribution_id=attribution_id,
                squad_id=squad_id,
                gross_micros=gross_micros,
                currency=currency,
                destination=destination,
                provider=provider,
                source=source,
                idempotency_key=idempotency_key,
            )
        )

    def settlement(self, settlement_id: str) -> SettlementView | Rejected:
        """See `tallystick.Tally.settlement`."""
        return self._wait(self._tally.settlement(settlement_id))

    def set_stock(self, sku: str, stock: int) -> SkuView | Rejected:
        """See `tallystick.Tally.set_stock`."""
        return self._wait(self._tally.set_stock(sku, stock))

    def sku(self, sku: str) -> SkuView | Rejected:
        """See `tallystick.Tally.sku`."""
        return self._wait(self._tally.sku(sku))

    def reserve(
        self, *, sku: str, quantity: int, amount_micros: int, currency: str, idempotency_key: str
    ) -> Reserved | Rejected:
        """See `tallystick.Tally.reserve`."""
        return self._wait(
            self._tally.reserve(
                sku=sku,
                quantity=quantity,
                amount_micros=amount_micros,
                currency=currency,
                idempotency_key=idempotency_key,
            )
        )

    def order(self, order_id: str) -> OrderView | Rejected:
        """See `tallystick.Tally.order`."""
        return self._wait(self._tally.order(order_id))

    def order_status(self, order_id: str, *, wait: float = 0.0, after: str | None = None) -> OrderStatus | Rejected:
        """See `tallystick.Tally.order_status`."""
        return self._wait(self._tally.order_status(order_id, wait=wait, after=after))

    def pay(
        self, order_id: str, *, reservation_token: str, payment_method: str | None = None, idempotency_key: str
    ) -> Paying | PaymentPending | Rejected:
        """See `tallystick.Tally.pay`."""
        return self._wait(
            self._tally.pay(
                order_id,
                reservation_token=reservation_token,
                payment_method=payment_method,
                idempotency_key=idempotency_key,
            )
        )

    def cancel_order(self, order_id: str) -> OrderView | Rejected:
        """See `tallystick.Tally.cancel_order`."""
        return self._wait(self._tally.cancel_order(order_id))

    def refund_order(
        self,
        order_id: str,
        *,
        amount_micros: int | None = None,
        reason: str,
        restock: bool = False,
        idempotency_key: str,
    ) -> RefundGiven | RefundPending | Rejected:
        """See `tallystick.Tally.refund_order`."""
        return self._wait(
            self._tally.refund_order(
                order_id,
                amount_micros=amount_micros,
                reason=reason,
                restock=restock,
                idempotency_key=idempotency_key,
            )
        )


@contextmanager
def open(  # noqa: A001 - read as sync.open()
    *,
    database_url: str | None = None,
    home: str | Path | None = None,
    tenant: str = "default",
    kinds: Iterable[Kind] = (),
    service: str = "library",
) -> Iterator[Tally]:
    """A ledger, ready to use from ordinary code. The arguments are those of `tallystick.open()`."""
    process = os.getpid()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=_THREAD, daemon=True)
    thread.start()
    opening = library.open(database_url=database_url, home=home, tenant=tenant, kinds=kinds, service=service)
    try:
        twin = Tally(asyncio.run_coroutine_threadsafe(opening.__aenter__(), loop).result(), loop)
        try:
            yield twin
        finally:
            # A child that leaves the block has nothing to close: all of it is the parent's, and still in use.
            if os.getpid() == process:
                twin._close()  # noqa: SLF001 - its own module
                asyncio.run_coroutine_threadsafe(opening.__aexit__(None, None, None), loop).result()
    finally:
        if os.getpid() == process:
            # Nobody may be left waiting for an answer that cannot come any more.
            asyncio.run_coroutine_threadsafe(_cancel_the_rest(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
