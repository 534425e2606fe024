"""`tally simulator`: the providers' other half, on this machine."""

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable
from pathlib import Path

import click

from tallystick import settings as configuration
from tallystick.errors import Misconfigured
from tallystick.secret import Secret
from tallystick.settings import Settings
from tallystick.simulator.plan import PlanFault
from tallystick.simulator.running import BooksInUse, endpoint, own_port, run


@click.command()
@click.option("--faults", default="", metavar="PLAN", help="A fault plan, or a file with one; see above.")
@click.option("--seed", default=0, show_default=True, help="Decides where faults by rate strike.")
@click.option("--port", type=click.IntRange(0, 65535), help="0: any free one. Default: TALLY_SIMULATOR_PORT.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--anywhere", is_flag=True, help="Allow a host that is not this machine. There is no password.")
@click.option("--books", type=click.Path(path_type=Path, dir_okay=False), help="Default: a file under TALLY_HOME.")
@click.option(
    "--listen", multiple=True, metavar="DIALECT=PORT", help="A port without the prefix, for other clients. 0: any."
)
@click.option("--webhooks", multiple=True, metavar="DIALECT=URL,SECRET", help="Where a dialect's events are sent.")
def simulator(
    *,
    faults: str,
    seed: int,
    port: int | None,
    host: str,
    anywhere: bool,
    books: Path | None,
    listen: tuple[str, ...],
    webhooks: tuple[str, ...],
) -> None:
    """Run a simulator of Stripe, Adyen, Square and Wise that keeps books and misbehaves on demand, until Ctrl-C.

    No real money is anywhere near it. Its page (the address it prints) shows its books and every fault by name;
    its books outlive it, also when it is killed.

    \b
    A plan is one or more rules, separated by commas or lines:
      stripe.transfer:execute_then_drop        the next transfer is made, and the answer lost
      stripe.transfer:gateway_503@3-5          the third to the fifth
      *.charge:slow_after(2.5)=10%             a tenth of all charges, chosen by --seed
    """  # noqa: D301 - to click the backspace itself means: keep these lines as they are
    settings = configuration.load()
    if books is None:
        books = simulator_folder(settings) / "books.sqlite"
    try:
        run(
            books,
            host="127.0.0.1" if host == "localhost" else host,
            port=settings.simulator_port if port is None else port,
            faults=faults,
            seed=seed,
            endpoints=dict(endpoint(text) for text in webhooks),
            anywhere=anywhere,
            listen=dict(own_port(text) for text in listen),
        )
    except PlanFault as error:
        raise click.BadParameter(str(error), param_hint="--faults") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.UsageError(f"cannot listen on {host}: {error.strerror or error}") from error
    except BooksInUse as error:
        # One sentence, without the usage: nothing is wrong with the command.
        raise Misconfigured(str(error)) from error
    except sqlite3.Error as error:
        raise click.UsageError(f"{books} cannot be used ({error}).") from error


def simulator_folder(settings: Settings) -> Path:
    """Where the simulator keeps its books by default, made if need be."""
    folder = settings.home / "simulator"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misconfigured(f"TALLY_HOME: {folder} cannot be made: {error.strerror}") from error
    return folder


def simulator_webhook_secret(folder: Path) -> Secret:
    """What signs the webhooks of this home's simulator: random, and the same at every start."""
    return Secret(kept_secret(folder / "webhook_secret", lambda: f"whsec_{secrets.token_urlsafe(32)}"))


def kept_secret(path: Path, make: Callable[[], str]) -> str:
    """What the file holds; made, readable by its owner alone, if there is none. Two that start at once have one."""
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    try:
        made = make()
        descriptor = os.open(f"{path}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(made + "\n")
        # A link exists with all it holds, or not at all.
        with contextlib.suppress(FileExistsError):
            os.link(f"{path}.{os.getpid()}", path)
        Path(f"{path}.{os.getpid()}").unlink()
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise Misconfigured(f"TALLY_HOME: {path} cannot be used: {error.strerror}") from error
