"""`tally outbox`: what happened, for another system, each row at least once and in the order of commits."""

import json
import re
from typing import Final

import asyncpg
import click
import msgspec

from tallystick import settings as configuration
from tallystick.cli.opened import opened
from tallystick.cli.running import run
from tallystick.database import feed
from tallystick.database.feed import Cursor, FollowedRow, Follower
from tallystick.errors import Misconfigured
from tallystick.settings import LIMITS

_BAD_NEWS: Final = 1
# Far ahead of any number that a server has given: the types' own bounds.
_MOST_XID: Final = 2**64
_MOST_NUMBER: Final = 2**63


class _Name(click.ParamType[str]):
    """As the table has it."""

    name = "name"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"[!-~]{1,200}", value):
            self.fail("a follower's name is 1 to 200 printable ASCII characters without a space.", param, ctx)
        return value


class _Place(click.ParamType[Cursor]):
    """As `read` writes it."""

    name = "place"

    def convert(self, value: str | Cursor, param: click.Parameter | None, ctx: click.Context | None) -> Cursor:
        if isinstance(value, Cursor):
            return value
        found = re.fullmatch(r"([0-9]{1,20}):([0-9]{1,19})", value, re.ASCII)
        place = None if found is None else Cursor(int(found[1]), int(found[2]))
        if place is None or place.xid >= _MOST_XID or place.number >= _MOST_NUMBER:
            self.fail("a place is what `tally outbox read` shows as one: two numbers with a colon.", param, ctx)
        return place


@click.group()
def outbox() -> None:
    """Follow what happened, from another system: operations, orders, refunds, each told in the commit that did it.

    A follower has a name. It reads, does its part, and says how far it has everything; killed in between it is told the
    same again. `tally retain` lets a row go only when every follower has it for as long as the tenant's policy says.
    """


@outbox.command()
@click.argument("name", type=_Name())
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, LIMITS.page), help="At most so many.")
def read(*, name: str, limit: int) -> None:
    """Print the rows that follower NAME does not have yet, one JSON object a line, in the order of commits.

    {"place", "tenant", "topic", "transaction", "body"}. Reads only: the same rows again until `tally outbox relayed`. A
    name that is new is told everything there is. A row that commits while an older transaction runs is told after it.

    Exit status: 0 done, also when there is nothing; 2 wrong usage or settings, or a place of before a restored dump; 3
    the database is out of reach.
    """
    for row in run(_read(name, limit)):
        click.echo(msgspec.json.encode(row))


@outbox.command()
@click.argument("name", type=_Name())
@click.argument("place", type=_Place())
def relayed(*, name: str, place: Cursor) -> None:
    """Say that follower NAME has every row up to PLACE for good. Safe to repeat; a place of before changes nothing.

    Exit status: 0 done; 2 wrong usage or settings, or a place ahead of what can be read; 3 the database is out of
    reach.
    """
    run(_relayed(name, place))


@outbox.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
def list_(*, as_json: bool) -> None:
    """List the followers: how far each has read, and on which day (UTC) it last said so. Reads only.

    One that has stopped keeps every row after its place: forget it, if it is not coming back.

    Exit status: 0 done; 1 the place of one is of before a restored dump; 2 wrong usage or settings; 3 the database is
    out of reach.
    """
    found = run(_list())
    if as_json:
        click.echo(
            json.dumps(
                [
                    {"name": one.reader, "place": str(one.at), "day": one.day.isoformat(), "is_lost": one.is_lost}
                    for one in found
                ]
            )
        )
    else:
        for one in found:
            lost = "  of before a restored dump: forget it, and read again" if one.is_lost else ""
            click.echo(f"{one.reader:<32} {one.at!s:>24}  {one.day}{lost}")
    if any(one.is_lost for one in found):
        raise SystemExit(_BAD_NEWS)


@outbox.command()
@click.argument("name", type=_Name())
def forget(*, name: str) -> None:
    """Wait for follower NAME no more; under the same name it would begin with the oldest row there is.

    The right of the tables' owner alone: what it has not read may be let go after that.

    Exit status: 0 done; 1 there is no such follower; 2 wrong usage, settings or too little right; 3 the database is out
    of reach.
    """
    if not run(_forget(name)):
        click.echo(f"There is no follower {name}.", err=True)
        raise SystemExit(_BAD_NEWS)


async def _read(name: str, limit: int) -> list[FollowedRow]:
    async with opened(configuration.load()) as service:
        return await feed.unread(service.database, name, most=limit)


async def _relayed(name: str, place: Cursor) -> None:
    async with opened(configuration.load()) as service:
        await feed.relayed(service.database, name, place)


async def _list() -> list[Follower]:
    async with opened(configuration.load()) as service:
        return await feed.followers(service.database)


async def _forget(name: str) -> bool:
    async with opened(configuration.load()) as service:
        try:
            return await feed.forget(service.database, name)
        except asyncpg.InsufficientPrivilegeError as error:
            raise Misconfigured(
                f"{error}: whoever forgets a follower lets go what it has not read, and that is the owner's to decide. "
                "Nothing was changed. Run it with the address that `tally migrate` runs with."
            ) from error
