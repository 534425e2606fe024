"""`tally payments`: charges that nobody answered for."""

import json
from datetime import timedelta
from typing import Final

import click
import msgspec

from tallystick import settings as configuration
from tallystick.checkout.payment.review import store as payment_review
from tallystick.checkout.payment.review.flow import PaymentReviews, SeenOutcome
from tallystick.checkout.payment.review.store import Unanswered
from tallystick.cli.opened import opened
from tallystick.cli.person import system_user
from tallystick.cli.running import run
from tallystick.ledger.decisions import Reviewed
from tallystick.ledger.outcome import Rejected
from tallystick.money.amounts import format_amount
from tallystick.settings import LIMITS, Settings

_BAD_NEWS: Final = 1
_NEXT: Final = 'see docs/operating.md, "A charge nobody answers for"'


@click.group()
def payments() -> None:
    """List charges that nobody answered for, and close those that a person has looked up at the provider."""


@payments.command("list")
@click.option(
    "--older-than", default=5, show_default=True, type=click.IntRange(min=0), help="Begun so many minutes ago."
)
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, LIMITS.page), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_(*, older_than: int, limit: int, as_json: bool) -> None:
    """List charges whose outcome nobody knows, of every tenant, the oldest first. Reads only.

    Each is asked about by `tally work`; one that stays here for a day needs a person.

    Exit status: 0 there is none; 1 there is one; 2 wrong usage or settings; 3 the database is out of reach.
    """
    found = run(_list(configuration.load(), timedelta(minutes=older_than), limit))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        for one in found:
            click.echo(_line(one))
        click.echo(f"{len(found)} open; {_NEXT}" if found else _none(older_than), err=True)
    if found:
        raise SystemExit(_BAD_NEWS)


@payments.command()
@click.argument("order")
@click.option("--outcome", required=True, type=click.Choice(["never_charged", "charged"]), help="What you have seen.")
@click.option("--payment", help="The provider's id of the payment, for `charged`.")
@click.option("--evidence", required=True, help="What shows it, in a sentence. Kept for good.")
@click.option("--tenant", default="default", show_default=True, help="Whose order it is.")
@click.option("--key", help="An idempotency key. Default: one of the order and the outcome, so that a repeat is one.")
def resolve(
    *, order: str, outcome: SeenOutcome, payment: str | None, evidence: str, tenant: str, key: str | None
) -> None:
    """Close a charge that you have looked up at the provider. Sends nothing; kept with your system user's name.

    `charged` is looked up where the provider can be asked, and believed only if it is this charge: the order is then
    PAID, or the money given back if the order has ended. Safe to repeat.

    Exit status: 0 closed; 1 it was refused, and nothing was changed; 2 wrong usage or settings; 3 the database is out
    of reach.
    """
    key = key or f"tally-payments-resolve-{order}-{outcome}"
    done = run(_resolve(configuration.load(), tenant, order, outcome, payment, evidence, key))
    if isinstance(done, Rejected):
        click.echo(f"{done.code}: {done.detail}\n{done.remedy}", err=True)
        raise SystemExit(_BAD_NEWS)
    click.echo(done.body.decode())


def _none(older_than: int) -> str:
    if older_than == 0:
        return "Every charge was answered for."
    return (
        f"No charge has waited for an answer for {older_than} minutes or more (--older-than 0: the younger ones too)."
    )


async def _list(settings: Settings, older_than: timedelta, limit: int) -> list[Unanswered]:
    async with opened(settings) as service:
        return await payment_review.unanswered(service.database, older_than=older_than, most=limit)


async def _resolve(  # noqa: PLR0917 - what the command was given
    settings: Settings, tenant: str, order: str, outcome: SeenOutcome, payment: str | None, evidence: str, key: str
) -> Reviewed | Rejected:
    async with opened(settings) as service:
        owner = await service.tenant(tenant)
        if owner is None:
            raise click.BadParameter(f"there is no tenant {tenant!r}", param_hint="--tenant")
        reviews = PaymentReviews(service.database, service.providers, changed=service.announcer.changed)
        return await reviews.resolve(
            owner,
            order,
            outcome=outcome,
            evidence=evidence,
            payment_intent_id=payment,
            by=system_user(),
            idempotency_key=key,
        )


def _line(one: Unanswered) -> str:
    amount = format_amount(one.amount_micros, one.currency)
    text = f"{one.created_at:%Y-%m-%d %H:%M:%S}  {one.tenant}  {one.order_id}  {one.order_status}  {one.provider}"
    text += f"  {amount}  attempt {one.attempt}, {one.tries} tries"
    if one.absent_at is not None:
        text += f"  not in the books at {one.absent_at:%Y-%m-%d %H:%M}"
    return f"{text}  {one.reason}" if one.reason else text
