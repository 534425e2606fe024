"""`tally up` and `tally serve`: the service in one process.

`tally up` runs the workers in the same process, not as a child: one Ctrl-C ends all of it, and rate limits and breakers
of a provider are one process's. A child would have its own, and the two together would call at twice the rate.
"""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import click

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.running import run
from tallystick.cli.simulator import simulator_folder
from tallystick.errors import NoSimulator
from tallystick.providers.http import Http, Reply
from tallystick.providers.simulator.process import NotStarted, RunningSimulator, start
from tallystick.providers.steady import steady
from tallystick.settings import Settings
from tallystick.store import tenant as tenants
from tallystick.web.api import build
from tallystick.web.server import serve as listen
from tallystick.workers.crew import crew, working

# Under load most objects live for one batch; collecting every 700 of them costs a tenth of the throughput.
_COLLECT_EVERY = 50_000
# Between the end of a simulator and its next start.
_RESTART_SECONDS = 1.0
# It listens already, on this machine.
_TELL_SECONDS = 10.0
_TELL_ROUNDS = 20
_TELL_PAUSE_SECONDS = 1.0


@click.command()
def serve() -> None:
    """Run the HTTP API and the webhook receiver alone, until Ctrl-C. What is queued is answered before it ends.

    Payouts are made by `tally work`, or by `tally settle` from cron; webhooks that were stored are processed by
    `tally work`.
    """
    run(_serve(configuration.load(), bootstrap=False))


@click.command()
def up() -> None:
    """Start everything: database, migrations, provider simulator, API, webhooks and workers, until Ctrl-C.

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
        for note in (*service.notes, *await service.log.check()):
            click.echo(note, err=True)
        key = settings.api_key
        if bootstrap and key is None:
            key = _development_key(settings.home)
        if key is not None:
            owner = await tenants.ensure_tenant(service.database, "default")
            await tenants.add_key(service.database, owner, "admin", key)

        # Held here: the loop itself keeps no task alive.
        telling: list[asyncio.Future[None]] = []

        def listening(host: str, port: int) -> None:
            address = f"http://{host}:{port}"
            click.echo(f"API        {address}/v1", err=True)
            click.echo(f"Docs       {address}/docs", err=True)
            click.echo(f"Metrics    {address}/metrics", err=True)
            click.echo(f"Webhooks   {address}/webhooks/{{{','.join(service.providers)}}}", err=True)
            if simulator_url is not None:
                telling.append(asyncio.ensure_future(_send_webhooks_to(simulator_url, address)))
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
            await listen(
                build(service),
                settings.host,
                settings.port,
                on_listening=listening,
                on_stopping=service.statuses.stop_waiting,
            )


async def _send_webhooks_to(simulator_url: str, address: str) -> None:
    """Tell our simulator where we listen. Its books remember it, also when it is started again."""
    endpoint = {"url": f"{address}/webhooks/simulator", "secrets": [app.SIMULATOR_WEBHOOK_SECRET]}
    body = json.dumps(endpoint).encode()
    for _ in range(_TELL_ROUNDS):
        client = Http(simulator_url)
        try:
            request = client.request("PUT", "/_sim/endpoints/stripe", [], body)
            reply = await client.send(request, sendable_until=steady() + _TELL_SECONDS, answer_seconds=_TELL_SECONDS)
        finally:
            await client.close()
        if isinstance(reply, Reply) and reply.status == HTTPStatus.OK:
            return
        # It may just be started again.
        await asyncio.sleep(_TELL_PAUSE_SECONDS)
    click.echo("The simulator could not be told where to send webhooks: missed ones are fetched.", err=True)


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
