"""`tally recover`: after a restore, ask before anything is sent again."""

import json
from typing import Final

import click
import msgspec

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.person import system_user
from tallystick.cli.running import run
from tallystick.flows.recovery import Recovered
from tallystick.flows.recovery import recover as ask
from tallystick.settings import Settings

_BAD_NEWS, _OUT_OF_REACH = 1, 3
_MEANINGS: Final = {
    "marked": "unfinished payouts that must be asked about, newly found",
    "looked_up": "questions to a provider's books",
    "transferred": "the provider had it: recorded",
    "cleared": "proven absent: a tick may send it",
    "disputed": "nobody can tell: a person must decide",
    "undecided": "not asked about yet",
    "orphans": "movements at a provider that no row here explains",
    "keys_differ": "rows whose stored key is not the one their content gives",
}


@click.command()
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Wait until nothing that was sent before the restore can still be on its way (minutes).",
)
@click.option(
    "--without",
    multiple=True,
    metavar="PROVIDER",
    help="A provider that is used no more and need not be asked. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def recover(*, wait: bool, without: tuple[str, ...], as_json: bool) -> None:
    """After a restore from backup: look up every unfinished payout at its provider before anything is sent again.

    Stops all sending from this database, recomputes the key of every unfinished settlement, asks the providers' books,
    records what they have, keeps what nobody here explains, and then lets `tally settle` and the workers go on. Sends
    no money. Safe to run twice, to kill at any moment, and to run where nothing was restored.

    Exit status: 0 all is known and sending goes on; 1 a person must look, or it is not finished: run it again; 2 wrong
    settings; 3 the database, or a provider, is out of reach: sending stays stopped.
    """
    recovered = run(_recover(configuration.load(), wait=wait, without=without))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(recovered)))
    else:
        for name, meaning in _MEANINGS.items():
            click.echo(f"{name:<12} {getattr(recovered, name):>9,}  {meaning}")
    _comment(recovered)
    if not recovered.is_confirmed:
        raise SystemExit(_OUT_OF_REACH if recovered.unreachable else _BAD_NEWS)
    if recovered.disputed or recovered.orphans or recovered.keys_differ or recovered.elsewhere:
        raise SystemExit(_BAD_NEWS)


def _comment(recovered: Recovered) -> None:
    for name in recovered.unreachable:
        click.echo(f"{name} could not be asked for all it has. Run `tally recover` again when it answers.", err=True)
    if not recovered.is_confirmed:
        when = f" in {recovered.wait_seconds:.0f} s" if recovered.wait_seconds else ""
        click.echo(f"Not finished: nothing is sent from this database. Run `tally recover` again{when}.", err=True)
    if recovered.disputed:
        click.echo(
            f"{recovered.disputed} settlement(s) became disputed; their money stays in transit. Look with "
            "`tally explain ID`, then resolve them.",
            err=True,
        )
    if recovered.orphans:
        click.echo(
            f"{recovered.orphans} movement(s) at a provider belong to no settlement here: they were made after the "
            "backup, and their rows are lost. Create those settlements again: they are asked about, not sent. "
            "`tally.orphan` lists them.",
            err=True,
        )
    for name, rows in recovered.elsewhere.items():
        click.echo(
            f"{name} paid for this database and is not configured here: nobody was asked about its {rows} unfinished "
            "settlement(s), nor what it paid since the backup. Configure it and run `tally recover` again; or leave it "
            f"out on purpose: `tally recover --without {name}`.",
            err=True,
        )
    if recovered.is_confirmed:
        click.echo("Sending goes on: `tally settle` and the workers may run.", err=True)


async def _recover(settings: Settings, *, wait: bool, without: tuple[str, ...]) -> Recovered:
    async with app.running(settings, migrating=False) as service:
        return await ask(
            service.database,
            service.providers,
            service.settler,
            by=system_user(),
            wait=wait,
            without=without,
            tell=lambda line: click.echo(line, err=True),
        )
