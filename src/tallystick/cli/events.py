"""`tally events`: what providers told us, and what became of it."""

import json
from typing import Final

import click
import msgspec

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.running import run
from tallystick.core.webhook import STATUSES, Status
from tallystick.settings import LIMITS, Settings
from tallystick.store import webhook
from tallystick.store.webhook import EventView

_BAD_NEWS: Final = 1


@click.group()
def events() -> None:
    """List webhook events, and try dead letters again."""


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


async def _list(
    settings: Settings, status: Status | None, provider: str | None, before: int | None, limit: int
) -> list[EventView]:
    async with app.running(settings, migrating=False) as service:
        return await webhook.list_events(service.database, status=status, provider=provider, before=before, most=limit)


async def _retry(settings: Settings, ids: tuple[str, ...] | None) -> tuple[set[int], dict[str, str]]:
    async with app.running(settings, migrating=False) as service:
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
