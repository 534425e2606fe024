"""`tally keys`: API keys per tenant and role."""

import json
import re

import click

from tallystick import app
from tallystick import settings as configuration
from tallystick.access import store as tenants
from tallystick.audit.author import is_somebody
from tallystick.cli.opened import opened
from tallystick.cli.running import run
from tallystick.errors import Misconfigured
from tallystick.ledger.claims import Tenant

_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@+-]{0,62}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@click.group()
def keys() -> None:
    """Make, list and revoke API keys. A key belongs to one tenant and one role."""


def _tenant_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not _TENANT.fullmatch(value):
        message = "a tenant's name is 1 to 63 lower-case letters, digits, - and _"
        raise click.BadParameter(message)
    return value


def _owner_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not _OWNER.fullmatch(value) or not is_somebody(value):
        message = "a name is 1 to 63 letters, digits, spaces and . _ @ + -, and not one that Tallystick uses itself"
        raise click.BadParameter(message)
    return value


_tenant = click.option("--tenant", default="default", show_default=True, callback=_tenant_name)


@keys.command()
@_tenant
@click.option("--role", type=click.Choice(tenants.ROLES), default="operator", show_default=True)
@click.option(
    "--for", "owner", required=True, callback=_owner_name, metavar="NAME", help="The person or service that uses it."
)
def create(tenant: str, role: str, owner: str) -> None:
    """Make a key and print it. It is shown this once; the database keeps only its digest.

    A key belongs to one person or one service, by NAME: what is done with it is journaled under that name, and what
    needs a second person needs one of another name, not another key. A tenant that does not exist yet is made.
    """
    key = tenants.new_key()
    prefix = run(_create(tenant, role, key, owner))
    click.echo(key)
    click.echo(f"{role} key {prefix}... of tenant {tenant} for {owner}. Keep it: it is not shown again.", err=True)


async def _create(tenant: str, role: str, key: str, owner: str) -> str:
    async with opened(configuration.load()) as service:
        found = await tenants.ensure_tenant(service.database, tenant)
        return await tenants.add_key(service.database, found, role, key, owner=owner)


@keys.command()
@_tenant
@click.argument("prefix")
def revoke(tenant: str, prefix: str) -> None:
    """Revoke the key that begins with PREFIX. Running services forget it within a second."""
    if not run(_revoke(tenant, prefix)):
        click.echo(f"There is no such key of tenant {tenant}, or it was revoked before.", err=True)
        raise SystemExit(1)
    click.echo(f"revoked {prefix}", err=True)


async def _revoke(tenant: str, prefix: str) -> bool:
    async with opened(configuration.load()) as service:
        return await tenants.revoke_key(service.database, await _found(service, tenant), prefix)


@keys.command("list")
@_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def list_(tenant: str, as_json: bool) -> None:  # noqa: FBT001 - click passes flags by position
    """List a tenant's keys: prefix, role, whose they are, when made and when revoked."""
    found = run(_list(tenant))
    if as_json:
        rows = [
            {
                "prefix": key.prefix,
                "role": key.role,
                "owner": key.owner,
                "created_at": key.created_at.isoformat(),
                "revoked_at": key.revoked_at and key.revoked_at.isoformat(),
            }
            for key in found
        ]
        click.echo(json.dumps({"keys": rows}))
        return
    for key in found:
        state = f"revoked {key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else "active"
        click.echo(f"{key.prefix}  {key.role:<9} {key.owner}  made {key.created_at:%Y-%m-%d %H:%M}  {state}")


async def _list(tenant: str) -> list[tenants.KeyView]:
    async with opened(configuration.load()) as service:
        return await tenants.list_keys(service.database, await _found(service, tenant))


async def _found(service: app.Service, name: str) -> Tenant:
    tenant = await service.tenant(name)
    if tenant is None:
        message = f"There is no tenant {name!r}."
        raise Misconfigured(message)
    return tenant
