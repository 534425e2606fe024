"""The port: what a log of webhooks promises, whatever it is kept in."""

import asyncio
from typing import Protocol, runtime_checkable

import msgspec

from tallystick.providers.words import Event


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """What one webhook told: one event, or several that are acknowledged together.

    `provider` is the name it is configured under, which need not be the dialect it speaks.
    """

    provider: str
    events: tuple[Event, ...]


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in the log and not yet in the database. `read`: records that were read so far, ever growing."""

    behind: int
    read: int


class Answered(Protocol):
    """Who is told what became of a delivery; see `commit.group.Answered`. A future is one."""

    def done(self) -> bool:
        """Whether it was told already, or no longer wants to know."""

    def set_result(self, fresh: int, /) -> None:
        """Every event of it is durable; so many were not told before."""

    def set_exception(self, error: Exception, /) -> None:
        """It cannot be stored now."""


@runtime_checkable
class Direct(Protocol):
    """A log that tells somebody directly, at the moment of the commit: no future, and no turn of the event loop."""

    def append_for(self, answered: Answered, delivery: Delivery) -> None:
        """`EventLog.append`, told to `answered`. Raises Busy at once, and then tells it nothing."""


class EventLog(Protocol):
    """Append-only. What it has taken survives the process, the database and the machine."""

    def append(self, delivery: Delivery) -> "asyncio.Future[int]":
        """Store every event of it, all or nothing; done only when they are durable. How many were not told before.

        A log that cannot tell yet counts all of them; whoever reads it into the database finds out by the same guard.

        Raises Busy at once when too much waits already, and Unreachable, LogUnreachable, OutcomeUnknown or InFlight
        when it cannot be stored now. Then it must not be acknowledged: the provider tells it again, and once is enough.
        """

    @property
    def waiting(self) -> int:
        """Deliveries that are not durable yet."""

    async def check(self) -> tuple[str, ...]:
        """Whether it can be appended to; what a person should know of it. Raises LogUnreachable and Misconfigured."""

    async def backlog(self) -> Backlog | None:
        """How far the database is behind; None: the log is the database. Raises LogUnreachable."""
