"""`tally bench`: one figure beside its baseline."""

import gc
import json
from collections.abc import Awaitable, Callable

import click
import msgspec

from tallystick import settings as configuration
from tallystick.bench.idle import idle
from tallystick.bench.ledger import ledger
from tallystick.bench.result import Result
from tallystick.cli.running import run
from tallystick.settings import Settings

Bench = Callable[[Settings, float, int, int], Awaitable[Result]]

BENCHES: dict[str, Bench] = {
    "ledger": lambda settings, seconds, runs, seed: ledger(settings, seconds=seconds, runs=runs, hot=False, seed=seed),
    "hot": lambda settings, seconds, runs, seed: ledger(settings, seconds=seconds, runs=runs, hot=True, seed=seed),
    "idle": lambda settings, seconds, _runs, seed: idle(settings, operations=int(200 * seconds), seed=seed),
}

# Most objects of a run live for one batch: collecting every 700 of them would measure the collector.
_COLLECT_EVERY = 50_000


@click.command()
@click.argument("name", type=click.Choice([*BENCHES, "all"]))
@click.option("--hot", is_flag=True, help="With `ledger`: one account is in every operation.")
@click.option("--seconds", default=3.0, show_default=True, help="Length of one run.")
@click.option("--runs", default=3, show_default=True, help="Runs of each side; the median counts.")
@click.option("--seed", default=1, show_default=True, help="Chooses the load; the same seed gives the same one.")
@click.option("--json", "as_json", is_flag=True, help='{"bench","value","unit","baseline","ratio",...}')
def bench(name: str, hot: bool, seconds: float, runs: int, seed: int, as_json: bool) -> None:  # noqa: FBT001, PLR0913
    """Measure NAME beside its baseline, in the same run, with durable commits; then verify the ledger.

    Uses a database of its own on the configured server, or an embedded server that is thrown away.
    """
    gc.set_threshold(_COLLECT_EVERY)
    settings = configuration.load()
    names = list(BENCHES) if name == "all" else ["hot" if name == "ledger" and hot else name]
    results = [run(BENCHES[one](settings, seconds, runs, seed)) for one in names]
    if as_json:
        encoded = [msgspec.to_builtins(result) for result in results]
        click.echo(json.dumps(encoded if name == "all" else encoded[0]))
        return
    for result in results:
        click.echo(
            f"{result.bench:<16} {result.value:>10,g} {result.unit:<26} "
            f"{result.ratio:>6.2f}x of {result.baseline:,g} ({result.baseline_is})"
        )


