"""Bugs at the gate: see `bugs`."""

from collections.abc import Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, cast
from uuid import UUID, uuid4

import msgspec

from tallystick.checkout.order import rules as deciders
from tallystick.checkout.order import store as orders
from tallystick.checkout.release import flow as flow_release
from tallystick.checkout.release import rules as releasing
from tallystick.checkout.release import store as releases_store
from tallystick.checkout.release.flow import Releases
from tallystick.checkout.release.rules import Release
from tallystick.checkout.watermark import flow as flow_watermark
from tallystick.checkout.watermark import rules as watermarks
from tallystick.checkout.watermark import store as watermark_store
from tallystick.checkout.watermark.flow import Watermark
from tallystick.commit.group import GroupCommit
from tallystick.ledger.store import PostgresTransaction
from tallystick.providers.words import Unknown
from tests.planted.bug import Bug, migrated

RELEASE: Final = "tests/checkout/release/test_flow.py::"
WATERMARK: Final = "tests/checkout/watermark/test_flow.py::"
FLOW: Final = "tests/checkout/order/test_flow.py::"
SWEEP: Final = "tests/checkout/order/test_sweep.py::"
RULES: Final = "tests/checkout/order/test_database_rules.py::"
LOST: Final = "tests/faults/test_order_lost_connection.py::"


def _reworded(name: str, *changes: tuple[str, str]) -> None:
    """A statement with these parts replaced. A part that is not there would plant nothing."""
    for old, new in changes:
        if old not in orders._SQL[name]:
            raise ValueError(f"{name} has no {old!r} any more")
        orders._SQL[name] = orders._SQL[name].replace(old, new)


def sweeper_releases_twice() -> None:
    """It writes to what it once read, and the counters follow what is written, not what has changed."""
    _reworded("finish", (" AND o.status || '' = 'PENDING'", ""))
    migrated(
        ("CASE status WHEN 'PENDING' THEN -quantity ELSE 0 END", "-quantity"),
        ("WHEN (old.status <> new.status AND old.status <> 'PENDING')", "WHEN (false)"),
    )


def sweepers_share_rows() -> None:
    """Two sweepers read the same rows, and both give them back."""
    _reworded("overdue", (" FOR NO KEY UPDATE OF o SKIP LOCKED", ""))
    sweeper_releases_twice()


def sold_on_a_stale_reading() -> None:
    """The stock is read and not locked; two processes sell the last piece. The CHECK is off as well."""
    _reworded("lock_stocks", ("FOR NO KEY UPDATE", "OFFSET 0"))
    migrated(
        ("CONSTRAINT never_oversold CHECK (reserved + sold <= stock)", "CHECK (true)"),
        ("FOR NO KEY UPDATE) AS locked", "OFFSET 0) AS locked"),
    )


def stock_read_without_a_lock() -> None:
    """The database still refuses to oversell, and the buyer is told of an error instead of "sold out"."""
    _reworded("lock_stocks", ("FOR NO KEY UPDATE", "OFFSET 0"))


def no_check_against_overselling() -> None:
    migrated(("CONSTRAINT never_oversold CHECK (reserved + sold <= stock)", "CHECK (true)"))


def oversold_within_a_batch() -> None:
    """Every buyer of a batch sees the stock as it was before all of them; nor does the database object.

    If it did, the batch would be divided until the answers were right.
    """
    no_check_against_overselling()
    original = deciders.admit

    def admit(claims: Sequence[Any], stocks: Any, known: Any) -> list[Any]:
        return [answer for claim in claims for answer in original([claim], stocks, known)]

    cast("Any", orders).admit = admit


def keys_read_before_the_stock() -> None:
    """A twin finds its key unused, waits, and then hears that its own order has sold the thing out."""
    original, claim = orders.reserve, PostgresTransaction.claim
    read: ContextVar[Any] = ContextVar("read")

    async def reserve(connection: Any, claims: Any, **more: Any) -> Any:
        read.set(await claim(PostgresTransaction(connection), claims, patient=True))
        return await original(connection, claims, **more)

    async def claimed(_self: Any, _claims: Any, *, patient: bool) -> Any:
        return read.get()

    cast("Any", orders).reserve = reserve
    cast("Any", PostgresTransaction).claim = claimed


