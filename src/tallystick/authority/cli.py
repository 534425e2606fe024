"""`tally policy`: the platform's part of a tenant's payouts."""

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final, Literal

import click
import msgspec

from tallystick import app
from tallystick import settings as configuration
from tallystick.audit.author import at_terminal
from tallystick.authority import store as authority
from tallystick.authority.rules import MAX_WAITING_SECONDS, Ceiling
from tallystick.authority.rules import Policy as AuthorityPolicy
from tallystick.authority.store import PolicyView as AuthorityPolicyView
from tallystick.checkout import policy_store as checkout_policy
from tallystick.checkout.policy_store import PolicyView as CheckoutPolicyView
from tallystick.checkout.saga.rules import Policy as CheckoutPolicy
from tallystick.cli.opened import opened
from tallystick.cli.person import system_user
from tallystick.cli.running import run
from tallystick.database import retention as retention_store
from tallystick.database.retention import Retention, RetentionView
from tallystick.errors import Misconfigured
from tallystick.ledger.claims import Tenant
from tallystick.money.amounts import (
    MICROS_PER_MAJOR,
    NotRepresentable,
    format_amount,
    from_decimal_text,
    is_currency,
)
from tallystick.settlement import store as settlement
from tallystick.settlement.rules import fee_micros
from tallystick.settlement.store import PolicyView
from tallystick.settlement.terms import Policy

# Parts per million in one percent.
_PPM: Final = 10_000
_MOST_PPM: Final = 1_000_000
_PERCENT: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,4})?")
_EVERY: Final = "every other"
# As the database holds them: disputes are looked into weeks later.
_DAYS: Final = click.IntRange(30, 36_500)
Late = Literal["refund", "backorder"]
OtherAmount = Literal["refund", "review"]


