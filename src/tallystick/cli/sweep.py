"""`tally sweep`: one run of the sweeper."""

import json

import click
import msgspec

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.running import run
from tallystick.core.order import Swept
from tallystick.settings import Settings

_BAD_NEWS = 1
_MEANINGS = {
    "cancelled": "reservations that nobody paid in time",
    "released": "pieces that are for sale again",
    "refused": "reservations that the database would not let go: run `tally verify`",
}


@click.command()
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N reservations. Default: all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def sweep(*, limit: int | None, as_json: bool) -> None:
    """Cancel the reservations that are past their time and the grace after it, and give their stock back.

    One run, for every tenant: for cron. The time is the database's; TALLY_RESERVATION_GRACE_SECONDS is the grace. Safe
    to run twice at once, beside payments, and to kill at any moment: each is given back once. Prints counts.

    Exit status: 0 done; 1 the counters of a SKU are damaged, and its reservations stay; 2 wrong usage or settings; 3
    the database is out of reach.
    """
    swept = run(_sweep(configuration.load(), limit))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(swept)))
    else:
        for name, meaning in _MEANINGS.items():
            click.echo(f"{name:<12} {getattr(swept, name):>9,}  {meaning}")
    if not swept.is_complete:
        click.echo("The limit was reached before the end: run it again.", err=True)
    if swept.refused:
        raise SystemExit(_BAD_NEWS)


async def _sweep(settings: Settings, limit: int | None) -> Swept:
    async with app.running(settings, migrating=False) as service:
        return await service.orders.sweep(most=limit)