def replay_tells_the_present() -> None:
    """A replay is the order as it stands, not as it was told first."""

    async def as_created(connection: Any, claims: Any) -> Any:
        rows = await connection.fetch(
            orders._SQL["by_ids"], [claim.tenant.number for claim in claims], [UUID(bytes=c.id) for c in claims]
        )
        return {(row["tenant_id"], row["id"].bytes): orders.view(row) for row in rows}

    cast("Any", orders)._as_created = as_created


def a_new_order_for_each_run() -> None:
    """The order's key is made when it is written: a batch that is run again reserves again."""
    original = orders.ReserveWork.commit

    async def commit(self: Any, items: Any, *, patient: bool) -> Any:
        again = [deciders.claim_of(item.tenant, item.operation, f"{item.key}-{uuid4().hex}") for item in items]
        return await original(self, again, patient=patient)

    cast("Any", orders.ReserveWork).commit = commit


def cancelled_though_paid() -> None:
    """Whoever asks to cancel is believed."""

    def cancel(_name: str, status: str) -> str | None:
        return None if status.startswith("CANCELLED") else "CANCELLED"

    cast("Any", deciders).cancel = cancel


def swept_without_grace() -> None:
    """At the deadline, not after the grace."""
    _reworded("overdue", (" - $1::interval", " - 0 * $1::interval"))
    cast("Any", deciders).is_overdue = lambda expires_at, *, now, **_more: now >= expires_at


def last_come_first_served() -> None:
    """Lanes queue up behind each other in the database, in whatever order they get there."""
    original = GroupCommit.__init__

    def unordered(self: Any, work: Any, **more: Any) -> None:
        original(self, work, **{**more, "in_order": False})

    cast("Any", GroupCommit).__init__ = unordered


def swept_without_a_watermark() -> None:
    """The sweeper takes it that everything that was received has been decided."""

    async def read(_self: Any, **_patience: Any) -> datetime:
        return datetime.max.replace(tzinfo=UTC)

    cast("Any", Watermark).read = read


def appends_under_way_are_not_waited_for() -> None:
    """Rows that are not committed yet have an earlier time than the moment the sweeper looks at."""
    original = watermarks.is_stored

    def is_stored(mark: Any, *, writing: Any, read: Any) -> bool:
        return original(mark, writing=frozenset(), read=read)

    cast("Any", flow_watermark).is_stored = is_stored


def poison_holds_the_stock() -> None:
    """An event that fails by itself keeps every charged order from being swept."""
    watermark_store._SQL["oldest"] = watermark_store._SQL["oldest"].replace("e.tries = 0", "true")


def stored_is_taken_for_decided() -> None:
    """What came by way of Kafka is taken to have been received when it was stored."""
    original = watermarks.passed

    def passed(mark: Any, *, stored_at: Any, oldest: Any, before: Any) -> Any:
        return original(msgspec.structs.replace(mark, ends=None), stored_at=stored_at, oldest=oldest, before=before)

    cast("Any", flow_watermark).passed = passed


def swept_before_the_payment_is_cancelled() -> None:
    """Whatever stands at the provider: it may be paid a moment later."""

    async def released(self: Any, held: Any, _heard: float) -> str:
        await releases_store.decide(self._database, held, verdict="cancelled", reason=None)
        return "cancelled"

    cast("Any", Releases)._released = released


def unknown_taken_for_cancelled() -> None:
    """No answer to a wish to cancel: the order is swept as if it had been carried out."""
    original = releasing.after_cancel

    def after_cancel(answer: Any) -> Any:
        return Release("cancelled") if isinstance(answer, Unknown) else original(answer)

    cast("Any", flow_release).after_cancel = after_cancel