@click.group()
def policy() -> None:
    """Show and set a tenant's policies: the fee, who may pay how much to whom, odd payments, what may be trimmed."""


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
    stock; `--other-amount review` leaves a wrong amount to a person (POST /v1/orders/{id}/refund/decide). Counts for
    payments that are decided from now on. Journaled with your system user's name. Moves no money.
    """
    stands = run(_checkout(tenant, late, other_amount))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(stands)))
        return
    by = f", since {stands.changed_at:%Y-%m-%d %H:%M} by {stands.changed_by}" if stands.changed_at else " (default)"
    click.echo(f"late: {stands.late}; other amount: {stands.other_amount}{by}")


async def _checkout(tenant: str, late: Late | None, other_amount: OtherAmount | None) -> CheckoutPolicyView:
    async with opened(configuration.load()) as service:
        owner = await _found(service, tenant)
        stands = await checkout_policy.read(service.database, owner)
        if late is None and other_amount is None:
            return stands
        wanted = msgspec.convert(
            {"late": late or stands.late, "other_amount": other_amount or stands.other_amount}, CheckoutPolicy
        )
        return await checkout_policy.put(service.database, owner, wanted, by=system_user())


@policy.command("authority")
@click.option("--tenant", default="default", show_default=True)
@click.option("--currency", help="ISO 4217, in capitals: the line that the amounts are of.")
@click.option("--payout", help="At most this in one payout, in major units: 5000. `none`: no such bound.")
@click.option("--day", help="At most this in a day of UTC. `none`: no such bound.")
@click.option("--second-person", help="More than this waits for another person's approval. `none`: nobody is asked.")
@click.option("--drop", is_flag=True, help="Take the line of --currency away.")
@click.option("--known-destinations/--any-destination", default=None, help="Whom may be paid.")
@click.option("--waiting", type=click.IntRange(0, MAX_WAITING_SECONDS), help="Seconds until a new destination is paid.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def bounds(
    *,
    tenant: str,
    currency: str | None,
    payout: str | None,
    day: str | None,
    second_person: str | None,
    drop: bool,
    known_destinations: bool | None,
    waiting: int | None,
    as_json: bool,
) -> None:
    """Show, or choose, who may pay how much to whom. What is not given stays as it is.

    A tenant whose policy has lines pays in their currencies alone. Amounts are of gross, for payouts promised from now
    on; those above --second-person are held until another person approves (POST /v1/approvals/{id}, `tally approvals`).
    Journaled with your system user's name. Moves no money.
    """
    amounts = {"payout_micros": payout, "day_micros": day, "second_person_micros": second_person}
    if currency is None and (drop or any(amounts.values())):
        raise click.UsageError("amounts and --drop are of a currency: they need --currency")
    if currency is not None and not is_currency(currency):
        raise click.BadParameter(f"{currency!r} is not an ISO 4217 code in capitals", param_hint="--currency")
    wanted = {name: _bound(name, text, currency or "") for name, text in amounts.items() if text is not None}
    stands = run(_bounds(tenant, currency, wanted, known_destinations, waiting, drop=drop))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(stands)))
        return
    by = f", since {stands.changed_at:%Y-%m-%d %H:%M} by {stands.changed_by}" if stands.changed_at else " (default)"
    whom = f"known destinations, {stands.waiting_seconds} s after they are" if stands.known_destinations else "anybody"
    click.echo(f"paid: {whom}{by}")
    for line in stands.ceilings:
        click.echo(f"{line.currency}  " + ", ".join(_bound_told(line)))


def _bound(name: str, text: str, currency: str) -> int | None:
    return None if text == "none" else _micros(f"--{name.removesuffix('_micros').replace('_', '-')}", text, currency)


def _bound_told(line: Ceiling) -> Iterator[str]:
    for name, value in (
        ("one payout", line.payout_micros),
        ("a day", line.day_micros),
        ("without a second person", line.second_person_micros),
    ):
        yield f"{name} {'unbounded' if value is None else format_amount(value, line.currency)}"


async def _bounds(
    tenant: str,
    currency: str | None,
    amounts: Mapping[str, int | None],
    known: bool | None,  # noqa: FBT001
    waiting: int | None,
    *,
    drop: bool,
) -> AuthorityPolicyView:
    async with opened(configuration.load()) as service:
        owner = await _found(service, tenant)
        stands = await authority.read(service.database, owner)
        if currency is None and known is None and waiting is None:
            return stands
        lines = {line.currency: line for line in stands.ceilings}
        if currency is not None:
            line = lines.pop(currency, Ceiling(currency=currency))
            if not drop:
                lines[currency] = msgspec.structs.replace(line, **amounts)
        policy = AuthorityPolicy(
            known_destinations=stands.known_destinations if known is None else known,
            waiting_seconds=stands.waiting_seconds if waiting is None else waiting,
            ceilings=tuple(lines.values()),
        )
        refusal = await authority.put(service.database, owner, policy, by=at_terminal(system_user()))
        if refusal is not None:
            raise click.UsageError(f"{refusal.detail} {refusal.remedy}")
        return await authority.read(service.database, owner)


@policy.command()
@click.option("--tenant", default="default", show_default=True)
@click.option("--evidence", type=_DAYS, metavar="DAYS", help="The providers' own words in attempts that are answered.")
@click.option(
    "--replies", type=_DAYS, metavar="DAYS", help="Answers to decisions: moved to the archive, still answered."
)
@click.option(
    "--outbox", type=_DAYS, metavar="DAYS", help="Outbox rows, counted from when every follower had read them."
)
@click.option(
    "--webhooks",
    type=_DAYS,
    metavar="DAYS",
    help="Webhooks: bodies, and what ended ones told; the longest wish of all tenants counts.",
)
@click.option("--keep-everything", is_flag=True, help="Back to the default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def retention(
    *,
    tenant: str,
    evidence: int | None,
    replies: int | None,
    outbox: int | None,
    webhooks: int | None,
    keep_everything: bool,
    as_json: bool,
) -> None:
    """Show, or choose, after how many days `tally retain` may let something go. At least 30; the default is never.

    What is not given stays as it is. Nothing goes before `tally retain` is run, and nothing that a decision reads ever
    does. Journaled with your system user's name. Moves no money.
    """
    given = {"evidence_days": evidence, "reply_days": replies, "outbox_days": outbox, "webhook_days": webhooks}
    changes = {name: days for name, days in given.items() if days is not None}
    if keep_everything and changes:
        raise click.UsageError("--keep-everything stands alone")
    stands = run(_retention(tenant, changes, reset=keep_everything))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(stands)))
        return
    for name in given:
        days = getattr(stands, name)
        click.echo(f"{name.removesuffix('_days'):<10} {'kept for good' if days is None else f'{days} days'}")


async def _retention(tenant: str, changes: dict[str, int], *, reset: bool) -> RetentionView:
    async with opened(configuration.load()) as service:
        owner = await _found(service, tenant)
        stands = await retention_store.read(service.database, owner)
        if not changes and not reset:
            return stands
        kept = {name: getattr(stands, name) for name in Retention.__struct_fields__}
        wanted = Retention() if reset else Retention(**{**kept, **changes})
        return await retention_store.put(service.database, owner, wanted, by=system_user())


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
    async with opened(configuration.load()) as service:
        return await settlement.policy(service.database, await _found(service, tenant))


async def _set(tenant: str, currency: str, fee: Policy) -> list[PolicyView]:
    async with opened(configuration.load()) as service:
        owner = await _found(service, tenant)
        await settlement.put_policy(service.database, owner, currency, fee, by=system_user())
        return await settlement.policy(service.database, owner)


async def _found(service: app.Service, name: str) -> Tenant:
    tenant = await service.tenant(name)
    if tenant is None:
        raise Misconfigured(f"There is no tenant {name!r}.")
    return tenant
