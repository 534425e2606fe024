"""`tally approvals`: what waits for a second person."""

import json

import click
import msgspec

from tallystick import settings as configuration
from tallystick.authority.approvals import ApprovalView, list_approvals
from tallystick.cli.opened import opened
from tallystick.cli.running import run
from tallystick.errors import Misconfigured
from tallystick.settings import LIMITS


@click.command()
@click.option("--tenant", default="default", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def approvals(*, tenant: str, as_json: bool) -> None:
    """List what waits for a second person, oldest first: payouts that are held, other generations, refunds.

    Decide with a key of your own name, of the role approver or admin: POST /v1/approvals/{id} with "decision" (approve
    or reject) and "reason". Changes nothing.
    """
    found = run(_list(tenant))
    if as_json:
        click.echo(json.dumps({"approvals": [msgspec.to_builtins(one) for one in found]}))
        return
    for one in found:
        subject = one.settlement or one.order
        click.echo(
            f"{one.id}  {one.action:<15} {subject}  {one.asked_at:%Y-%m-%d %H:%M} by {one.asked_by}: {one.reason}"
        )
    if not found:
        click.echo(f"Nothing of tenant {tenant} waits for a second person.", err=True)


async def _list(tenant: str) -> list[ApprovalView]:
    async with opened(configuration.load()) as service:
        owner = await service.tenant(tenant)
        if owner is None:
            raise Misconfigured(f"There is no tenant {tenant!r}.")
        return await list_approvals(service.database, owner, most=LIMITS.page)
