"""What the page shows: the books and everything around them, read at one moment, as plain values for the template."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from tallystick import queries
from tallystick.money.amounts import MICROS_DIGITS, format_amount
from tallystick.simulator.amounts import IN_MAJOR_UNITS, decimals, is_currency
from tallystick.simulator.catalogue import CATALOGUE
from tallystick.simulator.control import Control
from tallystick.simulator.dialect import Dialect
from tallystick.simulator.page.form import STEPS
from tallystick.simulator.page.words import ACTIONS, OPERATIONS, POINTING, STAGES
from tallystick.simulator.records import from_microseconds
from tallystick.simulator.square.answer import MAIN_LOCATION
from tallystick.simulator.wise.quote import BUSINESS_PROFILE

_SQL: Final = queries.load(__package__, "page.sql")
# Rows of each list. Who wants more asks /_sim/.
MOST_ROWS: Final = 50


def view(control: Control, dialects: Mapping[str, Dialect], address: str) -> dict[str, Any]:
    """Everything the template names."""
    summary, faults = control.summary(), control.faults.report()
    return {
        "rows_shown": MOST_ROWS,
        "now": _moment(control.clock.now()),
        "ahead": _span(control.clock.offset_seconds),
        "steps": STEPS,
        "providers": [_provider(control, name, address, summary) for name in dialects],
        "events": _events(control),
        "deliveries": _deliveries(control),
        "delivery_counts": control.books.execute(_SQL["delivery_counts"]).fetchall(),
        "active": [{**rule, "meaning": CATALOGUE[rule["fault"]].meaning} for rule in faults["active"]],
        "struck": faults["struck"],
        "seed": faults["seed"],
        "catalogue": [
            (words, [fault for fault in CATALOGUE.values() if fault.stage is stage]) for stage, words in STAGES.items()
        ],
        "operations": OPERATIONS,
        "switches": control.switches(),
        "actions": {
            name: sorted({word for kind in kinds.values() for word in kind}) for name, kinds in ACTIONS.items()
        },
    }


def _provider(control: Control, name: str, address: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    pointing, url = POINTING[name], f"{address}/{name}"
    facts = {"url": url, "location": MAIN_LOCATION, "profile": BUSINESS_PROFILE}
    endpoint = control.books.endpoint(name)
    return {
        "name": name,
        "title": pointing.title,
        "url": url,
        "environment": pointing.environment.format(**facts),
        "package": pointing.package,
        "code": pointing.code.format(**facts),
        "endpoint": None if endpoint is None else endpoint.url,
        "secrets": 0 if endpoint is None else len(endpoint.secrets),
        "remembered": summary["keys"].get(name, 0),
        "totals": [
            {**row, "kind": _words(row["kind"]), "sum": amount(name, row["currency"], row["amount"])}
            for row in summary["entries"]
            if row["dialect"] == name
        ],
        "movements": _movements(control, name),
    }


def _movements(control: Control, dialect: str) -> list[dict[str, Any]]:
    names = ("dialect", "kind", "id", "reference", "parent", "amount", "currency", "state", "created_at")
    rows = control.books.execute(_SQL["latest_movements"], (dialect, MOST_ROWS)).fetchall()
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [
        {
            **row,
            "kind": _words(row["kind"]),
            "amount": amount(dialect, row["currency"], row["amount"]),
            "at": _moment(from_microseconds(row["created_at"])),
            "actions": ACTIONS[dialect].get(row["kind"], {}),
        }
        for row in found
    ]


def _events(control: Control) -> list[dict[str, Any]]:
    names = ("dialect", "type", "id", "object_id", "created_at")
    rows = control.books.execute(_SQL["latest_events"], (MOST_ROWS,)).fetchall()
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [{**row, "at": _moment(from_microseconds(row["created_at"]))} for row in found]


def _deliveries(control: Control) -> list[dict[str, Any]]:
    names = ("dialect", "event_id", "type", "trick", "state", "attempts", "note", "due_at")
    rows = control.books.execute(_SQL["latest_deliveries"], (MOST_ROWS,)).fetchall()
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [
        {**row, "next": _moment(from_microseconds(row["due_at"])) if row["state"] == "pending" else ""} for row in found
    ]


def amount(dialect: str, currency: str, amount: int) -> str:
    """For persons: "3.20 USD". The books hold the provider's minor units, and micros for Wise."""
    code = currency.upper()
    if not is_currency(code):
        return f"{amount} {currency}".strip()
    micros = amount if dialect in IN_MAJOR_UNITS else amount * 10 ** (MICROS_DIGITS - decimals(dialect, code))
    return format_amount(micros, code)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _span(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86_400)
    parts = [(days, "d"), (rest // 3600, "h"), (rest % 3600 // 60, "min"), (rest % 60, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)
