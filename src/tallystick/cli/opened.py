"""The database of a command that works on what is there: it is named, and never made."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import click

from tallystick import app
from tallystick.settings import Settings

_PLACES: Final = frozenset({"host", "port", "dbname", "user"})


def say_which(settings: Settings) -> None:
    """Which database a command talks to, without its password: two terminals may well mean two of them."""
    dsn = settings.database_url
    click.echo(f"database: {shown(dsn) if dsn else f'the embedded one in {settings.home.absolute()}'}", err=True)


def shown(dsn: str) -> str:
    """Who, where and which, and nothing else of an address: a password may stand in two places of it."""
    parts = urlsplit(dsn)
    userinfo, at, hosts = parts.netloc.rpartition("@")
    user = userinfo.split(":", 1)[0]
    query = [(name, value) for name, value in parse_qsl(parts.query) if name in _PLACES]
    more = "?" + "&".join(f"{name}={value}" for name, value in query) if query else ""
    return f"{parts.scheme}://{user}{at}{hosts}{parts.path}{more}"


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[app.Service]:
    """The service on a database that is there, with this version's schema. Raises Misconfigured, SchemaMismatch."""
    say_which(settings)
    async with app.running(settings, writing=False) as service:
        yield service