ORDER_BUGS: Final = {
    "sweeper_releases_twice": Bug(
        sweeper_releases_twice,
        (f"{SWEEP}test_a_late_sweeper_that_had_read_the_row_before_gives_back_nothing_more",),
    ),
    "sweepers_share_rows": Bug(
        sweepers_share_rows,
        (f"{SWEEP}test_a_sweeper_passes_over_what_another_holds",),
    ),
    "sold_on_a_stale_reading": Bug(
        sold_on_a_stale_reading,
        (
            f"{FLOW}test_the_last_piece_goes_to_the_one_whose_transaction_holds_it",
            f"{FLOW}test_two_processes_sell_what_there_is_and_not_one_more",
        ),
    ),
    "stock_read_without_a_lock": Bug(
        stock_read_without_a_lock, (f"{FLOW}test_the_last_piece_goes_to_the_one_whose_transaction_holds_it",)
    ),
    "no_check_against_overselling": Bug(
        no_check_against_overselling,
        (f"{RULES}test_an_order_that_was_never_asked_for_is_refused[embedded18-23514-asked0-row0]",),
    ),
    "oversold_within_a_batch": Bug(
        oversold_within_a_batch,
        (f"{FLOW}test_first_come_first_served_within_a_process",),
    ),
    "keys_read_before_the_stock": Bug(
        keys_read_before_the_stock,
        (f"{FLOW}test_a_twin_in_another_process_waits_and_gets_the_same_order",),
    ),
    "replay_tells_the_present": Bug(
        replay_tells_the_present,
        (f"{FLOW}test_the_same_wish_under_the_same_key_is_the_same_order_to_the_byte",),
    ),
    "a_new_order_for_each_run": Bug(
        a_new_order_for_each_run,
        (
            f"{FLOW}test_fifty_twins_are_one_order",
            f"{LOST}test_a_buyer_is_told_what_is_known_and_the_same_key_is_exact[Cut.AFTER_COMMIT-OutcomeUnknown-True]",
        ),
    ),
    "cancelled_though_paid": Bug(cancelled_though_paid, (f"{FLOW}test_a_paid_order_is_not_cancelled",)),
    "swept_without_grace": Bug(
        swept_without_grace, (f"{SWEEP}test_the_sweeper_cancels_what_is_overdue_and_nothing_else",)
    ),
    "last_come_first_served": Bug(last_come_first_served, (f"{FLOW}test_a_batch_that_is_held_up_is_not_overtaken",)),
    "swept without a watermark": Bug(
        swept_without_a_watermark,
        (f"{WATERMARK}test_an_order_paid_in_time_is_left_alone_until_its_webhook_is_processed",),
    ),
    "an append under way is not waited for": Bug(
        appends_under_way_are_not_waited_for, (f"{WATERMARK}test_an_append_under_way_holds_as_well",)
    ),
    "poison holds the stock": Bug(
        poison_holds_the_stock, (f"{WATERMARK}test_an_event_that_failed_by_itself_holds_nothing",)
    ),
    "stored is taken for decided": Bug(
        stored_is_taken_for_decided,
        (f"{WATERMARK}test_what_lies_in_the_log_is_waited_for_until_it_is_stored_and_decided",),
    ),
    "swept before the payment is cancelled": Bug(
        swept_before_the_payment_is_cancelled,
        (
            f"{RELEASE}test_a_payment_that_waits_for_its_customer_is_cancelled_there_before_the_order_is_swept",
            f"{RELEASE}test_one_that_its_customer_paid_a_moment_before_is_paid_and_not_cancelled",
        ),
    ),
    "an unknown answer taken for cancelled": Bug(
        unknown_taken_for_cancelled,
        (
            f"{RELEASE}test_no_answer_is_never_taken_for_cancelled[execute_then_drop]",
            f"{RELEASE}test_no_answer_is_never_taken_for_cancelled[gateway_503]",
        ),
    ),
}
