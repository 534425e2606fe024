"""`tally work`: the workers, alone."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.running import run
from tallystick.settings import Settings
from tallystick.workers.crew import crew, working

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED: Final = 130


@click.command()
def work() -> None:
    """Run all workers, until Ctrl-C or SIGTERM.

    Settlements are paid, and recovered when stuck; reservations that nobody paid in time are swept, and their stock is
    for sale again; charges that a process left behind are looked up and recorded; webhook events are processed, and
    missed ones fetched; with TALLY_KAFKA_BOOTSTRAP they are brought from Kafka into the database.

    Run as many of these as you like, on any host: no two of them share a row. The first Ctrl-C lets them finish what
    they hold (seconds; as long as the provider takes to answer), the second stops at once. Killed at any moment they
    lose nothing: what was claimed is taken over after TALLY_SETTLEMENT_TIMEOUT_SECONDS, or TALLY_LEASE_SECONDS.

    An outage of the database or of a provider does not end them.

    Exit status: 0 stopped when told, 2 wrong settings, 3 the database or Kafka is out of reach at the start.
    """
    try:
        run(_work(configuration.load()))
    except asyncio.CancelledError:
        click.echo("Stopped in the middle: what was held is taken over when it is overdue.", err=True)
        raise SystemExit(_INTERRUPTED) from None


async def _work(settings: Settings) -> None:
    async with app.running(settings) as service:
        for note in (*service.notes, *await service.log.check()):
            click.echo(note, err=True)
        workers = crew(service)
        stopping = asyncio.Event()
        with _stopped_by_signals(stopping):
            async with working(workers):
                for worker in workers:
                    click.echo(f"at work: {worker.name}", err=True)
                click.echo("Ctrl-C finishes what is held, then stops.", err=True)
                await stopping.wait()
                click.echo("finishing what is held; Ctrl-C again stops at once", err=True)


@contextmanager
def _stopped_by_signals(stopping: asyncio.Event) -> Iterator[None]:
    """The first signal asks; the second does not."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set() and task is not None:
            task.cancel()
        stopping.set()

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
