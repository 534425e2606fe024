"""`tally refunds`: refunds that only a person can go on with."""

import json
from typing import Final

import click
import msgspec

from tallystick import settings as configuration
from tallystick.authority.approvals import ApprovalView
from tallystick.checkout.refund import store as refund
from tallystick.checkout.refund.review.rules import Decision
from tallystick.checkout.refund.store import WaitingRow
from tallystick.cli.opened import opened
from tallystick.cli.running import run
from tallystick.errors import Misconfigured
from tallystick.ledger.outcome import Rejected
from tallystick.money.amounts import format_amount
from tallystick.settings import LIMITS, Settings

_BAD_NEWS: Final = 1
_NEXT: Final = 'see docs/operating.md, "A refund that waits for a person"'


@click.group()
def refunds() -> None:
    """List refunds whose outcome nobody can tell, and decide about those that a person has looked up."""


@refunds.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, LIMITS.page), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_(*, limit: int, as_json: bool) -> None:
    """List refunds that wait for a person, of every tenant, the oldest first, each with its reason. Reads only.

    What has failed for good is among the breaks (`tally breaks list`).

    Exit status: 0 there is none; 1 there is one; 2 wrong usage or settings; 3 the database is out of reach.
    """
    found = run(_list(configuration.load(), limit))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        for one in found:
            click.echo(_line(one))
        click.echo(f"{len(found)} waiting; {_NEXT}" if found else "No refund waits for a person.", err=True)
    if found:
        raise SystemExit(_BAD_NEWS)


@refunds.command()
@click.argument("order")
@click.option("--payment", required=True, help="The provider's id of the payment.")
@click.option("--part", help="The key under which the part was asked for. Without: all of a payment that did not fit.")
@click.option(
    "--decision", required=True, type=click.Choice(["refund", "keep", "confirm", "failed"]), help="What is so."
)
@click.option("--refund", "refund_id", help="The provider's id of the refund, for `confirm`.")
@click.option("--evidence", help="What shows it, in a sentence, for `failed`. Kept for good.")
@click.option("--tenant", default="default", show_default=True, help="Whose order it is.")
def decide(
    *,
    order: str,
    payment: str,
    part: str | None,
    decision: Decision,
    refund_id: str | None,
    evidence: str | None,
    tenant: str,
) -> None:
    """Say what became of a refund that you have looked up at the provider. Kept with your system user's name.

    `confirm` (it went back), `failed` (it did not, and will not) and `keep` (a payment in review stays) send nothing
    and change nothing yet: another person approves them, with a key of his own (`tally approvals`, POST
    /v1/approvals/{id}). The provider is asked where it can be, and must not contradict. `refund` has the next sweep
    send one that waits again, under its key; or gives a payment in review back. Safe to repeat.

    Exit status: 0 done, or asked of a second person; 1 it was refused, and nothing was changed; 2 wrong usage or
    settings; 3 the database is out of reach.
    """
    done = run(_decide(configuration.load(), tenant, (order, payment, part), decision, refund_id, evidence))
    if isinstance(done, Rejected):
        click.echo(f"{done.code}: {done.detail}\n{done.remedy}", err=True)
        raise SystemExit(_BAD_NEWS)
    if isinstance(done, ApprovalView):
        click.echo(f"{done.id}  waits for a second person: {done.reason}")
    else:
        click.echo("It is given back from here on: tally explain ORDER")


async def _list(settings: Settings, limit: int) -> list[WaitingRow]:
    async with opened(settings) as service:
        return await refund.waiting(service.database, most=limit)


async def _decide(  # noqa: PLR0917 - what the command was given
    settings: Settings,
    tenant: str,
    about: tuple[str, str, str | None],
    decision: Decision,
    refund_id: str | None,
    evidence: str | None,
) -> Rejected | ApprovalView | str:
    order, payment, part = about
    async with opened(settings) as service:
        owner = await service.tenant(tenant)
        if owner is None:
            raise Misconfigured(f"There is no tenant {tenant!r}.")
        return await service.refunds.decisions.decide(
            owner, order, payment, decision, refund_id=refund_id, part=part, evidence=evidence
        )


def _line(one: WaitingRow) -> str:
    amount = format_amount(one.amount_micros, one.currency)
    what = "all of it" if one.part is None else f"part {one.part!r}"
    return (
        f"{one.created_at:%Y-%m-%d %H:%M:%S}  {one.tenant}  {one.order_id}  {one.provider}  {one.payment_intent_id}"
        f"  {what}  {amount}  {one.tries} tries  {one.reason}"
    )
