"""`tally events`: what providers told us, and what became of it."""

import json
from typing import Final

import click
import msgspec

from tallystick import settings as configuration
from tallystick.cli.opened import opened
from tallystick.cli.running import run
from tallystick.settings import LIMITS, Settings
from tallystick.webhooks import store as webhook
from tallystick.webhooks.intake import store as intake
from tallystick.webhooks.intake.flow import Retried, retry_poison
from tallystick.webhooks.intake.store import PoisonView
from tallystick.webhooks.rules import STATUSES, Status
from tallystick.webhooks.store import EventView

_BAD_NEWS: Final = 1


@click.group()
def events() -> None:
    """List webhook events, try dead letters again, and look at what Kafka held that is no webhook."""


@events.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only those. DEAD_LETTER: what a person must look at.")
@click.option("--provider", help="Only those of this provider.")
@click.option("--before", type=click.IntRange(min=1), metavar="NUMBER", help="Older than this one: the next page.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, LIMITS.page), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_(*, status: Status | None, provider: str | None, before: int | None, limit: int, as_json: bool) -> None:
    """List webhook events, newest first. Reads only.

    Exit status: 0 done, 2 wrong usage or settings, 3 the database is out of reach.
    """
    found = run(_list(configuration.load(), status, provider, before, limit))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
        return
    for event in found:
        click.echo(_line(event))
    if len(found) == limit:
        click.echo(f"There may be more: --before {found[-1].number}", err=True)


@events.command()
@click.argument("ids", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
@click.option("--json", "as_json", is_flag=True, help='{"retried": [numbers], "not_dead": {id: status}}')
def retry(*, ids: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Try dead letters again, by number or by the provider's event id. Safe to run twice, beside working workers.

    Only dead letters: what is processed stays so, and everything else is tried without asking.

    Exit status: 0 all of them are tried again; 1 one is no dead letter, or not known; 2 wrong usage or settings; 3 the
    database is out of reach.
    """
    if everything == bool(ids):
        raise click.UsageError("Name events, or say --all.")
    retried, not_dead = run(_retry(configuration.load(), None if everything else ids))
    if as_json:
        click.echo(json.dumps({"retried": sorted(retried), "not_dead": not_dead}))
    else:
        click.echo(f"{len(retried)} dead letter(s) will be tried again.")
        for id_, status in not_dead.items():
            click.echo(f"{id_}: {status}. It was left as it is.", err=True)
    if not_dead:
        raise SystemExit(_BAD_NEWS)


@events.command()
@click.option("--retry", "again", is_flag=True, help="Read each once more, and store those that can be read now.")
@click.option("--dismiss", type=click.IntRange(min=1), metavar="NUMBER", help="Leave this one at that; needs --reason.")
@click.option("--reason", help="Why it is dismissed; kept with it.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, LIMITS.page), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def poison(*, again: bool, dismiss: int | None, reason: str | None, limit: int, as_json: bool) -> None:
    """List records of Kafka that could not be stored as webhooks, oldest first. Without an option it reads only.

    Such a record is kept whole, and held nobody up. One that a newer version of Tallystick appended is stored by
    --retry once this one is as new. One without bytes is a gap: Kafka deleted those records before they were read, and
    what they told is fetched from the provider's own list of events. Safe to run twice.

    Exit status: 0 done, none is left; 1 some wait for a person; 2 wrong usage or settings; 3 the database is out of
    reach.
    """
    if (dismiss is None) != (not reason) or (again and dismiss is not None):
        raise click.UsageError("Say --dismiss NUMBER with --reason, or --retry, or neither.")
    left, retried = run(_poison(configuration.load(), limit, again=again, dismiss=(dismiss, reason)))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins({"waiting": left, "retried": retried})))
    else:
        for each in retried:
            click.echo(f"{each.number:>10}  {each.refused or f'stored, {each.fresh} new event(s)'}", err=True)
        for view in left:
            click.echo(_poison_line(view))
    if left:
        raise SystemExit(_BAD_NEWS)


async def _poison(
    settings: Settings, limit: int, *, again: bool, dismiss: tuple[int | None, str | None]
) -> tuple[list[PoisonView], list[Retried]]:
    async with opened(settings) as service:
        database = service.database
        number, reason = dismiss
        if number is not None and reason is not None and not await intake.dismiss(database, number, reason):
            raise click.UsageError(f"{number} is not set aside, or was resolved before.")
        retried = []
        if again:
            retried = [
                await retry_poison(database, view) for view in await intake.list_poison(database, after=0, most=limit)
            ]
            if any(each.fresh for each in retried):
                await webhook.notify(database)
        return await intake.list_poison(database, after=0, most=limit), retried


async def _list(
    settings: Settings, status: Status | None, provider: str | None, before: int | None, limit: int
) -> list[EventView]:
    async with opened(settings) as service:
        return await webhook.list_events(service.database, status=status, provider=provider, before=before, most=limit)


async def _retry(settings: Settings, ids: tuple[str, ...] | None) -> tuple[set[int], dict[str, str]]:
    async with opened(settings) as service:
        database = service.database
        meant = {id_: await webhook.find(database, id_) for id_ in ids or ()}
        wanted = None if ids is None else sorted({number for found in meant.values() for number in found})
        retried = await webhook.retry(database, wanted)
        if retried:
            await webhook.notify(database)
    not_dead = {
        id_: ", ".join(found.values()) or "there is no such event"
        for id_, found in meant.items()
        if not retried.intersection(found)
    }
    return retried, not_dead


def _line(event: EventView) -> str:
    what = "-" if event.purpose is None else f"{event.purpose} {event.provider_id} {event.state}"
    why = f"  ({event.tries} tries: {event.reason})" if event.reason else ""
    return (
        f"{event.number:>10}  {event.received_at:%Y-%m-%d %H:%M:%S}  {event.status:<21}  {event.provider}  "
        f"{event.event_id}  {event.type}  {what}{why}"
    )


def _poison_line(view: PoisonView) -> str:
    last = "" if view.next_offset == view.first_offset + 1 else f"-{view.next_offset - 1}"
    size = "gap" if view.bytes is None else f"{view.bytes} bytes"
    return (
        f"{view.number:>10}  {view.found_at:%Y-%m-%d %H:%M:%S}  {view.topic}/{view.partition} "
        f"{view.first_offset}{last}  {size}  {view.reason}"
    )
