"""A room: what the folder of one noun gives to the whole. `tallystick.rooms` lists them.

Each room has a `room.py` with its `ROOM`. A new one is its folder and one line there; its tables are migrations in
`migrations/` right below the package (for the rooms of checkout: `checkout/migrations/`), whose numbers go on over all.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import click
import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tallystick.app import Service
from tallystick.workers.worker import Worker

if TYPE_CHECKING:
    from tallystick.http.metrics import Metrics
    from tallystick.http.route import Route

F = TypeVar("F", bound=msgspec.Struct)


class Shows(Protocol):
    """A collector that shows the figures it was given last."""

    figures: Any

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""


class Check(msgspec.Struct, frozen=True):
    """One thing this process needs."""

    name: str
    ok: bool
    detail: str
    # Not needed: requests are served without it, so a load balancer must not take this process out for it.
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Figures(Generic[F]):
    """What the database counts, and who shows it. They are asked for when somebody scrapes, and not too often.

    `ask` is given the figures before, and gives those that follow; `first` are shown while it could not be asked yet:
    both have a field `is_current`. `unread` is logged where it cannot be asked. `now`: what this process knows itself.
    """

    shown: Shows
    first: F
    ask: Callable[[F], Awaitable[F]]
    unread: str
    now: Callable[[F], F] = lambda figures: figures
    # What `/readyz` says of them; None: nothing.
    ready: Callable[[F], Check | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one noun gives to the whole. Whatever it does not have is left out."""

    name: str
    # A path without a parameter stands before one whose parameter it would fit.
    routes: "Callable[[Service, Metrics], Iterable[Route]]" = lambda _service, _metrics: ()
    # What this process counts by itself.
    counts: Callable[[Service], Iterable[Collector]] = lambda _service: ()
    figures: Callable[[Service], Iterable[Figures[Any]]] = lambda _service: ()
    workers: Callable[[Service], Iterable[Worker]] = lambda _service: ()
    commands: tuple[click.Command, ...] = ()
