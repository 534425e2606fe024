"""A destination that was made known is paid once its waiting time is over, and not before, whoever asks."""

from datetime import timedelta
from typing import Any

import asyncpg

from tallystick.authority import store as authority
from tallystick.authority.rules import Policy
from tallystick.ledger.outcome import Rejected
from tallystick.settlement.store import Made, SettlementView
from tests.clocks import Movable, Time
from tests.http.test_authority import BY_HAND
from tests.ledgers import broken
from tests.providers.worlds import Control
from tests.settlements import Shop, shop

A_DAY = timedelta(days=1)
DESTINATION = "acct_new"


async def by_hand(till: Shop, settlement: str) -> str | None:
    """The same payout once more, past our code; the code that the database refuses it with, if it does. Undone."""
    async with till.database.owning() as connection:
        trying = connection.transaction()
        await trying.start()
        try:
            await connection.execute(BY_HAND, settlement.removeprefix("st_"))
        except asyncpg.PostgresError as refused:
            return refused.sqlstate
        finally:
            await trying.rollback()
    return None


async def both(till: Shop, template: SettlementView) -> tuple[str, str | None]:
    """What our code says to a payout there, and what the database alone does."""
    made: Any = await till.propose("a", destination=DESTINATION)
    said = made.code if isinstance(made, Rejected) else type(made).__name__
    return said, await by_hand(till, template.id)


async def test_a_new_destination_is_paid_when_its_waiting_time_is_over(
    server: Movable, control: Control, time: Time
) -> None:
    async with shop(server.fresh_database(), control) as till:
        # Of before there was a policy: what is inserted by hand has its destination.
        template = await till.create("template", destination=DESTINATION)
        policy = Policy(known_destinations=True, waiting_seconds=int(A_DAY.total_seconds()), ceilings=())
        assert await authority.put(till.database, till.tenant, policy, by="kim") is None
        assert await both(till, template) == ("destination_unknown", "TS007")
        await authority.put_destination(
            till.database, till.tenant, template.provider, DESTINATION, is_known=True, by="kim"
        )
        assert await both(till, template) == ("destination_waiting", "TS007")
        time.passes(A_DAY - timedelta(minutes=10))
        assert await both(till, template) == ("destination_waiting", "TS007")
        # Withdrawn and made known again it waits again, from then; and a clock that goes back shortens nothing.
        for is_known in (False, True):
            await authority.put_destination(
                till.database, till.tenant, template.provider, DESTINATION, is_known=is_known, by="kim"
            )
        time.passes(A_DAY - timedelta(minutes=10))
        assert await both(till, template) == ("destination_waiting", "TS007")
        time.is_wrong_by(timedelta(hours=-1))
        assert await both(till, template) == ("destination_waiting", "TS007")
        time.is_wrong_by(timedelta())
        time.passes(timedelta(minutes=11))
        assert await both(till, template) == (Made.__name__, None)
        assert await broken(till.dsn) == {}
