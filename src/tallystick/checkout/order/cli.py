"""`tally sweep`: one run of the sweepers."""

import json

import click
import msgspec

from tallystick import settings as configuration
from tallystick.checkout.order.rules import Swept
from tallystick.checkout.refund.flow import SweptRefunds
from tallystick.cli.opened import opened
from tallystick.cli.running import run
from tallystick.settings import LIMITS, Settings

_BAD_NEWS = 1
_MEANINGS = {
    "cancelled": "reservations that nobody paid in time",
    "released": "pieces that are for sale again",
    "told": "reservations that the provider shows as paid: the saga makes them PAID",
    "held": "reservations that wait for a provider's word about their payment",
    "refused": "reservations that the database would not let go: run `tally verify`",
}
_REFUND_MEANINGS = {
    "completed": "refunds that the provider has now",
    "waiting": "refunds that wait: the provider is away, or must be asked again",
    "failed": "refunds that failed for good: a person must look (`tally breaks list`)",
}


@click.command()
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N of each. Default: all that is due.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def sweep(*, limit: int | None, as_json: bool) -> None:
    """Give back stock that nobody paid for in time, and money that is owed.

    One run, for every tenant: for cron. Reservations past their time and the grace after it
    (TALLY_RESERVATION_GRACE_SECONDS) are cancelled, those that were charged only once every webhook received in time is
    processed (`tally work`); refunds that are due are asked about, or sent under the one key
    they have; backorders get the stock that is free again. The time is the database's. Safe to run twice at once,
    beside payments, and to kill at any moment: each is given back once. Prints counts.

    Exit status: 0 done; 1 the counters of a SKU are damaged, or a refund failed for good; 2 wrong usage or settings; 3
    the database is out of reach.
    """
    swept, refunds, filled = run(_sweep(configuration.load(), limit))
    if as_json:
        told = {**msgspec.to_builtins(swept), "refunds": msgspec.to_builtins(refunds), "filled": filled}
        click.echo(json.dumps(told))
    else:
        for name, meaning in _MEANINGS.items():
            click.echo(f"{name:<12} {getattr(swept, name):>9,}  {meaning}")
        for name, meaning in _REFUND_MEANINGS.items():
            click.echo(f"{name:<12} {getattr(refunds, name):>9,}  {meaning}")
        click.echo(f"{'filled':<12} {filled:>9,}  backorders that got their stock")
    if not swept.is_complete:
        click.echo("The limit was reached before the end: run it again.", err=True)
    if swept.refused or refunds.failed:
        raise SystemExit(_BAD_NEWS)


async def _sweep(settings: Settings, limit: int | None) -> tuple[Swept, SweptRefunds, int]:
    async with opened(settings) as service:
        swept = await service.orders.sweep(most=limit, patience_seconds=LIMITS.sweep_patience_seconds)
        refunds = await service.refunds.sweep_all(most=limit)
        return swept, refunds, await service.refunds.fill_backorders()
