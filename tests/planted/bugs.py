"""Bugs planted on purpose: each must turn the named tests red, or those tests prove nothing.

`TALLY_TEST_PLANT=name pytest ...` plants one (tests/conftest.py).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tallystick.commit.group import GroupCommit
from tallystick.ledger import batch
from tallystick.ledger import claims as idempotency
from tallystick.ledger import flow as engine
from tallystick.ledger import store as operation
from tallystick.ledger.claims import Answer, Claim, Facts, Known, Record
from tallystick.ledger.outcome import (
    Committed,
    Duplicate,
    Entry,
    Rejected,
    Transaction,
    encode_transaction,
    transaction_name,
)
from tests.planted.abuse_bugs import ABUSE_BUGS
from tests.planted.authority_bugs import AUTHORITY_BUGS
from tests.planted.bug import Bug
from tests.planted.checkout_bugs import CHECKOUT_BUGS
from tests.planted.clock_bugs import CLOCK_BUGS
from tests.planted.engine_bugs import ENGINE_BUGS
from tests.planted.failover_bugs import FAILOVER_BUGS
from tests.planted.kafka_bugs import KAFKA_BUGS
from tests.planted.operation_bugs import OPERATION_BUGS
from tests.planted.order_bugs import ORDER_BUGS
from tests.planted.order_status_bugs import ORDER_STATUS_BUGS
from tests.planted.payment_bugs import PAYMENT_BUGS
from tests.planted.provider_bugs import PROVIDER_BUGS
from tests.planted.recovery_bugs import RECOVERY_BUGS
from tests.planted.refund_bugs import REFUND_BUGS
from tests.planted.release_bugs import RELEASE_BUGS
from tests.planted.restore_bugs import RESTORE_BUGS
from tests.planted.saga_bugs import SAGA_BUGS
from tests.planted.settlement_bugs import SETTLEMENT_BUGS
from tests.planted.webhook_bugs import WEBHOOK_BUGS


def lock_removed() -> None:
    """Accounts are read without being locked."""
    for name in ("lock_accounts", "lock_free_accounts"):
        operation._SQL[name] = operation._SQL[name].replace("FOR NO KEY UPDATE OF a", "").replace("SKIP LOCKED", "")


def lock_order_reversed() -> None:
    """Every other batch takes its locks from the other end."""
    forth = operation._SQL["lock_accounts"]
    back = forth.replace("ORDER BY tenant_id, id", "ORDER BY tenant_id DESC, id DESC")
    original = operation.PostgresTransaction.lock_accounts
    turns = iter(range(1_000_000))

    async def lock(self: Any, wanted: Any, *, patient: bool) -> Any:
        if len(wanted) > 2:
            operation._SQL["lock_accounts"] = back if next(turns) % 2 else forth
        return await original(self, wanted, patient=patient)

    cast("Any", operation.PostgresTransaction).lock_accounts = lock


def fingerprint_ignored() -> None:
    """A used key is replayed whatever the request."""

    def replay(_claim: Claim, known: Known) -> Duplicate:
        return Duplicate(known.body)

    cast("Any", idempotency).replay = replay
    cast("Any", engine).replay = replay


def rejection_consumes_the_key() -> None:
    """A refusal is recorded under the key, as if it were an outcome."""
    decide = idempotency.decide

    def deciding(claims: Sequence[Claim], facts: Facts) -> tuple[list[Answer], list[Record]]:
        answers, records = decide(claims, facts)
        for claim, answer in zip(claims, answers, strict=True):
            if isinstance(answer, Rejected) and answer.code == "insufficient_funds":
                nothing: tuple[Entry, ...] = ()
                body = Transaction(transaction_name(claim.id), claim.key, claim.kind.name, facts.at, nothing)
                records.append(Record(claim, encode_transaction(body), nothing, None))
        return answers, records

    cast("Any", batch).decide = deciding


def poison_fails_its_batch() -> None:
    """An error of one item is given to the whole batch."""

    async def divide(self: Any, items: list[Any]) -> None:
        for waiting in items:
            self._fail(waiting, RuntimeError("somebody in the batch failed"))

    cast("Any", GroupCommit)._divide = divide


def answer_before_commit() -> None:
    """Callers are told as soon as the statements have run; COMMIT follows when it follows."""
    background: set[asyncio.Task[None]] = set()

    async def commit(self: Any, items: Sequence[Claim], *, patient: bool) -> Any:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            async with self._store.transaction() as transaction:
                original = transaction.record

                async def record(records: Sequence[Record], at: Any) -> None:
                    answered.set_result(None)
                    await original(records, at)

                transaction.record = record
                answered_items.extend(await batch.run(transaction, items, patient=patient))

        answered_items: list[Any] = []
        task = asyncio.create_task(work())
        background.add(task)
        task.add_done_callback(background.discard)
        await asyncio.wait([task, answered], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return answered_items
        return [Committed(b"{}") for _ in items]

    cast("Any", batch.LedgerWork).commit = commit


RACES = "tests/ledger/test_races.py::"
BUGS: Mapping[str, Bug] = {
    "lock_removed": Bug(lock_removed, (RACES + "test_two_engines_cannot_spend_the_same_money",)),
    "lock_order_reversed": Bug(lock_order_reversed, (RACES + "test_batches_take_their_locks_in_one_order",)),
    "fingerprint_ignored": Bug(
        fingerprint_ignored,
        (
            RACES + "test_a_used_key_is_bound_to_its_request",
            RACES + "test_twins_of_two_engines_meet_at_the_key",
        ),
    ),
    "rejection_consumes_the_key": Bug(rejection_consumes_the_key, (RACES + "test_a_rejected_key_may_be_used_again",)),
    "poison_fails_its_batch": Bug(
        poison_fails_its_batch, (RACES + "test_a_poisonous_operation_fails_alone[database]",)
    ),
    "answer_before_commit": Bug(answer_before_commit, (RACES + "test_nobody_is_answered_before_the_commit",)),
    **ENGINE_BUGS,
    **PROVIDER_BUGS,
    **SETTLEMENT_BUGS,
    **ORDER_BUGS,
    **RESTORE_BUGS,
    **RECOVERY_BUGS,
    **SAGA_BUGS,
    **REFUND_BUGS,
    **RELEASE_BUGS,
    **WEBHOOK_BUGS,
    **ABUSE_BUGS,
    **PAYMENT_BUGS,
    **CHECKOUT_BUGS,
    **ORDER_STATUS_BUGS,
    **KAFKA_BUGS,
    **FAILOVER_BUGS,
    **CLOCK_BUGS,
    **AUTHORITY_BUGS,
    **OPERATION_BUGS,
}
