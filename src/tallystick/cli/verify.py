"""`tally verify`: the constitution against this database."""

import json

import click
import msgspec

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.opened import say_which
from tallystick.cli.running import run
from tallystick.database.migrate import require_current
from tallystick.database.verify import Verdict
from tallystick.database.verify import verify as check


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def verify(as_json: bool) -> None:  # noqa: FBT001 - click passes flags by position
    """Check every invariant against the rows, in one snapshot. Changes nothing, safe beside a working engine.

    One line per invariant. Exit status 1 when one does not hold.
    """
    verdicts = run(_verify(talk=not as_json))
    broken = sum(verdict.broken for verdict in verdicts)
    if as_json:
        click.echo(json.dumps({"holds": broken == 0, "invariants": [msgspec.to_builtins(v) for v in verdicts]}))
    elif broken:
        click.echo("Some invariants do not hold: stop writing, keep the database as it is, and look.", err=True)
    if broken:
        raise SystemExit(1)


async def _verify(*, talk: bool) -> list[Verdict]:
    verdicts = []
    settings = configuration.load()
    say_which(settings)
    async with app.database_address(settings, making=False, direct=True) as (dsn, _notes):
        await require_current(dsn)
        async for verdict in check(dsn):
            verdicts.append(verdict)
            if talk:
                mark = "BROKEN" if verdict.broken else "holds "
                count = f"{verdict.broken} of {verdict.checked}" if verdict.broken else f"{verdict.checked} checked"
                click.echo(f"{mark} {verdict.invariant:<19} {verdict.promise} ({count})")
                for note in verdict.notes:
                    click.echo(f"note   {note}")
    return verdicts
