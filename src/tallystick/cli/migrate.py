"""`tally migrate`: bring the database to this version's schema."""

import click

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.opened import say_which
from tallystick.cli.running import run
from tallystick.database.migrate import migrations
from tallystick.database.roles import Granted


@click.command()
@click.option("--sql", is_flag=True, help="Print the migrations instead of applying them.")
def migrate(sql: bool) -> None:  # noqa: FBT001 - click passes flags by position
    """Apply the migrations this database does not have yet.

    Safe beside a service that works, of this version or the one before: a lock is waited for a second, then the others
    pass and it is tried again. Safe to run twice at once, and to kill: a further run goes on from there.

    Also makes the role that services may work as (TALLY_SERVICE_ROLE) and prints what it was granted.

    Exit status: 0 done, 2 the user of TALLY_DATABASE_URL may not, or the database is too new for this version, 3 the
    database is out of reach, or others hold what is needed for minutes.
    """
    if sql:
        for migration in migrations():
            click.echo(f"-- migration {migration.number}: {migration.name} (sha256 {migration.digest})")
            click.echo(migration.sql)
        return
    settings = configuration.load()
    say_which(settings)
    applied, granted = run(app.migrate_database(settings))
    for migration in applied:
        click.echo(f"applied {migration.number} {migration.name}")
    if not applied:
        click.echo("The schema is up to date.", err=True)
    if granted is not None:
        _tell(granted)


def _tell(granted: Granted) -> None:
    click.echo(f"owner    {granted.owner}: has the tables and their rules; `tally migrate` runs as it", err=True)
    if granted.note is not None:
        click.echo(f"service  {granted.note}", err=True)
        return
    click.echo(f"service  {granted.service}: works on the rows, and cannot change a rule. It was granted", err=True)
    for privileges, tables in granted.privileges:
        click.echo(f"           {privileges} on {', '.join(tables)}", err=True)
    click.echo(
        f"         Have the service connect as a member of it: CREATE ROLE tally_app LOGIN PASSWORD '...' "
        f"IN ROLE {granted.service};",
        err=True,
    )
