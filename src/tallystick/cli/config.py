"""`tally config`: the effective settings and where each came from."""

import json

import click

from tallystick import settings as configuration


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def config(as_json: bool) -> None:  # noqa: FBT001 - click passes flags by position
    """Show the effective settings with their origin. Secrets are masked. Changes nothing."""
    settings = configuration.load()
    rows = [
        {
            "name": spec.name,
            "value": settings.shown[spec.name],
            "origin": settings.origins[spec.name],
            "meaning": spec.meaning,
        }
        for spec in configuration.SPECS
    ]
    if as_json:
        click.echo(json.dumps({"settings": rows}))
        return
    widest = max(len(row["value"] or "-") for row in rows)
    for row in rows:
        click.echo(f"{row['name']:<32} {row['value'] or '-':<{widest}} {row['origin']:<12} {row['meaning']}")
