"""Bugs in limits, on MariaDB and at the end of a queue's life: see `bugs`."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from tallystick.commit.group import GroupCommit
from tallystick.errors import Busy
from tallystick.ledger import velocity
from tallystick.ledger.claims import Claim
from tallystick.ledger.mysql import operation
from tests.planted.bug import Bug

CONFORMANCE: Final = "tests/ledger/test_conformance.py::"


def a_batch_does_not_count_itself() -> None:
    """What a window holds is read once; the debits of the batch that read it add nothing."""

    def used(limits: tuple[velocity.Limit, ...], _amount_micros: int) -> tuple[velocity.Limit, ...]:
        return limits

    cast("Any", velocity).used = used


def mariadb_windows_are_empty() -> None:
    """What a limit's window holds already is not looked for."""
    text = operation._SQL["velocity"]
    operation._SQL["velocity"] = text.replace("AND e.amount_micros < 0", "AND false")
    if operation._SQL["velocity"] == text:
        raise ValueError("windows are read in another way by now")


def mariadb_claims_no_key() -> None:
    """Nobody waits at a key that another is using: each takes it for free, until the database refuses the second."""

    async def claim(self: Any, claims: Sequence[Claim], *, patient: bool) -> Any:
        names = sorted((claim.tenant.number, claim.id) for claim in claims)
        known = await self.read(names)
        self._claimed = set(names) - known.keys()
        return known, frozenset()

    cast("Any", operation.MysqlTransaction).claim = claim


def queue_dropped_at_the_end() -> None:
    """Whoever leaves stops the lanes at once: what waited is turned away."""

    async def leave(self: Any, *_exception: object) -> None:
        self._closing = True
        for waiting in self._queue.take(len(self._queue)):
            self._fail(waiting, Busy(self._limits.retry_after_seconds))
        await self._idle.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    cast("Any", GroupCommit).__aexit__ = leave


ENGINE_BUGS: Final[Mapping[str, Bug]] = {
    "a_batch_does_not_count_itself": Bug(
        a_batch_does_not_count_itself,
        (
            "tests/ledger/test_rules.py::test_velocity_counts_what_the_same_batch_already_took",
            CONFORMANCE + "test_a_refusal_for_velocity_leaves_the_key_unused[embedded18-count]",
            CONFORMANCE + "test_a_refusal_for_velocity_leaves_the_key_unused[embedded18-sum]",
        ),
    ),
    "mariadb_windows_are_empty": Bug(
        mariadb_windows_are_empty,
        (
            CONFORMANCE + "test_a_refusal_for_velocity_leaves_the_key_unused[mariadb-count]",
            CONFORMANCE + "test_a_refusal_for_velocity_leaves_the_key_unused[mariadb-sum]",
        ),
        on="mariadb",
    ),
    "mariadb_claims_no_key": Bug(
        mariadb_claims_no_key,
        (
            CONFORMANCE + "test_one_key_used_at_once_for_different_accounts_commits_one_and_names_the_difference"
            "[mariadb]",
        ),
        on="mariadb",
    ),
    "queue_dropped_at_the_end": Bug(
        queue_dropped_at_the_end,
        ("tests/commit/test_group.py::test_leaving_answers_what_is_queued_and_refuses_what_comes_then",),
    ),
}
