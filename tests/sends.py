"""One instruction sent by itself, as a room sends it that has no rows of its own."""

from datetime import datetime
from uuid import uuid4

from tallystick.database.pool import Database
from tallystick.ledger.claims import Tenant
from tallystick.movement import store as intents
from tallystick.movement.flow import Outgoing, Sender, Sent, terms_of
from tallystick.movement.rules import Attempt, Withheld
from tallystick.movement.steps import NOTHING_SENT
from tallystick.movement.store import Answered, Asking
from tallystick.providers.port import Provider
from tallystick.providers.steady import steady
from tallystick.providers.words import Instruction
from tallystick.settings import LIMITS, Limits


async def send_alone(
    database: Database,
    sender: Sender,
    adapter: Provider,
    tenant: Tenant,
    instruction: Instruction,
    *,
    since: datetime,
    name: str = "stripe",
    limits: Limits = LIMITS,
) -> Sent | Withheld:
    """Begin in one transaction, send, record in another. Raises when the first cannot be committed."""
    began = steady()
    asking = Asking(
        tenant=tenant,
        terms=terms_of(name, adapter, adapter.purpose(instruction)),
        instruction=instruction,
        token=uuid4(),
        permit_seconds=limits.send_seconds,
        since=since,
        mark="",
    )
    async with database.stepping() as connection:
        (attempt,) = await intents.begin(connection, [asking])
        now = await connection.fetchval("SELECT clock_timestamp()")
    if not isinstance(attempt, Attempt):
        return attempt
    sent = await sender.send(
        Outgoing(
            attempt=attempt,
            instruction=instruction,
            history=NOTHING_SENT,
            since=since,
            now=now,
            began=began,
            heard=steady(),
        )
    )
    async with database.writing() as connection:
        await intents.record_answers(connection, [Answered(attempt, sent.answer)])
    return sent
