"""`tally recover` for the tests: with the flows that the test has, and others of its own for the rest."""

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec

from tallystick.checkout.payment.flow import Payments
from tallystick.checkout.refund.flow import Refunds
from tallystick.database.pool import Database
from tallystick.movement.flow import Sender
from tallystick.movement.steps import Patience
from tallystick.providers.port import Provider
from tallystick.recovery.flow import Recovered, recover
from tallystick.settings import LIMITS
from tallystick.settlement.tick.flow import Settler

_PATIENCE = Patience(stuck_after=timedelta(minutes=5), budget=8)
# The permit of the lost life's senders is over, too.
AT_ONCE = replace(LIMITS, send_seconds=0.0)


@contextmanager
def nothing_in_flight(providers: Mapping[str, Provider]) -> Iterator[None]:
    """What the lost life sent has come to an end, and shows in the providers' lists."""
    facts = {name: provider.facts for name, provider in providers.items()}
    for provider in providers.values():
        at_rest: Any = provider
        at_rest.facts = msgspec.structs.replace(provider.facts, longest_in_flight=timedelta(), list_lag=timedelta())
    try:
        yield
    finally:
        for name, provider in providers.items():
            at_rest = provider
            at_rest.facts = facts[name]


async def recovering(
    database: Database,
    providers: Mapping[str, Provider],
    *,
    settler: Settler | None = None,
    payments: Payments | None = None,
    refunds: Refunds | None = None,
    **how: Any,
) -> Recovered:
    """One run over all three flows; not told to wait or not, it is run when there is nothing left to wait for."""
    async with AsyncExitStack() as stack:
        if "wait" not in how:
            stack.enter_context(nothing_in_flight(providers))
            how.setdefault("limits", AT_ONCE)
        sender = await stack.enter_async_context(Sender(database, providers))
        if payments is None:
            payments = await stack.enter_async_context(
                Payments(database, providers, sender, provider=next(iter(providers), "nobody"))
            )
        if refunds is None:
            refunds = await stack.enter_async_context(Refunds(database, providers, sender))
        if settler is None:
            settler = Settler(database, providers, sender, patience=dict.fromkeys(providers, _PATIENCE), by="tests")
        return await recover(database, providers, settler, payments, refunds, by="tests", **how)
