"""`tally reconcile`: the provider's half against ours."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tallystick import settings as configuration
from tallystick.cli.opened import opened
from tallystick.cli.person import system_user
from tallystick.cli.running import run
from tallystick.errors import Busy, InFlight, OutcomeUnknown, Unreachable
from tallystick.reconciliation import flow
from tallystick.reconciliation.flow import Break, Compared, Reconciled

_BAD_NEWS, _OUT_OF_REACH = 1, 3
_UNITS: Final = {"d": "days", "h": "hours", "min": "minutes", "s": "seconds"}
_AGO: Final = re.compile(rf"(\d{{1,5}})({'|'.join(_UNITS)})")


def moment(text: str) -> flow.Moment:
    """A time in RFC 3339 or a date, or how long ago: a number of days, hours, minutes or seconds."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text!r} is neither a time (2026-01-31T12:00:00Z, 2026-01-31) nor a span (36h, 7d)."
        raise click.BadParameter(message) from error
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


@click.command()
@click.option("--since", type=moment, metavar="T", help="Sent from then on: a time, a date, or how long ago (36h).")
@click.option("--until", type=moment, metavar="T", help="Sent before then. Default: now.")
@click.option("--provider", metavar="P", help="This one only. Default: every configured one.")
@click.option("--repair", is_flag=True, help="Dispute what is contradicted or missing at the provider.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def reconcile(
    *, since: flow.Moment | None, until: flow.Moment | None, provider: str | None, repair: bool, as_json: bool
) -> None:
    """Compare the providers' books with the settlements of all tenants, both ways round, and list every break.

    Reads every transfer and payout that a provider made in the span, and asks by its id for what was sent in the span
    and is not in that list. The span reaches back, unless --since tells otherwise, as far as the provider's successes
    can still be undone (a week at least): a payout that comes back later than its span is not seen.

    Sends no money, and changes nothing without --repair. With it, settlements that the provider contradicts or does
    not have become disputed, and the ledger follows; a person resolves them. Safe to run twice, beside workers, and to
    kill at any moment.

    Exit status: 0 no breaks; 1 breaks; 2 wrong usage or settings; 3 the database, or a provider, is out of reach: then
    the run is not the whole.
    """
    output = _Json() if as_json else _Lines()
    try:
        found = run(_reconcile(output, since=since, until=until, only=provider, repair=repair))
    except (Busy, InFlight, OutcomeUnknown, Unreachable) as error:
        output.break_off()
        # What callers of other commands are told of their requests would be wrong here.
        reason = str(error).split(". ", 1)[0]
        click.echo(
            f"tally: {reason}. The comparison broke off: what it told is true, and not the whole. No money moved. "
            "Run it again.",
            err=True,
        )
        raise SystemExit(_OUT_OF_REACH) from error
    output.end(found)
    for one in found.compared:
        if one.broken_off is not None:
            click.echo(f"{one.provider}: not the whole. {one.broken_off}", err=True)
    for name, why in found.not_compared.items():
        click.echo(f"{name}: not compared; {why}.", err=True)
    if not found.is_complete:
        raise SystemExit(_OUT_OF_REACH)
    if found.breaks:
        raise SystemExit(_BAD_NEWS)


async def _reconcile(
    output: "_Lines | _Json", *, only: str | None, repair: bool, **span: flow.Moment | None
) -> Reconciled:
    async with opened(configuration.load()) as service:
        with _progress() as progress:
            return await flow.reconcile(
                service.database,
                service.providers,
                service.reviews,
                by=system_user(),
                since=span["since"],
                until=span["until"],
                only=only,
                repair=repair,
                tell=output.tell,
                progress=progress,
            )


class _Lines:
    """For a person: a line for each break as it is found, then one for each provider."""

    def tell(self, one: Break) -> None:
        done = " Repaired: it is disputed now." if one.is_repaired else ""
        click.echo(_printable(f"{one.kind:<14} {one.said}{done}"))

    def end(self, found: Reconciled) -> None:
        for one in found.compared:
            click.echo(f"{one.provider}: {_summary(one)}")

    def break_off(self) -> None:
        """What was told stands."""


class _Json:
    """One object, written as it is found: memory does not grow with the breaks."""

    def __init__(self) -> None:
        self._told = 0

    def tell(self, one: Break) -> None:
        click.echo("," if self._told else '{"breaks": [')
        click.echo(json.dumps(msgspec.to_builtins(one)), nl=False)
        self._told += 1

    def end(self, found: Reconciled) -> None:
        self._end(is_complete=found.is_complete, found=found.breaks, **msgspec.to_builtins(found))

    def break_off(self) -> None:
        if self._told:
            self._end(is_complete=False)

    def _end(self, **rest: object) -> None:
        click.echo("]," if self._told else '{"breaks": [],', nl=False)
        click.echo(json.dumps(rest)[1:])


def _summary(one: Compared) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in one.breaks.items())
    span = f"from {one.since:%Y-%m-%dT%H:%M:%SZ} to {one.until:%Y-%m-%dT%H:%M:%SZ}"
    parts = [
        f"{one.movements:,} movements and {one.expected:,} settlements sent {span}",
        f"{one.asked:,} asked for by id" if one.asked else "",
        f"breaks: {kinds}" if kinds else "no breaks",
        f"{one.repaired:,} repaired" if one.repaired else "",
        f"{one.timing:,} too fresh to judge" if one.timing else "",
        "NOT THE WHOLE: it broke off" if one.broken_off is not None else "",
    ]
    return "; ".join(filter(None, parts))


def _printable(text: str) -> str:
    """Ids and words of a provider's reach a terminal here."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


@contextmanager
def _progress() -> Iterator[flow.Progress]:
    if not sys.stderr.isatty():
        yield lambda _provider, _movements: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=None)

        def show(provider: str, movements: int) -> None:
            progress.update(task, description=f"reading {provider}: {movements:,} movements")

        yield show
