"""`tally migrate`: bring the database to this version's schema."""

import click

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.running import run
from tallystick.store.migrate import Migration, migrations
from tallystick.store.migrate import migrate as apply


@click.command()
@click.option("--sql", is_flag=True, help="Print the migrations instead of applying them.")
def migrate(sql: bool) -> None:  # noqa: FBT001 - click passes flags by position
    """Apply the migrations this database does not have yet.

    Safe to run twice at once: the second waits. Refused when the database is newer than this version.
    """
    if sql:
        for migration in migrations():
            click.echo(f"-- migration {migration.number}: {migration.name} (sha256 {migration.digest})")
            click.echo(migration.sql)
        return
    applied = run(_migrate())
    for migration in applied:
        click.echo(f"applied {migration.number} {migration.name}")
    if not applied:
        click.echo("The schema is up to date.", err=True)


async def _migrate() -> list[Migration]:
    async with app.database_address(configuration.load()) as (dsn, _notes):
        return await apply(dsn)
