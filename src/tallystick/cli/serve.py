"""`tally up` and `tally serve`: the service in one process.

`tally up` runs the workers in the same process, not as a child: one Ctrl-C ends all of it, and rate limits and breakers
of a provider are one process's. A child would have its own, and the two together would call at twice the rate.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import click

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.running import run
from tallystick.cli.simulator import simulator_folder
from tallystick.errors import NoSimulator
from tallystick.providers.simulator.process import NotStarted, RunningSimulator, start
from tallystick.settings import Settings
from tallystick.store import tenant as tenants
from tallystick.web.api import build
from tallystick.web.server import serve as listen
from tallystick.workers.crew import crew, working

# Under load most objects live for one batch; collecting every 700 of them costs a tenth of the throughput.
_COLLECT_EVERY = 50_000
# Between the end of a simulator and its next start.
_RESTART_SECONDS = 1.0


@click.command()
def serve() -> None:
    """Run the HTTP API alone, until Ctrl-C. Queued operations are answered before it ends.

    Payouts are made by `tally work`, or by `tally settle` from cron.
    """
    run(_serve(configuration.load(), bootstrap=False))


@click.command()
def up() -> None:
    """Start everything: database, migrations, provider simulator, API and workers, until Ctrl-C.

    Without TALLY_DATABASE_URL an embedded PostgreSQL keeps its data under TALLY_HOME; without another
    TALLY_PROVIDER a simulator stands in for one. Prints the addresses and an API key for development. On Ctrl-C the
    workers finish what they hold; killed, they lose nothing.
    """
    run(_up(configuration.load()))


async def _up(settings: Settings) -> None:
    if settings.provider != "simulator":
        await _serve(settings, bootstrap=True)
        return
    async with _simulator(settings) as url:
        await _serve(settings, bootstrap=True, simulator_url=url)


@asynccontextmanager
async def _simulator(settings: Settings) -> AsyncIterator[str]:
    folder = simulator_folder(settings)
    running = await _start(folder, settings.simulator_port)
    watching = asyncio.create_task(_keep(running, folder))
    try:
        yield running.url
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _keep(running: RunningSimulator, folder: Path) -> None:
    """Start it again at the same address when it ends: its books have everything that it ever answered."""
    port = urlsplit(running.url).port or 0
    try:
        while True:
            status = await asyncio.to_thread(running.wait)
            click.echo(f"The simulator ended (status {status}); starting it again. Its log: {folder / 'log'}", err=True)
            await asyncio.sleep(_RESTART_SECONDS)
            try:
                running = await _start(folder, port)
            except NoSimulator as error:
                click.echo(str(error), err=True)
                return
    finally:
        await asyncio.to_thread(running.stop)


async def _start(folder: Path, port: int) -> RunningSimulator:
    try:
        return await asyncio.to_thread(start, folder / "books.sqlite", port=port, log=folder / "log")
    except NotStarted as error:
        raise NoSimulator(
            f"The simulator did not start on port {port} (TALLY_SIMULATOR_PORT). Another one may be running there, or "
            f"with the same books. Its log: {folder / 'log'}"
        ) from error


async def _serve(settings: Settings, *, bootstrap: bool, simulator_url: str | None = None) -> None:
    gc.set_threshold(_COLLECT_EVERY)
    async with app.running(settings, simulator_url=simulator_url) as service:
        for note in service.notes:
            click.echo(note, err=True)
        key = settings.api_key
        if bootstrap and key is None:
            key = _development_key(settings.home)
        if key is not None:
            owner = await tenants.ensure_tenant(service.database, "default")
            await tenants.add_key(service.database, owner, "admin", key)

        def listening(host: str, port: int) -> None:
            address = f"http://{host}:{port}"
            click.echo(f"API        {address}/v1", err=True)
            click.echo(f"Docs       {address}/docs", err=True)
            click.echo(f"Metrics    {address}/metrics", err=True)
            if simulator_url is not None:
                click.echo(
                    f"Simulator  {simulator_url}  (stands in for the provider; its page shows its books)", err=True
                )
            for worker in workers:
                click.echo(f"Worker     {worker.name}", err=True)
            if bootstrap:
                click.echo(f"API key    {key}  (tenant default, role admin, for development)", err=True)
                click.echo("Ctrl-C stops everything; the data stays.", err=True)

        workers = crew(service) if bootstrap else []
        async with working(workers):
            await listen(build(service), settings.host, settings.port, on_listening=listening)


def _development_key(home: Path) -> str:
    """The same key at every start, so that scripts go on working. Readable by its owner alone."""
    path = home / "api_key"
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    home.mkdir(parents=True, exist_ok=True)
    key = tenants.new_key()
    path.touch(mode=0o600)
    path.write_text(key + "\n", encoding="ascii")
    return key
