"""`tally settlements`: payouts as they stand."""

import json
from typing import Final, get_args

import click
import msgspec

from tallystick import settings as configuration
from tallystick.cli.opened import opened
from tallystick.cli.running import run
from tallystick.errors import Misconfigured
from tallystick.money.amounts import format_amount
from tallystick.settings import LIMITS, Settings
from tallystick.settlement import store
from tallystick.settlement.rules import Status
from tallystick.settlement.store import SettlementView

_BAD_NEWS: Final = 1


@click.group()
def settlements() -> None:
    """List payouts, by status, or those whose outcome is overdue."""


@settlements.command("list")
@click.option("--stuck", is_flag=True, help="Only those in transit whose answer is overdue.")
@click.option("--status", type=click.Choice(get_args(Status)), help="Only those with this status.")
@click.option("--tenant", default="default", show_default=True, help="Whose payouts.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, LIMITS.page), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_(*, stuck: bool, status: Status | None, tenant: str, limit: int, as_json: bool) -> None:
    """List a tenant's payouts, the newest first. Reads only.

    One that is stuck is asked about by `tally work` or `tally settle`; `tally explain ID` shows what was sent.

    Exit status: 0 listed; 1 with --stuck: there is one; 2 wrong usage or settings; 3 the database is out of reach.
    """
    found, more = run(_list(configuration.load(), tenant, status, stuck=stuck, most=limit))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        for one in found:
            click.echo(_line(one))
        what = "stuck" if stuck else status or "in all"
        more_text = "; there are more (--limit, or GET /v1/settlements with its cursor)" if more else ""
        click.echo(f"{len(found)} {what}{more_text}", err=True)
    if stuck and found:
        raise SystemExit(_BAD_NEWS)


async def _list(
    settings: Settings, tenant: str, status: Status | None, *, stuck: bool, most: int
) -> tuple[list[SettlementView], bool]:
    async with opened(settings) as service:
        owner = await service.tenant(tenant)
        if owner is None:
            raise Misconfigured(f"There is no tenant {tenant!r}.")
        page, cursor = await store.list_settlements(service.database, owner, status=status, stuck=stuck, most=most)
        return page, cursor is not None


def _line(one: SettlementView) -> str:
    amount = format_amount(one.amount_micros, one.currency)
    text = f"{one.changed_at:%Y-%m-%d %H:%M:%S}  {one.id}  {one.status}  {one.provider}  {one.squad_id}  {amount}"
    return f"{text}  {one.transfer_id or one.reason or ''}".rstrip()
