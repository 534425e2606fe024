"""`tally breaks`: what nothing here explains, or contradicts what is here."""

import json
from typing import Final

import click
import msgspec

from tallystick import settings as configuration
from tallystick.checkout import break_store as payment_break
from tallystick.checkout.break_store import BreakView
from tallystick.cli.opened import opened
from tallystick.cli.person import system_user
from tallystick.cli.running import run
from tallystick.money.amounts import format_amount
from tallystick.settings import LIMITS, Settings

_BAD_NEWS: Final = 1
_MEANINGS: Final = {
    "missing_here": "nobody here asked for it; never refunded by us",
    "refunded_outside": "a payment of ours was given back, and not by us",
    "disputed": "the customer's bank took it back",
    "contradicted": "the provider says two things that cannot both be so",
    "refund_failed": (
        "not given back. A part that was asked for is in the tenant's sales again: ask for it under a new key, then "
        "close this. All of a payment that did not fit is still owed: POST /v1/orders/{id}/refund/decide begins the "
        "next refund. `tally explain` of the order tells which it is"
    ),
}


@click.group()
def breaks() -> None:
    """List payments and refunds that do not fit the books, and close those that a person has looked at."""


@breaks.command("list")
@click.option("--all", "is_all", is_flag=True, help="Also those that are resolved.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, LIMITS.page), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_(*, is_all: bool, limit: int, as_json: bool) -> None:
    """List breaks, newest first. Reads only.

    Exit status: 0 there is none open; 1 there is one; 2 wrong usage or settings; 3 the database is out of reach.
    """
    found = run(_list(configuration.load(), is_all, limit))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        for one in found:
            click.echo(_line(one))
        if not found:
            click.echo("No breaks: what providers told fits the books.", err=True)
    if any(one.resolved_at is None for one in found):
        raise SystemExit(_BAD_NEWS)


@breaks.command()
@click.argument("number", type=click.IntRange(min=1))
@click.option("--resolution", required=True, help="What was found out, in a sentence. Kept for good.")
def resolve(*, number: int, resolution: str) -> None:
    """Close a break that you have looked at. Moves no money. Kept with your system user's name.

    Exit status: 0 closed; 1 there is no such open break; 2 wrong usage or settings; 3 the database is out of reach.
    """
    if not resolution.strip():
        raise click.BadParameter("say what was found out", param_hint="--resolution")
    if not run(_resolve(configuration.load(), number, resolution.strip())):
        click.echo(f"There is no open break {number}: see `tally breaks list --all`.", err=True)
        raise SystemExit(_BAD_NEWS)
    click.echo(f"Break {number} is closed.")


async def _list(settings: Settings, is_all: bool, limit: int) -> list[BreakView]:  # noqa: FBT001 - a click's own flag
    async with opened(settings) as service:
        return await payment_break.list_breaks(service.database, is_all=is_all, most=limit)


async def _resolve(settings: Settings, number: int, resolution: str) -> bool:
    async with opened(settings) as service:
        return await payment_break.resolve(service.database, number, resolution=resolution, by=system_user())


def _line(one: BreakView) -> str:
    amount = format_amount(one.amount_micros, one.currency)
    text = f"{one.number:>6}  {one.found_at:%Y-%m-%d %H:%M:%S}  {one.kind:<16} {one.provider} {one.purpose}"
    text += f" {one.object_id}  {amount}  {one.word}"
    if one.order_id is not None:
        text += f"  order {one.order_id}"
    if one.resolved_at is not None:
        return f"{text}  resolved by {one.resolved_by}: {one.resolution}"
    return f"{text}\n        {_MEANINGS[one.kind]}"
