"""`tally explain`: everything known of a key or an id."""

import json

import click
import msgspec

from tallystick import settings as configuration
from tallystick.cli.opened import opened
from tallystick.cli.running import run
from tallystick.database.explain.flow import Explanation, Known
from tallystick.database.explain.flow import explain as find
from tallystick.database.explain.lead import SEARCHED, other_tenants
from tallystick.database.explain.operator import everything
from tallystick.errors import Misconfigured


@click.command()
@click.argument("key_or_id")
@click.option("--tenant", default="default", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def explain(key_or_id: str, tenant: str, as_json: bool) -> None:  # noqa: FBT001 - click passes flags by position
    """Show everything known of a key or an id, as a timeline.

    An idempotency key; a transaction (tx_...), an account, an order (or_...), its reservation token (rt_...), a
    settlement (st_...), an approval (ap_...); a provider key in any form; the id that a provider gave to a payment, a
    refund, a transfer, a request or an event; the number of a webhook event, a break or a record set aside; a digest of
    the journal; a SKU, an attribution, a squad, a destination, an account at a provider, the prefix of an API key, a
    mark that a provider shows. Every attempt is shown with what was answered and the provider's id of the request;
    every question with its evidence; every decision with who made it and why; of an event what it told, how it stands,
    and what it concerned.

    Changes nothing. Exit status 1 when nothing is known: then it says what was searched, and that is all it says.
    """
    known, elsewhere = run(_explain(tenant, key_or_id))
    if as_json:
        told = {"found": known.found, "searched": SEARCHED, "unfinished": known.unfinished, "tenants": elsewhere}
        click.echo(json.dumps(msgspec.to_builtins(told, builtin_types=()), default=str))
    else:
        for explanation in known.found:
            _show(explanation)
    if known.unfinished:
        click.echo(f"Not searched to the end, for want of time: {', '.join(known.unfinished)}.", err=True)
    if not known.found:
        click.echo(_unknown(key_or_id, tenant, elsewhere), err=True)
        raise SystemExit(1)


def _unknown(name: str, tenant: str, elsewhere: tuple[str, ...]) -> str:
    """No word about money: that an id is not in these books says nothing of what a provider did under it."""
    text = f"I do not know {name!r} of tenant {tenant}."
    if elsewhere:
        others = " or ".join(f"--tenant {other}" for other in elsewhere)
        return f"{text} It is known of another: ask again with {others}."
    return (
        f"{text} These were searched, of this and of the other tenants: {', '.join(SEARCHED)}. If a provider has it, "
        f"`tally reconcile` compares its books with these."
    )


def _show(explanation: Explanation) -> None:
    click.echo(f"{explanation.what} {explanation.id}")
    click.echo(f"  {explanation.summary}")
    for step in explanation.timeline:
        click.echo(f"  {step.at:%Y-%m-%d %H:%M:%S.%f}  {step.what}")


async def _explain(tenant: str, name: str) -> tuple[Known, tuple[str, ...]]:
    """What is known; where it is nothing, the tenants of whom something is."""
    async with opened(configuration.load()) as service:
        owner = await service.tenant(tenant)
        if owner is None:
            message = f"There is no tenant {tenant!r}."
            raise Misconfigured(message)
        known = await everything(service.database, owner, name)
        if known.found:
            return known, ()
        others = await other_tenants(service.database, owner)
        return known, tuple([one.name for one in others if (await find(service.database, one, name)).found])
