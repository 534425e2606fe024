"""`tally probe`: the five adversarial probes."""

import json

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tallystick.cli.running import run
from tallystick.probes import ground
from tallystick.probes.runner import PROBES
from tallystick.probes.runner import probe as attack


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...", type=click.Choice([*PROBES]))
@click.option("--seed", default=1, show_default=True, help="Chooses the random payouts; the same seed, the same ones.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every way that was tried.")
def probe(names: tuple[str, ...], *, seed: int, as_json: bool) -> None:
    """Attack the settlements in every way we know, and see whether one wins. About a minute for all five.

    \b
    double_payment        pay twice, by retrying the tick
    fee_bypass            pay less than the fee
    stuck_recovery_race   two recoveries, and the original resumed after its lease
    key_nondeterminism    two keys for one payout, or one key for two
    cross_tenant_leak     see or move what another tenant has

    Each way is also tried against a naive implementation, where it must win: an attack that cannot win proves nothing.
    Runs on a PostgreSQL and a provider simulator of its own, which are thrown away. Never touches your data.

    Exit status 1 when an attack wins, or when one does not win against the naive implementation.
    """  # noqa: D301 - click's own mark for lines that stay as they are
    found = []
    with (
        Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as progress,
        ground.opened() as opened,
    ):
        for name in names or PROBES:
            task = progress.add_task(f"probe {name}", total=None)
            found.append(run(attack(name, opened, seed=seed)))
            progress.remove_task(task)
            if not as_json:
                click.echo(found[-1].line())
    holds = all(probed.verdict == "held" for probed in found)
    if as_json:
        click.echo(json.dumps({"holds": holds, "seed": seed, "probes": [probed.summary() for probed in found]}))
    for trouble in (trouble for probed in found for trouble in probed.troubles()):
        click.echo(trouble, err=True)
    if not holds:
        raise SystemExit(1)
