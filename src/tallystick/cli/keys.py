"""`tally keys`: API keys per tenant and role."""

import json
import re

import click

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.running import run
from tallystick.core.idempotency import Tenant
from tallystick.errors import Misconfigured
from tallystick.store import tenant as tenants

_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@click.group()
def keys() -> None:
    """Make, list and revoke API keys. A key belongs to one tenant and one role."""


def _tenant_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not _TENANT.fullmatch(value):
        message = "a tenant's name is 1 to 63 lower-case letters, digits, - and _"
        raise click.BadParameter(message)
    return value


_tenant = click.option("--tenant", default="default", show_default=True, callback=_tenant_name)


@keys.command()
@_tenant
@click.option("--role", type=click.Choice(tenants.ROLES), default="operator", show_default=True)
def create(tenant: str, role: str) -> None:
    """Make a key and print it. It is shown this once; the database keeps only its digest.

    A tenant that does not exist yet is made.
    """
    key = tenants.new_key()
    prefix = run(_create(tenant, role, key))
    click.echo(key)
    click.echo(f"{role} key {prefix}... of tenant {tenant}. Keep it: it is not shown again.", err=True)


async def _create(tenant: str, role: str, key: str) -> str:
    async with app.running(configuration.load()) as service:
        owner = await tenants.ensure_tenant(service.database, tenant)
        return await tenants.add_key(service.database, owner, role, key)


@keys.command()
@_tenant
@click.argument("prefix")
def revoke(tenant: str, prefix: str) -> None:
    """Revoke the key that begins with PREFIX. Running services forget it within five seconds."""
    if not run(_revoke(tenant, prefix)):
        click.echo(f"There is no such key of tenant {tenant}, or it was revoked before.", err=True)
        raise SystemExit(1)
    click.echo(f"revoked {prefix}", err=True)


async def _revoke(tenant: str, prefix: str) -> bool:
    async with app.running(configuration.load()) as service:
        return await tenants.revoke_key(service.database, await _found(service, tenant), prefix)


@keys.command("list")
@_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def list_(tenant: str, as_json: bool) -> None:  # noqa: FBT001 - click passes flags by position
    """List a tenant's keys: prefix, role, when made and when revoked."""
    found = run(_list(tenant))
    if as_json:
        rows = [
            {
                "prefix": key.prefix,
                "role": key.role,
                "created_at": key.created_at.isoformat(),
                "revoked_at": key.revoked_at and key.revoked_at.isoformat(),
            }
            for key in found
        ]
        click.echo(json.dumps({"keys": rows}))
        return
    for key in found:
        state = f"revoked {key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else "active"
        click.echo(f"{key.prefix}  {key.role:<9} made {key.created_at:%Y-%m-%d %H:%M}  {state}")


async def _list(tenant: str) -> list[tenants.KeyView]:
    async with app.running(configuration.load()) as service:
        return await tenants.list_keys(service.database, await _found(service, tenant))


async def _found(service: app.Service, name: str) -> Tenant:
    tenant = await service.tenant(name)
    if tenant is None:
        message = f"There is no tenant {name!r}."
        raise Misconfigured(message)
    return tenant
