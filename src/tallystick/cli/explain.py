"""`tally explain`: everything known of a key or an id."""

import json

import click
import msgspec

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.running import run
from tallystick.errors import Misconfigured
from tallystick.store.explain import Explanation
from tallystick.store.explain import explain as find
from tallystick.store.explain_webhook import explain_events


@click.command()
@click.argument("key_or_id")
@click.option("--tenant", default="default", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def explain(key_or_id: str, tenant: str, as_json: bool) -> None:  # noqa: FBT001 - click passes flags by position
    """Show everything known of a key or an id, as a timeline.

    An idempotency key, a transaction (tx_...), an account, an order (or_...), a settlement (st_...), a provider key (64
    hexadecimal digits), the id that a provider gave to a transfer, or a webhook event (its number, or the provider's
    id). Every attempt is shown with what was answered and the provider's id of the request; every question with its
    evidence; every decision with who made it and why; of an event what it told, how it stands, and what it concerned.

    Changes nothing. Exit status 1 when nothing is known.
    """
    found = run(_explain(tenant, key_or_id))
    if as_json:
        click.echo(json.dumps({"found": msgspec.to_builtins(found, builtin_types=())}, default=str))
    else:
        for explanation in found:
            _show(explanation)
    if not found:
        click.echo(
            f"Nothing is known of {key_or_id!r} for tenant {tenant}: it was never committed, so no money moved. "
            f"If it was a key, it is unused.",
            err=True,
        )
        raise SystemExit(1)


def _show(explanation: Explanation) -> None:
    click.echo(f"{explanation.what} {explanation.id}")
    click.echo(f"  {explanation.summary}")
    for step in explanation.timeline:
        click.echo(f"  {step.at:%Y-%m-%d %H:%M:%S.%f}  {step.what}")


async def _explain(tenant: str, name: str) -> list[Explanation]:
    async with app.running(configuration.load(), migrating=False) as service:
        owner = await service.tenant(tenant)
        if owner is None:
            message = f"There is no tenant {tenant!r}."
            raise Misconfigured(message)
        # Only here, for whoever has the database: to a tenant's own callers an event is not shown.
        events = await explain_events(service.database, owner, name)
        return [*await find(service.database, owner, name), *events]
