"""What `tally bench settlement` is measured against: one settlement per transaction, on 16 connections.

The same tables, the same rules, the same functions, each given one row: claim it and commit its intent, send, record.

In its favour: a worker goes on where it was instead of passing over what it has claimed, as a tick does; and where
there are several names for the provider, each has an in-transit account of its own, so that workers seldom meet (in a
squad's account, in a row of counts). Under one name all of them need the same one, and each holds it until its commit.
"""

import asyncio
import time
from uuid import uuid4

from tallystick.bench.settlement_ground import BASELINE_CONNECTIONS, PATIENCE, Ground
from tallystick.commit.port import Contended
from tallystick.errors import require
from tallystick.movement import flow as sending
from tallystick.movement import store as intents
from tallystick.movement.flow import terms_of
from tallystick.movement.rules import Attempt
from tallystick.movement.steps import NOTHING_SENT, Happened, after_answer
from tallystick.movement.store import Answered, Asking
from tallystick.providers.steady import steady
from tallystick.providers.words import Sending
from tallystick.settings import LIMITS
from tallystick.settlement.tick import store as settling
from tallystick.settlement.tick.store import ClaimedSettlement, SettlementResult


async def one_by_one(ground: Ground, *, seconds: float) -> tuple[int, float]:
    """Settlements paid, and in how many seconds: until the time is over or nothing is pending."""
    names = list(ground.providers)
    workers = [_Worker(ground, names[number % len(names)], number) for number in range(BASELINE_CONNECTIONS)]
    began = time.perf_counter()
    await asyncio.gather(*(worker.work(began + seconds) for worker in workers))
    return sum(worker.paid for worker in workers), time.perf_counter() - began


class _Worker:
    def __init__(self, ground: Ground, provider: str, number: int) -> None:
        self._database = ground.database
        self._provider = provider
        self._adapter = ground.providers[provider]
        self._by = f"bench-{number}"
        self._after = 0
        self.paid = 0

    async def work(self, until: float) -> None:
        while time.perf_counter() < until:
            began = steady()
            try:
                claimed = await self._claim()
            except Contended:
                continue
            if claimed is None:
                return
            row, attempt = claimed
            self._after = row.number
            permit = Sending(
                first_sent_at=attempt.first_sent_at,
                not_after=attempt.not_after,
                sendable_until=began + LIMITS.send_seconds,
            )
            answer = await sending.call(self._adapter, row.instruction, permit)
            verdict = after_answer(NOTHING_SENT, answer, tries=row.tries, now=row.now, patience=PATIENCE)
            require(isinstance(verdict, Happened), f"a settlement of the bench was not paid: {answer}")
            await self._record(SettlementResult(claimed=row, verdict=verdict, answered=Answered(attempt, answer)))
            self.paid += 1

    async def _claim(self) -> tuple[ClaimedSettlement, Attempt] | None:
        token = uuid4()
        async with self._database.writing() as connection:
            rows = await settling.claim(
                connection,
                self._provider,
                after=self._after,
                most=1,
                stuck_after=PATIENCE.stuck_after,
                token=token,
                by=self._by,
            )
            if not rows:
                return None
            (attempt,) = await intents.begin(connection, [self._asking(rows[0])])
            await settling.post_claims(connection, rows, token=token, by=self._by)
        if not isinstance(attempt, Attempt):
            message = f"an attempt of the bench was withheld: {attempt}"
            raise TypeError(message)
        return rows[0], attempt

    async def _record(self, result: SettlementResult) -> None:
        while True:
            try:
                async with self._database.writing() as connection:
                    (is_recorded,) = await settling.record(connection, [result], by=self._by)
            except Contended:
                continue
            require(is_recorded, "a claim of the bench was lost")
            return

    def _asking(self, row: ClaimedSettlement) -> Asking:
        return Asking(
            tenant=row.tenant,
            terms=terms_of(row.provider, self._adapter, self._adapter.purpose(row.instruction)),
            instruction=row.instruction,
            token=uuid4(),
            permit_seconds=LIMITS.send_seconds,
            since=row.created_at,
            mark=f"settlement/{row.name}",
            subject=row.id,
        )
