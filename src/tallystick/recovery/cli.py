"""`tally recover`: after a restore, ask before anything is sent again."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import click
import msgspec

from tallystick import settings as configuration
from tallystick.cli.opened import opened
from tallystick.cli.person import system_user
from tallystick.cli.running import run
from tallystick.errors import TallystickError
from tallystick.recovery.flow import Recovered
from tallystick.recovery.flow import recover as ask
from tallystick.settings import Settings

_BAD_NEWS, _OUT_OF_REACH = 1, 3
_BROKEN_OFF: Final = (
    "Broken off before it was finished: nothing is sent from this database until `tally recover` has run to its end. "
    "Run it again: it goes on with the wait that began. Nothing is lost, and nothing was sent."
)
_PAYOUTS: Final = {
    "marked": "unfinished payouts newly marked to be asked about (by a run that was broken off: counted there)",
    "looked_up": "looked up in a provider's books",
    "transferred": "the provider had it: recorded",
    "cleared": "proven absent: a tick may send it",
    "disputed": "nobody can tell: a person must decide",
    "undecided": "not asked about yet",
    "orphans": "payouts at a provider that no row here explains",
    "keys_differ": "rows whose stored key is not the one their content gives",
}
# Of charges and of refunds.
_OTHERS: Final = {
    "marked": "unfinished {kind} newly marked to be asked about (by a run that was broken off: counted there)",
    "looked_up": "questions to a provider's books",
    "found": "the provider's word is known: recorded",
    "absent": "proven absent: {who}",
    "waiting_for_person": "nobody can tell: a person must look",
    "undecided": "not asked about yet, or not answered",
    "orphans": "{kind} at a provider that no row here explains",
    "keys_differ": "rows whose stored key is not the one their content gives",
}
_WHO_SENDS: Final = {
    "charges": "a click or the collector may send it, while its order may be paid",
    "refunds": "the financial sweeper may send it",
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
    """After a restore from backup: look up everything unfinished at its provider before anything is sent again.

    Stops all sending from this database, recomputes the key of every unfinished payout, charge and refund, waits until
    nothing of before can be on its way (minutes), asks the providers' books, records what they have, keeps what nobody
    here explains, and then lets `tally settle`, clicks and the workers go on. What nobody can be asked about (Adyen
    shows neither payments nor refunds) waits for a person and stops nothing else. Sends no money. Safe to run twice, to
    kill at any moment, and to run where nothing was restored. Broken off, sending stays stopped; the next run goes on
    with the wait that began.

    Exit status: 0 all is known and sending goes on; 1 a person must look, or it is not finished: run it again; 2 wrong
    settings; 3 the database, or a provider, is out of reach: sending stays stopped; 130 broken off by Ctrl-C.
    """
    told_of: list[str] = []

    def tell(line: str) -> None:
        told_of.append(line)
        click.echo(line, err=True)

    try:
        recovered = run(_recover(configuration.load(), wait=wait, without=without, tell=tell))
    except (KeyboardInterrupt, TallystickError):
        # What the error itself says is meant for a caller who sent something.
        if told_of:
            click.echo(_BROKEN_OFF, err=True)
        raise
    told = _flat(recovered)
    if as_json:
        click.echo(json.dumps(told))
    else:
        for name, meaning in _MEANINGS.items():
            click.echo(f"{name:<26} {told[name]:>9,}  {meaning}")
    _comment(recovered)
    if not recovered.is_confirmed:
        raise SystemExit(_OUT_OF_REACH if recovered.unreachable else _BAD_NEWS)
    if recovered.elsewhere or any(told[name] for name in _FOR_A_PERSON):
        raise SystemExit(_BAD_NEWS)


def _flat(recovered: Recovered) -> Mapping[str, Any]:
    """What of payouts has the plain names; of charges and refunds, names that begin with their kind."""
    told: dict[str, Any] = msgspec.to_builtins(recovered)
    for kind in _WHO_SENDS:
        told |= {f"{kind}_{name}": value for name, value in told.pop(kind).items()}
    return told


def _meanings() -> Mapping[str, str]:
    others = {
        f"{kind}_{name}": meaning.format(kind=kind, who=who)
        for kind, who in _WHO_SENDS.items()
        for name, meaning in _OTHERS.items()
    }
    return _PAYOUTS | others


_MEANINGS: Final = _meanings()
_FOR_A_PERSON: Final = tuple(
    name for name in _MEANINGS if name.endswith(("disputed", "orphans", "keys_differ", "waiting_for_person"))
)


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
    if recovered.charges.waiting_for_person:
        click.echo(
            f"{recovered.charges.waiting_for_person} charge(s) wait for a person; nothing is charged beside them. List "
            "them with `tally payments list`, look at the provider, then `tally payments resolve`.",
            err=True,
        )
    if recovered.refunds.waiting_for_person:
        click.echo(
            f"{recovered.refunds.waiting_for_person} refund(s) wait for a person; they stay owed, and nothing is sent. "
            "List them with `tally refunds list`, look at the provider, then `tally refunds decide`.",
            err=True,
        )
    if recovered.orphans:
        click.echo(
            f"{recovered.orphans} movement(s) at a provider belong to no settlement here: they were made after the "
            "backup, and their rows are lost. Create those settlements again: they are asked about, not sent. "
            "`tally.orphan` lists them.",
            err=True,
        )
    lost = recovered.charges.orphans, recovered.refunds.orphans
    if any(lost):
        click.echo(
            f"{lost[0]} charge(s) and {lost[1]} refund(s) at a provider belong to nothing here: they were made after "
            "the backup, and their rows are lost. An order that is made again under its key finds its charge; of the "
            "others the provider's events tell (`tally breaks list`). `tally.orphan` lists them.",
            err=True,
        )
    for name, rows in recovered.elsewhere.items():
        click.echo(
            f"{name} moved money for this database and is not configured here: nobody was asked about its {rows} "
            "unfinished payout(s), charge(s) and refund(s), nor what it moved since the backup. Configure it and run "
            f"`tally recover` again; or leave it out on purpose: `tally recover --without {name}`.",
            err=True,
        )
    if recovered.is_confirmed:
        click.echo("Sending goes on: `tally settle` and the workers may run.", err=True)


async def _recover(
    settings: Settings, *, wait: bool, without: tuple[str, ...], tell: Callable[[str], None]
) -> Recovered:
    async with opened(settings) as service:
        return await ask(
            service.database,
            service.providers,
            service.settler,
            service.payments,
            service.refunds,
            by=system_user(),
            wait=wait,
            without=without,
            tell=tell,
        )
