"""`tally settle`: one tick."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import isfinite
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tallystick import settings as configuration
from tallystick.cli.opened import opened
from tallystick.cli.running import run
from tallystick.errors import Busy, InFlight, OutcomeUnknown, TallystickError, Unreachable
from tallystick.movement.flow import Sender
from tallystick.providers.port import Provider
from tallystick.providers.words import Reachability
from tallystick.recovery import store as recovery
from tallystick.settings import Settings
from tallystick.settlement.tick.flow import Ticked

_BAD_NEWS, _OUT_OF_REACH = 1, 3
# How long a provider may take to say that it is there.
_PING_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.2
_MEANINGS: Final = {
    "claimed": "pending ones taken",
    "reclaimed": "stuck ones taken over",
    "sent": "instructions sent to a provider",
    "looked_up": "looked up in a provider's books",
    "transferred": "the provider has it",
    "failed": "refused for good; the money is payable again",
    "disputed": "a person must decide; the money stays in transit",
    "waiting": "no final answer yet; asked again when overdue",
    "late": "taken over by another worker meanwhile; the answer was kept as evidence",
}


@click.command()
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop claiming early enough to be done within this. Default: until nothing is left.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N rows of each pass.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def settle(*, budget: float | None, limit: int | None, as_json: bool) -> None:
    """Claim pending settlements and pay them; then ask again about those that never got an answer.

    One tick, for every tenant and every configured provider: for cron. Safe to run twice at once, and to kill at any
    moment. Prints counts per outcome.

    Exit status: 0 done; 1 a settlement became disputed and needs a person, or the database was restored and sends
    nothing before `tally recover`; 2 wrong usage or settings; 3 the database, or a provider, is out of reach.
    """
    if budget is not None and not isfinite(budget):
        raise click.BadParameter(f"{budget} is no number of seconds", param_hint="--budget")
    ticked, trouble, elsewhere = run(_settle(configuration.load(), budget, limit))
    if as_json:
        click.echo(json.dumps({**msgspec.to_builtins(ticked), "reclaims_are_frequent": ticked.reclaims_are_frequent}))
    else:
        for name, meaning in _MEANINGS.items():
            click.echo(f"{name:<12} {getattr(ticked, name):>9,}  {meaning}")
    _comment(ticked, elsewhere)
    for name, ping in trouble.items():
        click.echo(f"{name}: {ping.detail}. What was claimed waits, and is sent when it is overdue.", err=True)
    if ticked.disputed or any(ping.reachable for ping in trouble.values()):
        raise SystemExit(_BAD_NEWS)
    if trouble:
        raise SystemExit(_OUT_OF_REACH)


def _comment(ticked: Ticked, elsewhere: dict[str, int]) -> None:
    if not ticked.is_complete:
        click.echo("The time was over before the work was: run it again.", err=True)
    if ticked.disputed:
        click.echo(
            f"{ticked.disputed} settlement(s) became disputed: nobody can tell whether the money moved, or it came "
            "back. It stays in transit and is not sent again. Look with `tally explain ID`, then resolve.",
            err=True,
        )
    if ticked.reclaims_are_frequent:
        click.echo(
            f"warning: {ticked.reclaimed} of {ticked.claimed + ticked.reclaimed} were stuck. That should be rare: look "
            "for killed workers, a slow provider, or a TALLY_SETTLEMENT_TIMEOUT_SECONDS that is too short.",
            err=True,
        )
    for name, rows in elsewhere.items():
        click.echo(
            f"warning: {rows} unfinished settlement(s) are for {name}, which is not configured here; not looked at.",
            err=True,
        )


async def _settle(
    settings: Settings, budget: float | None, limit: int | None
) -> tuple[Ticked, dict[str, Reachability], dict[str, int]]:
    async with opened(settings) as service:
        try:
            async with _progress(service.sender):
                ticked = await service.settler.tick(budget_seconds=budget, most=limit)
            elsewhere = await recovery.elsewhere(service.database, list(service.providers))
        except (Unreachable, OutcomeUnknown, Busy, InFlight) as error:
            raise Interrupted(error, settings) from error
        pings = {name: await _ping(provider) for name, provider in service.providers.items()} if ticked.waiting else {}
        return ticked, {name: ping for name, ping in pings.items() if not ping.authorised}, elsewhere


class Interrupted(TallystickError):
    """The database went away during a tick. What callers of other commands are told of the money would be wrong."""

    def __init__(self, error: TallystickError, settings: Settings) -> None:
        """`error` is what the tick ran into."""
        reason = str(error).split(". ", 1)[0]
        super().__init__(
            f"{reason}. The tick broke off. What it had claimed may have been sent, and nothing else was; the money of "
            "those settlements is in transit. Run `tally settle` again: what is overdue (after "
            f"{settings.settlement_timeout_seconds:g} s) is asked about before anything is sent again."
        )


async def _ping(provider: Provider) -> Reachability:
    try:
        async with asyncio.timeout(_PING_SECONDS):
            return await provider.ping()
    except TimeoutError:
        detail = f"no answer within {_PING_SECONDS:g} s"
        return Reachability(reachable=False, authorised=False, detail=detail, seconds=_PING_SECONDS)


@asynccontextmanager
async def _progress(sender: Sender) -> AsyncIterator[None]:
    """Tell a person at a terminal how far it is."""
    if not sys.stderr.isatty():
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        watching = asyncio.create_task(_watch(progress, sender))
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def _watch(progress: Progress, sender: Sender) -> None:
    task = progress.add_task("settling", total=None)
    while True:
        told = ", ".join(f"{count:,} {answer}" for (_, answer), count in sorted(sender.answers.items()))
        progress.update(task, description=f"settling: {sender.answers.total():,} answered ({told or 'none yet'})")
        await asyncio.sleep(_LOOK_SECONDS)
