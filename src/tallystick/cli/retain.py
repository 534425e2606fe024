"""`tally retain`: let go what the tenants' policies let go."""

import json

import click
import msgspec

from tallystick import settings as configuration
from tallystick.cli.opened import opened
from tallystick.cli.running import run
from tallystick.database import retention
from tallystick.database.retention import Trimmed


@click.command()
@click.option("--dry-run", is_flag=True, help="Count what would go; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def retain(*, dry_run: bool, as_json: bool) -> None:
    """Trim what grows, by each tenant's policy (`tally policy retention`). Without a policy everything is kept.

    What goes: the providers' own words in answered attempts; outbox rows that every follower has read; days of webhook
    bodies, detached as tables of their own, and with the next run what ended events of such days told. Old answers to
    decisions move to an archive, and are answered from there for ever. What stays: verdicts, keys, times of sending,
    server errors, orphans, the journal: no decision changes, and no webhook is taken for new that was told before.

    For cron. Safe beside a working service, to run twice at once, and to kill. Prints rows and bytes of each kind.
    Exit status: 0 done, 2 wrong usage, settings or too little right, 3 the database is out of reach.
    """
    found = run(_retain(is_dry=dry_run))
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, "trimmed": [msgspec.to_builtins(one) for one in found]}))
        return
    for one in found:
        click.echo(f"{one.tenant:<20} {one.what:<32} {one.rows:>12,} rows {one.bytes:>16,} bytes")
    if dry_run:
        click.echo("A dry run: nothing was changed.", err=True)


async def _retain(*, is_dry: bool) -> list[Trimmed]:
    async with opened(configuration.load()) as service:
        return [one async for one in retention.retain(service.database, is_dry=is_dry)]
