"""`python -m tallystick.simulator --books PATH --port N`: prints {"url": ...} when it listens."""

from pathlib import Path

import click

from tallystick.simulator.plan import PlanFault
from tallystick.simulator.running import BooksInUse, endpoint, own_port, run


@click.command()
@click.option("--books", type=click.Path(path_type=Path), required=True, help="The file that holds its books.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=0, show_default=True, help="0: any free one.")
@click.option("--faults", default="", help="A fault plan, or a file with one.")
@click.option("--seed", default=0, show_default=True, help="Decides where faults by rate strike.")
@click.option("--listen", multiple=True, metavar="DIALECT=PORT", help="A port without the prefix. 0: any.")
@click.option("--webhooks", multiple=True, metavar="DIALECT=URL,SECRET", help="Where events are sent.")
@click.option("--until-stdin-closes", is_flag=True, help="Stop when whoever started it is gone.")
@click.option("--anywhere", is_flag=True, help="Allow an address that is not loopback. There is no password.")
def main(
    *,
    books: Path,
    host: str,
    port: int,
    faults: str,
    seed: int,
    listen: tuple[str, ...],
    webhooks: tuple[str, ...],
    until_stdin_closes: bool,
    anywhere: bool,
) -> None:
    """Serve four providers' APIs from one file, until SIGTERM."""
    try:
        endpoints = dict(endpoint(text) for text in webhooks)
        run(
            books,
            host=host,
            port=port,
            faults=faults,
            seed=seed,
            endpoints=endpoints,
            anywhere=anywhere,
            until_stdin_closes=until_stdin_closes,
            listen=dict(own_port(text) for text in listen),
        )
    except BooksInUse as fault:
        raise click.ClickException(str(fault)) from fault
    except PlanFault as fault:
        raise click.BadParameter(str(fault), param_hint="--faults") from fault
    except ValueError as fault:
        raise click.UsageError(str(fault)) from fault


main()
