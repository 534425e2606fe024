"""`tally`: data to stdout, talk to stderr.

Exit 0 done, 1 the answer is bad news, 2 wrong usage or settings, 3 a dependency is out of reach.
"""

import os
import sys

import asyncpg
import click
import structlog

from tallystick import rooms
from tallystick.audit.author import at_terminal, sign
from tallystick.cli.bench import bench
from tallystick.cli.config import config
from tallystick.cli.explain import explain
from tallystick.cli.migrate import migrate
from tallystick.cli.outbox import outbox
from tallystick.cli.person import system_user
from tallystick.cli.probe import probe
from tallystick.cli.providers import providers
from tallystick.cli.psql import psql
from tallystick.cli.retain import retain
from tallystick.cli.serve import serve, up
from tallystick.cli.simulator import simulator
from tallystick.cli.verify import verify
from tallystick.cli.work import work
from tallystick.database.embedded.server import EmbeddedFailed
from tallystick.errors import (
    LogUnreachable,
    MigrationBlocked,
    Misconfigured,
    NoSimulator,
    OutcomeUnknown,
    ProviderUnreachable,
    SchemaMismatch,
    TallystickError,
    Unreachable,
)
from tallystick.settlement.tick.cli import Interrupted

BAD_NEWS, WRONG_USAGE, OUT_OF_REACH = 1, 2, 3
_OUT_OF_REACH = (
    Unreachable,
    OutcomeUnknown,
    LogUnreachable,
    ProviderUnreachable,
    Interrupted,
    EmbeddedFailed,
    NoSimulator,
    MigrationBlocked,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tallystick", prog_name="tally")
def tally() -> None:
    """Move money exactly once, and be able to show it.

    Settings are TALLY_* environment variables or tally.toml; `tally config` shows the effective ones.
    Exit status: 0 done, 1 the answer is bad news, 2 wrong usage or settings, 3 a dependency is out of reach.
    """
    # What a command does is done by whoever typed it; workers sign for themselves.
    sign(at_terminal(system_user()))


for command in (
    up,
    serve,
    work,
    migrate,
    retain,
    config,
    verify,
    explain,
    outbox,
    providers,
    psql,
    simulator,
    probe,
    bench,
    *(command for room in rooms.ROOMS for command in room.commands),
):
    tally.add_command(command)


def main() -> None:
    """Run a command; an error is a sentence and an exit status, not a traceback."""
    _configure_log()
    try:
        tally.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(WRONG_USAGE)
    except (Misconfigured, SchemaMismatch) as error:
        _say(error)
        sys.exit(WRONG_USAGE)
    except asyncpg.InsufficientPrivilegeError as error:
        click.echo(
            f"tally: The user of TALLY_DATABASE_URL has too little right here: {error}. Nothing further was done. "
            f"Connect as a member of the service's role, which `tally migrate` makes.",
            err=True,
        )
        sys.exit(WRONG_USAGE)
    except _OUT_OF_REACH as error:
        _say(error)
        sys.exit(OUT_OF_REACH)
    except TallystickError as error:
        _say(error)
        sys.exit(BAD_NEWS)


def _configure_log() -> None:
    """Talk goes to stderr; and no trace shows local values, because credentials may be among them."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty() and "NO_COLOR" not in os.environ,
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _say(error: Exception) -> None:
    click.echo(f"tally: {error}", err=True)
