"""`tally config`: the effective settings and where each came from."""

import json

import click

from tallystick import settings as configuration


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def config(as_json: bool) -> None:  # noqa: FBT001 - click passes flags by position
    """Show the effective settings with their origin. Secrets are masked. Changes nothing."""
    settings = configuration.load()
    values = {
        "TALLY_DATABASE_URL": settings.database_url,
        "TALLY_HOME": str(settings.home),
        "TALLY_HOST": settings.host,
        "TALLY_PORT": str(settings.port),
        "TALLY_API_KEY": settings.api_key,
    }
    rows = []
    for spec in configuration.SPECS:
        value = values[spec.name]
        shown = "(set, hidden)" if spec.secret and value is not None else value
        rows.append(
            {
                "name": spec.name,
                "value": shown,
                "origin": settings.origins[spec.name],
                "meaning": spec.meaning,
            }
        )
    if as_json:
        click.echo(json.dumps({"settings": rows}))
        return
    for row in rows:
        click.echo(f"{row['name']:<20} {row['value'] or '-':<24} {row['origin']:<12} {row['meaning']}")
