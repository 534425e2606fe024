"""`tally psql`: a shell on the database in use."""

import asyncio
import os
import shutil
import signal
from urllib.parse import unquote, urlsplit, urlunsplit

import click

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.opened import say_which
from tallystick.cli.running import run
from tallystick.database.embedded import place as embedded_place
from tallystick.errors import Misconfigured
from tallystick.ledger.mysql.address import is_address as is_mysql


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--programs", is_flag=True, help="Print where psql, pg_dump and the like are that fit the embedded server."
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(arguments: tuple[str, ...], *, programs: bool) -> None:
    """Open psql on the database in use: the embedded one, or TALLY_DATABASE_URL. Never makes one.

    ARGUMENTS go to psql as they are: tally psql -c 'TABLE tally.whereabouts'. The tables are in the schema tally. What
    psql changes, nobody checks: invariants that the database holds still hold, everything else is up to you.

    Exit status: psql's own; 2 wrong settings; 3 the database is out of reach.
    """
    if programs:
        click.echo(embedded_place.program("psql").parent)
        return
    settings = configuration.load()
    say_which(settings)
    raise SystemExit(run(_psql(settings, arguments)))


async def _psql(settings: configuration.Settings, arguments: tuple[str, ...]) -> int:
    if settings.database_url is not None and is_mysql(settings.database_url):
        raise Misconfigured("TALLY_DATABASE_URL is a MySQL address: psql is PostgreSQL's shell. Use mariadb or mysql.")
    async with app.database_address(settings, making=False, direct=True) as (dsn, _notes):
        # For the embedded server the one that came with it: an older one does not know its catalogues. For another the
        # one on the PATH first, which knows the person's history and keys.
        own = str(embedded_place.program("psql"))
        program = own if settings.database_url is None else shutil.which("psql") or own
        address, secret = _without_password(dsn)
        # Ctrl-C is for what runs in the shell; both of us would hear it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process = await asyncio.create_subprocess_exec(
                program, "--dbname", address, *arguments, env={**os.environ, **secret}, preexec_fn=_hears_ctrl_c
            )
            return await process.wait()
        finally:
            signal.signal(signal.SIGINT, before)


def _hears_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _without_password(dsn: str) -> tuple[str, dict[str, str]]:
    """The address, and its password for the environment: arguments can be read by every user of the machine."""
    parts = urlsplit(dsn)
    if parts.password is None:
        return dsn, {}
    userinfo, _, hosts = parts.netloc.rpartition("@")
    user = userinfo.split(":", 1)[0]
    return urlunsplit(parts._replace(netloc=f"{user}@{hosts}")), {"PGPASSWORD": unquote(parts.password)}
