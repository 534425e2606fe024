"""`tally up` and `tally serve`: the service in one process.

`tally up` runs the workers in the same process, not as a child: one Ctrl-C ends all of it, and rate limits and breakers
of a provider are one process's. A child would have its own, and the two together would call at twice the rate.
"""

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import click

from tallystick import app
from tallystick import settings as configuration
from tallystick.access import store as tenants
from tallystick.cli.running import run
from tallystick.cli.simulator import kept_secret, simulator_folder, simulator_webhook_secret
from tallystick.database.pool import Database
from tallystick.errors import Misconfigured, NoSimulator
from tallystick.http.api import build
from tallystick.http.server import serve as listen
from tallystick.providers.http import Http, Reply, is_loopback
from tallystick.providers.steady import steady
from tallystick.settings import Settings
from tallystick.simulator.process import NotStarted, RunningSimulator, start
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

    It does not migrate: a database that lacks something is exit status 2, and says so.

    Payouts are made by `tally work`, or by `tally settle` from cron; webhooks that were stored are processed by
    `tally work`.
    """
    run(_serve(_to_serve(configuration.load()), bootstrap=False))


@click.command()
def up() -> None:
    """Start everything: database, migrations, provider simulator, API, webhooks and workers, until Ctrl-C.

    Without TALLY_DATABASE_URL an embedded PostgreSQL keeps its data under TALLY_HOME, and is migrated; any other
    database is migrated by `tally migrate` alone. Without another TALLY_PROVIDER a simulator stands in for one. Prints
    the addresses and an API key for development. On Ctrl-C the workers finish what they hold; killed, they lose
    nothing.
    """
    run(_up(_to_serve(configuration.load())))


def _to_serve(settings: Settings) -> Settings:
    """The settings of a process that listens. Raises Misconfigured where nobody chose whom to believe."""
    if settings.provider != "simulator":
        return settings
    is_asked_for = settings.origins.get("TALLY_PROVIDER", "default") != "default"
    if not is_asked_for and not is_loopback(settings.host):
        # Whoever reaches this address could have orders paid by a simulator.
        raise Misconfigured(
            f"TALLY_HOST is {settings.host}, which others can reach, and no TALLY_PROVIDER is chosen: a simulator "
            "would stand in for one. Choose a provider, or set TALLY_PROVIDER=simulator if that is what you want"
        )
    secret = simulator_webhook_secret(simulator_folder(settings))
    return replace(settings, simulator_webhook_secret=secret)


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
    migrating = bootstrap and app.owns_database(settings)
    async with app.running(settings, simulator_url=simulator_url, migrating=migrating) as service:
        for note in (*service.notes, *await service.log.check()):
            click.echo(note, err=True)
        shown = await _bootstrapped(service.database, settings, may_make=bootstrap)

        # Held here: the loop itself keeps no task alive.
        telling: list[asyncio.Future[None]] = []

        def listening(host: str, port: int) -> None:
            address = f"http://{host}:{port}"
            click.echo(f"API        {address}/v1", err=True)
            click.echo(f"Docs       {address}/docs", err=True)
            click.echo(f"Metrics    {address}/metrics", err=True)
            for place, name in enumerate(service.providers):
                click.echo(f"{'' if place else 'Webhooks':<10} {address}/webhooks/{name}", err=True)
            if simulator_url is not None:
                telling.append(asyncio.ensure_future(_send_webhooks_to(simulator_url, address, settings)))
                click.echo(
                    f"Simulator  {simulator_url}  (stands in for the provider; its page shows its books)", err=True
                )
            for worker in workers:
                click.echo(f"Worker     {worker.name}", err=True)
            if bootstrap:
                click.echo(f"API key    {shown}", err=True)
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


async def _bootstrapped(database: Database, settings: Settings, *, may_make: bool) -> str:
    """Have the installation's first key be the one that is configured, and no other. What may be shown of it."""
    key = settings.api_key
    if key is None and not may_make:
        return "(none)"
    owner = await tenants.ensure_tenant(database, "default")
    if key is not None:
        if not await tenants.replace_bootstrap_key(database, owner, key):
            click.echo("TALLY_API_KEY was revoked before, and opens nothing. Choose another one.", err=True)
        return "as TALLY_API_KEY says  (tenant default, role admin)"
    key = _development_key(settings.home)
    if not await tenants.replace_bootstrap_key(database, owner, key):
        # Another one took its place in the meantime.
        key = _development_key(settings.home, anew=True)
        await tenants.replace_bootstrap_key(database, owner, key)
    return f"{key}  (tenant default, role admin, for development)"


async def _send_webhooks_to(simulator_url: str, address: str, settings: Settings) -> None:
    """Tell our simulator where we listen. Its books remember it, also when it is started again."""
    secret = settings.simulator_webhook_secret
    endpoint = {"url": f"{address}/webhooks/simulator", "secrets": [] if secret is None else [secret.reveal()]}
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


def _development_key(home: Path, *, anew: bool = False) -> str:
    """The same key at every start, so that scripts go on working. Readable by its owner alone."""
    path = home / "api_key"
    if anew:
        path.unlink(missing_ok=True)
    home.mkdir(parents=True, exist_ok=True)
    return kept_secret(path, tenants.new_key)
