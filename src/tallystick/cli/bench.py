"""`tally bench`: one figure beside its baseline."""

import gc
import json
import textwrap
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tallystick import settings as configuration
from tallystick.bench.abuse import abuse
from tallystick.bench.checkout import checkout
from tallystick.bench.gate import ATTEMPTS, gate, gate_over_http
from tallystick.bench.growth import growth
from tallystick.bench.http import batch, http
from tallystick.bench.idle import idle
from tallystick.bench.ledger import ledger
from tallystick.bench.lookup import CHARGES, lookup
from tallystick.bench.providers import providers
from tallystick.bench.result import Result
from tallystick.bench.saga import saga
from tallystick.bench.settlement import settlement
from tallystick.bench.webhooks import webhooks
from tallystick.cli.running import run
from tallystick.settings import Settings


@dataclass(frozen=True, slots=True)
class Size:
    """How long and how often."""

    seconds: float
    runs: int
    seed: int
    # None: the bench's own number, or not measured.
    rows: int | None
    finished: int
    # Of `webhooks`; 0: not measured.
    open_seconds: float
    spike: int
    receivers: int


_GROWN_ROWS = 200_000

Bench = Callable[[Settings, Size], Coroutine[Any, Any, Result]]

BENCHES: dict[str, Bench] = {
    "ledger": lambda on, size: ledger(on, seconds=size.seconds, runs=size.runs, hot=False, seed=size.seed),
    "hot": lambda on, size: ledger(on, seconds=size.seconds, runs=size.runs, hot=True, seed=size.seed),
    "idle": lambda on, size: idle(on, operations=int(200 * size.seconds * size.runs), seed=size.seed),
    "http": lambda on, size: http(on, seconds=size.seconds, runs=size.runs, seed=size.seed),
    "batch": lambda on, size: batch(on, seconds=size.seconds, runs=size.runs, seed=size.seed),
    "providers": lambda _on, size: providers(seconds=size.seconds, runs=size.runs),
    "lookup": lambda _on, size: lookup(charges=size.rows or CHARGES, runs=size.runs),
    "growth": lambda on, size: growth(
        on,
        seconds=size.seconds,
        runs=size.runs,
        seed=size.seed,
        operations=_GROWN_ROWS if size.rows is None else size.rows,
    ),
    "settlement": lambda on, size: settlement(
        on, seconds=size.seconds, runs=size.runs, seed=size.seed, rows=size.rows or 0, finished=size.finished
    ),
    "gate": lambda on, size: gate(on, runs=size.runs, seed=size.seed, attempts=size.rows or ATTEMPTS),
    "gate-http": lambda on, size: gate_over_http(on, runs=size.runs, seed=size.seed, attempts=size.rows or ATTEMPTS),
    "saga": lambda on, size: saga(on, seconds=size.seconds, runs=size.runs, seed=size.seed),
    "checkout": lambda on, size: checkout(on, seconds=size.seconds, runs=size.runs, seed=size.seed),
    "webhooks": lambda on, size: webhooks(
        on,
        seconds=size.seconds,
        runs=size.runs,
        seed=size.seed,
        open_seconds=size.open_seconds,
        spike=size.spike,
        receivers=size.receivers,
    ),
    "abuse": lambda on, size: abuse(on, seconds=size.seconds, runs=size.runs, seed=size.seed),
}

# Most objects of a run live for one batch: collecting every 700 of them would measure the collector.
_COLLECT_EVERY = 50_000


@click.command()
@click.argument("name", type=click.Choice([*BENCHES, "all"]))
@click.option("--hot", is_flag=True, help="With `ledger`: one account is in every operation (the same as `hot`).")
@click.option("--http", "over_http", is_flag=True, help="With `gate`: over HTTP (the same as `gate-http`).")
@click.option("--seconds", default=3.0, show_default=True, type=click.FloatRange(0.5, 600), help="Length of a run.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1, 50), help="The median of them counts.")
@click.option("--seed", default=1, show_default=True, help="Chooses the load; the same seed gives the same one.")
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    help="With `growth`: operations already present (200,000). With `settlement`: pending rows to pay at flat memory. "
    "With `gate`: attempts (100,000), of which one in a hundred can be served. With `lookup`: charges beside the one "
    "that is asked for (10,000).",
)
@click.option(
    "--finished",
    default=0,
    type=click.IntRange(min=0),
    help="With `settlement`: finished rows beside which the claim is timed, and its plan shown.",
)
@click.option(
    "--open-seconds",
    default=3.0,
    show_default=True,
    type=click.FloatRange(0, 600),
    help="With `webhooks`: how long 10,000 a second are sent by schedule; 0: not at all.",
)
@click.option(
    "--spike",
    default=20_000,
    show_default=True,
    type=click.IntRange(min=0),
    help="With `webhooks`: so many as fast as they are taken, to see the receiver's memory; 0: none.",
)
@click.option(
    "--receivers",
    default=2,
    show_default=True,
    type=click.IntRange(1, 16),
    help="With `webhooks`: processes that receive, each on a port of its own, as behind a balancer.",
)
@click.option("--json", "as_json", is_flag=True, help='{"bench","value","unit","baseline","ratio",...}')
def bench(name: str, *, hot: bool, over_http: bool, as_json: bool, **size: Any) -> None:  # noqa: ANN401 - as click gives them
    """Measure NAME beside its baseline, in the same run, with durable commits; then verify the ledger.

    Uses a database of its own on the configured server, or an embedded server that is thrown away.
    """
    gc.set_threshold(_COLLECT_EVERY)
    settings = configuration.load()
    chosen = "hot" if name == "ledger" and hot else "gate-http" if name == "gate" and over_http else name
    names = list(BENCHES) if name == "all" else [chosen]
    results = []
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        for one in names:
            task = progress.add_task(f"bench {one}", total=None)
            results.append(run(BENCHES[one](settings, Size(**size))))
            progress.remove_task(task)
    if as_json:
        encoded = [msgspec.to_builtins(result) for result in results]
        click.echo(json.dumps(encoded if name == "all" else encoded[0]))
        return
    for result in results:
        click.echo(
            f"{result.bench:<13} {result.value:>10,.10g} {result.unit:<24} "
            f"{result.ratio:>6.2f}x of {result.baseline:,.10g} ({result.baseline_is})"
        )
        if name != "all":
            _show_details(result)


def _show_details(result: Result) -> None:
    for name, value in result.details.items():
        if isinstance(value, str) and "\n" in value:
            click.echo(f"  {name}:")
            click.echo(textwrap.indent(value, "    "))
        else:
            shown = value if isinstance(value, str | list) else f"{value:,.10g}"
            click.echo(f"  {name:<36} {shown}")
