"""`tally providers`: which providers there are, what is so about each, and whether they answer."""

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta

import click
import msgspec

from tallystick import app
from tallystick import settings as configuration
from tallystick.cli.opened import say_which
from tallystick.cli.running import run
from tallystick.database import pool as postgres
from tallystick.database.embedded import server as embedded
from tallystick.database.migrate import require_current
from tallystick.errors import SchemaMismatch
from tallystick.movement import store as intent
from tallystick.movement.store import BreakerView
from tallystick.providers.known import KNOWN
from tallystick.providers.words import Facts, Reachability
from tallystick.settings import Settings

_FACTS: Mapping[str, Facts] = {"simulator": KNOWN["stripe"].facts, **{name: one.facts for name, one in KNOWN.items()}}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--no-ping", is_flag=True, help="Do not ask the providers anything.")
def providers(*, as_json: bool, no_ping: bool) -> None:
    """Show each provider: its facts, whether it is configured and answers, and the breakers of running processes.

    Asks each configured provider one harmless question; moves no money.
    Exit status 1 when a configured provider does not answer or does not accept our credentials.
    """
    settings = configuration.load()
    pings, breakers = run(_look(settings, ping=not no_ping))
    rows = [_row(name, facts, settings, pings, breakers) for name, facts in _FACTS.items()]
    if as_json:
        click.echo(json.dumps({"providers": rows}, default=_plain))
    else:
        for name, facts in _FACTS.items():
            _show(name, facts, settings, pings, breakers)
    if not all(ping.authorised for ping in pings.values()):
        raise SystemExit(1)


async def _look(settings: Settings, *, ping: bool) -> tuple[dict[str, Reachability], list[BreakerView] | None]:
    async with app.providers(settings) as known:
        answers = await asyncio.gather(*(provider.ping() for provider in known.values())) if ping else []
    return dict(zip(known, answers, strict=False)), await _breakers(settings)


async def _breakers(settings: Settings) -> list[BreakerView] | None:
    """None: there is no database yet, so nothing can have been sent."""
    if settings.database_url is None and not embedded.exists(settings.home):
        return None
    say_which(settings)
    async with app.database_address(settings, making=False, direct=True) as (dsn, _notes):
        try:
            await require_current(dsn)
        except SchemaMismatch:
            return None
        database = await postgres.connect(dsn, connections=1)
        try:
            return await intent.breakers(database)
        finally:
            await database.close()


def _row(
    name: str,
    facts: Facts,
    settings: Settings,
    pings: Mapping[str, Reachability],
    breakers: list[BreakerView] | None,
) -> dict[str, object]:
    ping = pings.get(name)
    return {
        "name": name,
        "configured": _is_configured(name, settings),
        "chosen": name == settings.provider,
        "reachable": ping and ping.reachable,
        "authorised": ping and ping.authorised,
        "detail": ping and ping.detail,
        "seconds": ping and round(ping.seconds, 3),
        "breakers": [msgspec.to_builtins(one) for one in breakers or () if one.provider == name],
        "facts": {
            **{field: getattr(facts, field) for field in facts.__struct_fields__ if field != "name"},
            "minor_unit_exceptions": sorted(facts.wire.rules),
        },
    }


def _show(
    name: str,
    facts: Facts,
    settings: Settings,
    pings: Mapping[str, Reachability],
    breakers: list[BreakerView] | None,
) -> None:
    ping = pings.get(name)
    state = "not configured"
    if _is_configured(name, settings):
        state = "configured"
        if ping is not None:
            state += f", {ping.detail} ({1000 * ping.seconds:.0f} ms)"
    if name == settings.provider:
        state += ", chosen for new movements"
    click.echo(f"{name}: {state}")
    if name == "simulator":
        if ping is not None and not ping.reachable:
            click.echo("  It does not run. Start it with `tally up`, or alone with `tally simulator`.")
        click.echo(f"  speaks Stripe's dialect: see below\n  {'breaker':<12} {_breaker(name, breakers)}")
        return
    horizon = "published" if facts.horizon_is_published else "assumed: none is published"
    lines = {
        "keys": f"{facts.key_form}, at most {facts.key_characters} characters, remembered {_span(facts.key_horizon)} "
        f"({horizon}), not trusted for the last {_span(facts.key_margin)}",
        "lookup": ", ".join(f"{purpose} {how}" for purpose, how in facts.lookup.items()),
        "pays others": "yes" if facts.pushes_money else "no: its API cannot push money to third parties",
        "may bounce": ", ".join(f"{purpose} for {_span(span)}" for purpose, span in facts.bounces.items()) or "nothing",
        "waits": f"{facts.answer_seconds:g} s for an answer, {_span(facts.longest_in_flight)} for a lost one",
        "limits": f"{facts.requests_per_second:g} requests/s, {facts.concurrency} at once",
        "amounts": "ISO 4217" + (f" except {' '.join(sorted(facts.wire.rules))}" * bool(facts.wire.rules)),
        "breaker": _breaker(name, breakers),
    }
    for title, text in lines.items():
        click.echo(f"  {title:<12} {text}")


def _breaker(name: str, breakers: list[BreakerView] | None) -> str:
    told = [one for one in breakers or () if one.provider == name]
    if not told:
        return "closed (no running process says otherwise)"
    return "; ".join(
        f"{one.state} in {one.process} since {one.changed_at:%Y-%m-%d %H:%M:%S}"
        + (f": {one.reason}" * bool(one.reason))
        for one in told
    )


def _is_configured(name: str, settings: Settings) -> bool:
    return name in settings.providers or (name == "simulator" == settings.provider)


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def _plain(value: object) -> object:
    """What JSON does not know: spans are seconds."""
    match value:
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return dict(value)
        case frozenset():
            return sorted(value)
        case _:
            return str(value)
