"""`tally policy`: the platform's part of a tenant's payouts."""

import json
import re
from decimal import Decimal
from typing import Final, Literal

import click
import msgspec

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.person import system_user
from tallystick.cli.running import run
from tallystick.core.idempotency import Tenant
from tallystick.core.money import MICROS_PER_MAJOR, NotRepresentable, format_amount, from_decimal_text, is_currency
from tallystick.core.saga import Policy as CheckoutPolicy
from tallystick.core.settlement import fee_micros
from tallystick.core.settlement_terms import Policy
from tallystick.errors import Misconfigured
from tallystick.store import checkout_policy, settlement
from tallystick.store.checkout_policy import PolicyView as CheckoutPolicyView
from tallystick.store.settlement import PolicyView

# Parts per million in one percent.
_PPM: Final = 10_000
_MOST_PPM: Final = 1_000_000
_PERCENT: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,4})?")
_EVERY: Final = "every other"
Late = Literal["refund", "backorder"]
OtherAmount = Literal["refund", "review"]


@click.group()
def policy() -> None:
    """Show and set a tenant's policies: the platform's fee on settlements, and what is done with odd payments."""


@policy.command()
@click.option("--tenant", default="default", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(*, tenant: str, as_json: bool) -> None:
    """Show the fees of a tenant. A currency without a line of its own pays the line `every other`, or nothing."""
    found = run(_show(tenant))
    if as_json:
        click.echo(json.dumps({"policies": [msgspec.to_builtins(line) for line in found]}))
        return
    for line in found:
        click.echo(_told(line))
    if not found:
        click.echo(f"Tenant {tenant} has no fee: net is gross.", err=True)


@policy.command("set")
@click.option("--tenant", default="default", show_default=True)
@click.option("--currency", default="", help="ISO 4217, in capitals. Without: every currency that has no line.")
@click.option("--percent", default="0", show_default=True, help="Share of gross, 0 to 100, at most four decimals: 2.5")
@click.option("--fixed", default="0", show_default=True, help="Added to the share, in major units: 0.30")
@click.option("--minimum", default="0", show_default=True, help="The fee is at least this, in major units: 0.50")
def set_(*, tenant: str, currency: str, percent: str, fixed: str, minimum: str) -> None:
    """Set a tenant's fee for settlements created from now on: the larger of MINIMUM and PERCENT of gross plus FIXED.

    Replaces the whole line of that currency: what is not given is 0. Settlements that exist keep their fee. The share
    is rounded down to the micro (a millionth of the major unit); every figure given here is kept exactly. Journaled
    with your system user's name. Moves no money.
    """
    if currency and not is_currency(currency):
        raise click.BadParameter(f"{currency!r} is not an ISO 4217 code in capitals", param_hint="--currency")
    if not currency and (Decimal(_amount("--fixed", fixed)) or Decimal(_amount("--minimum", minimum))):
        raise click.UsageError("--fixed and --minimum are amounts: they need --currency")
    fee = Policy(
        percent_ppm=_ppm(percent),
        fixed_micros=_micros("--fixed", fixed, currency),
        minimum_micros=_micros("--minimum", minimum, currency),
    )
    for line in run(_set(tenant, currency, fee)):
        if line.currency == currency:
            click.echo(_told(line))


@policy.command()
@click.option("--tenant", default="default", show_default=True)
@click.option("--late", type=click.Choice(["refund", "backorder"]), help="Paid after the sweeper has cancelled.")
@click.option("--other-amount", type=click.Choice(["refund", "review"]), help="Another amount than the order's.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def checkout(*, tenant: str, late: Late | None, other_amount: OtherAmount | None, as_json: bool) -> None:
    """Show, or choose, what is done with payments that do not fit their order.

    Given back is the default. `--late backorder` makes an order PAID that was paid too late, and delivers when there is
    stock; `--other-amount review` leaves a wrong amount to a person (POST /v1/orders/{id}/refund). Counts for payments
    that are decided from now on. Journaled with your system user's name. Moves no money.
    """
    stands = run(_checkout(tenant, late, other_amount))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(stands)))
        return
    by = f", since {stands.changed_at:%Y-%m-%d %H:%M} by {stands.changed_by}" if stands.changed_at else " (default)"
    click.echo(f"late: {stands.late}; other amount: {stands.other_amount}{by}")


async def _checkout(tenant: str, late: Late | None, other_amount: OtherAmount | None) -> CheckoutPolicyView:
    async with app.running(configuration.load(), migrating=False) as service:
        owner = await _found(service, tenant)
        stands = await checkout_policy.read(service.database, owner)
        if late is None and other_amount is None:
            return stands
        wanted = msgspec.convert(
            {"late": late or stands.late, "other_amount": other_amount or stands.other_amount}, CheckoutPolicy
        )
        return await checkout_policy.put(service.database, owner, wanted, by=system_user())


def _ppm(percent: str) -> int:
    """Exactly, or not at all: a float would make 1.14 % 11,399 parts per million."""
    if not _PERCENT.fullmatch(percent) or Decimal(percent) * _PPM > _MOST_PPM:
        raise click.BadParameter(
            f"{percent!r} is not a number from 0 to 100 with at most four decimals", param_hint="--percent"
        )
    return int(Decimal(percent) * _PPM)


def _micros(option: str, amount: str, currency: str) -> int:
    if not currency:
        return 0
    micros = from_decimal_text(_amount(option, amount), currency)
    if isinstance(micros, NotRepresentable):
        raise click.BadParameter(micros.message, param_hint=option)
    return micros


def _amount(option: str, text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,13}(?:\.[0-9]{1,12})?", text):
        raise click.BadParameter(f"{text!r} is not an amount like 0.30", param_hint=option)
    return text


def _told(line: PolicyView) -> str:
    currency = line.currency or _EVERY
    percent = f"{Decimal(line.percent_ppm) / _PPM:f}".rstrip("0").rstrip(".") if line.percent_ppm else "0"
    text = f"{currency:<11} {percent} % of gross"
    if line.currency:
        gross = 100 * MICROS_PER_MAJOR
        fee = fee_micros(
            gross,
            percent_ppm=line.percent_ppm,
            fixed_micros=line.fixed_micros,
            minimum_micros=line.minimum_micros,
        )
        text += (
            f" + {format_amount(line.fixed_micros, currency)}, at least {format_amount(line.minimum_micros, currency)}"
            f"; of {format_amount(gross, currency)} that is {format_amount(fee, currency)}"
        )
    return f"{text}  (by {line.changed_by}, {line.changed_at:%Y-%m-%d %H:%M} UTC)"


async def _show(tenant: str) -> list[PolicyView]:
    async with app.running(configuration.load(), migrating=False) as service:
        return await settlement.policy(service.database, await _found(service, tenant))


async def _set(tenant: str, currency: str, fee: Policy) -> list[PolicyView]:
    async with app.running(configuration.load(), migrating=False) as service:
        owner = await _found(service, tenant)
        await settlement.put_policy(service.database, owner, currency, fee, by=system_user())
        return await settlement.policy(service.database, owner)


async def _found(service: app.Service, name: str) -> Tenant:
    tenant = await service.tenant(name)
    if tenant is None:
        raise Misconfigured(f"There is no tenant {name!r}.")
    return tenant
