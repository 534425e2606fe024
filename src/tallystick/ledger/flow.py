"""submit(): every operation applies exactly once.

Twins of one process meet here: the second waits for the first and is answered from it. Twins of several
processes meet at the primary key of the operation.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import Self

from tallystick.commit.group import GroupCommit
from tallystick.commit.port import LedgerStore
from tallystick.errors import Faulted, InFlight, TallystickError
from tallystick.keys.derived import operation_id
from tallystick.ledger.batch import LedgerWork
from tallystick.ledger.claims import Answer, Claim, Fault, Known, Tenant, key_refusal, replay
from tallystick.ledger.kinds import Kinds, Operation
from tallystick.ledger.outcome import Committed, Duplicate, Outcome, Rejected
from tallystick.settings import LIMITS, Limits


class _Leader:
    """The first of several twins, while it is being worked on."""

    __slots__ = ("claim", "future")

    def __init__(self, claim: Claim, future: "asyncio.Future[Answer]") -> None:
        self.claim = claim
        self.future = future


class Engine:
    """The one write path of the ledger."""

    def __init__(self, store: LedgerStore, kinds: Kinds, *, limits: Limits = LIMITS) -> None:
        """Enter it before use; leaving it answers what is queued."""
        self._kinds = kinds
        self._limits = limits
        self._group: GroupCommit[Claim, Answer] = GroupCommit(LedgerWork(store), footprint=_accounts_of, limits=limits)
        self._leaders: dict[bytes, _Leader] = {}

    async def __aenter__(self) -> Self:
        """Start taking operations."""
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Answer what is queued, refuse the rest."""
        await self._group.__aexit__(*exception)

    @property
    def kinds(self) -> Kinds:
        """The kinds this engine runs."""
        return self._kinds

    @property
    def group(self) -> GroupCommit[Claim, Answer]:
        """For its counts."""
        return self._group

    async def submit(self, tenant: Tenant, operation: Operation, idempotency_key: str) -> Outcome:
        """Run the operation once under this key, now or earlier, and say which.

        Raises Busy, InFlight, OutcomeUnknown, Unreachable or Faulted: see `errors`. After any of them, the same
        call with the same key is safe.
        """
        claim = self.claim(tenant, operation, idempotency_key)
        if isinstance(claim, Rejected):
            return claim
        leader = self._leaders.get(claim.id)
        if leader is not None:
            return await self._follow(claim, leader)
        return await self._answer(self._lead(claim))

    async def submit_many(
        self, tenant: Tenant, operations: Iterable[tuple[Operation, str]]
    ) -> list[Outcome | TallystickError]:
        """Submit all at once; the answers stand in the order of the operations.

        Each is on its own: one that fails does not touch the others, and its exception is its answer.
        """
        answers: list[Outcome | TallystickError | None] = []
        leaders: list[tuple[int, _Leader]] = []
        follows: list[tuple[int, asyncio.Task[Outcome]]] = []
        try:
            for operation, key in list(operations):
                position = len(answers)
                answers.append(None)
                try:
                    claim = self.claim(tenant, operation, key)
                    if isinstance(claim, Rejected):
                        answers[position] = claim
                    elif (leader := self._leaders.get(claim.id)) is not None:
                        follows.append((position, asyncio.create_task(self._follow(claim, leader))))
                    else:
                        leaders.append((position, self._lead(claim)))
                except TallystickError as error:
                    answers[position] = error
            for position, leader in leaders:
                answers[position] = await _or_error(self._answer(leader))
            for position, task in follows:
                answers[position] = await _or_error(task)
        finally:
            for _, leader in leaders:
                leader.future.add_done_callback(partial(self._dismiss_done, leader))
            for _, task in follows:
                task.cancel()
        return [answer for answer in answers if answer is not None]

    def claim(self, tenant: Tenant, operation: Operation, idempotency_key: str) -> Claim | Rejected:
        """Check what can be checked without reading anything."""
        unusable = key_refusal(idempotency_key)
        if unusable is not None:
            return unusable
        kind = self._kinds.of(operation)
        if kind is None:
            return Rejected(
                "kind_unknown",
                f"{type(operation).__name__} is not a kind of operation known here.",
                "Register it: tallystick.open(kinds=[...]).",
            )
        try:
            refusal = kind.check(operation)
            if refusal is not None:
                return refusal
            request = self._kinds.request(operation)
            number = tenant.number
            accounts = tuple([(number, name) for name in kind.locks(operation, {})])
            hash(accounts)
        except Exception as cause:
            raise Faulted(kind.name) from cause
        id_ = operation_id(tenant.name, idempotency_key)
        return Claim(tenant, id_, idempotency_key, kind, operation, request, accounts)

    def _lead(self, claim: Claim) -> _Leader:
        leader = _Leader(claim, self._group.submit(claim, source=claim.tenant.number))
        self._leaders[claim.id] = leader
        return leader

    async def _answer(self, leader: _Leader) -> Outcome:
        try:
            return outcome(await leader.future)
        except (TallystickError, asyncio.CancelledError):
            raise
        except Exception as cause:
            # Alone in its transaction the database refused it, so nothing of it was kept.
            raise Faulted(leader.claim.kind.name) from cause
        finally:
            self._dismiss(leader)

    def _dismiss(self, leader: _Leader) -> None:
        if self._leaders.get(leader.claim.id) is leader:
            del self._leaders[leader.claim.id]

    def _dismiss_done(self, leader: _Leader, _future: object) -> None:
        self._dismiss(leader)

    async def _follow(self, claim: Claim, leader: _Leader) -> Outcome:
        """Wait for the twin. It committed: replay it. It did not: the key is free, and it is our turn."""
        deadline = asyncio.get_running_loop().time() + self._limits.wait_seconds
        current: _Leader | None = leader
        while current is not None:
            remaining = deadline - asyncio.get_running_loop().time()
            await asyncio.wait([current.future], timeout=max(remaining, 0))
            if not current.future.done():
                raise InFlight(self._limits.wait_seconds)
            if not current.future.cancelled() and current.future.exception() is None:
                answer = current.future.result()
                if isinstance(answer, Committed | Duplicate):
                    first = current.claim
                    return replay(claim, Known(first.key, first.request, answer.body))
            self._dismiss(current)
            current = self._leaders.get(claim.id)
        return await self._answer(self._lead(claim))


async def _or_error(answer: Awaitable[Outcome]) -> Outcome | TallystickError:
    try:
        return await answer
    except TallystickError as error:
        return error


def _accounts_of(claim: Claim) -> tuple[tuple[int, str], ...]:
    return claim.accounts


def outcome(answer: Answer) -> Outcome:
    """The answer as a caller sees it: a fault is raised."""
    if isinstance(answer, Fault):
        raise Faulted(answer.kind) from answer.cause
    return answer
