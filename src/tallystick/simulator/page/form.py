"""What each form of the page does. A form either does all it says, or nothing and says why in a sentence.

clock      go forward                    plan       one more fault, by calls or by rate
act        something happens to an object   clear_faults   none any more
switches   how unverified facts stand    seed       where faults by rate strike
endpoint   where webhooks go, or nowhere    reset      empty books
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from tallystick import queries
from tallystick.simulator.catalogue import ALL, CATALOGUE, Stage
from tallystick.simulator.control import Control
from tallystick.simulator.dialect import Dialect, Endpoint
from tallystick.simulator.endpoints import EndpointFault, checked
from tallystick.simulator.page.words import ACTIONS, OPERATIONS
from tallystick.simulator.plan import parse

_SQL: Final = queries.load(__package__, "page.sql")
HOUR_SECONDS: Final = 3600
STEPS: Final = {"1 hour": HOUR_SECONDS, "24 hours": 24 * HOUR_SECONDS, "7 days": 7 * 24 * HOUR_SECONDS}
# Characters; an address or an object's id that is longer is a slip of the clipboard.
_LONGEST_FIELD: Final = 500

Fields = Mapping[str, str]
Dialects = Mapping[str, Dialect]
Form = Callable[[Control, Dialects, Fields], str]


class FormFault(ValueError):
    """Why a form did nothing, for the person who sent it."""


def _clock(control: Control, _dialects: Dialects, fields: Fields) -> str:
    chosen = {str(seconds): seconds for seconds in STEPS.values()}
    seconds = _chosen(fields, "seconds", chosen, "a step of the clock")
    try:
        control.clock.advance(chosen[seconds])
    except ValueError as fault:
        raise FormFault(f"Nothing was changed: {fault}.") from fault
    return "clock"


def _plan(control: Control, _dialects: Dialects, fields: Fields) -> str:
    dialect = _chosen(fields, "dialect", (*ALL, "*"), "a provider")
    fault = CATALOGUE[_chosen(fields, "fault", CATALOGUE, "a fault")]
    operation = _text(fields, "operation") or "*"
    if fault.stage is not Stage.WEBHOOK and operation not in (*OPERATIONS, "*"):
        raise FormFault(f"There is no operation {operation!r}. There are: {', '.join(OPERATIONS)}, and * for all.")
    argument, calls, rate = (_text(fields, name) for name in ("argument", "calls", "rate"))
    if calls and rate:
        raise FormFault("Give either the calls or a rate: a fault strikes by one of them.")
    rule = f"{dialect}.{operation}:{fault.name}"
    rule += f"({argument})" if argument else ""
    rule += f"@{calls}" if calls else f"={rate.removesuffix('%')}%" if rate else ""
    # A comma or a line break in a field would otherwise plan more than the form shows.
    if len(parse(rule)) != 1:
        raise FormFault(f"{rule!r} is more than one rule. Fill in one fault at a time.")
    control.faults.add(rule)
    return "faults"


def _clear_faults(control: Control, _dialects: Dialects, _fields: Fields) -> str:
    control.faults.clear()
    return "faults"


def _seed(control: Control, _dialects: Dialects, fields: Fields) -> str:
    seed = _text(fields, "seed")
    if not re.fullmatch(r"[0-9]{1,18}", seed):
        raise FormFault(f"A seed is a whole number of at most 18 digits, not {seed!r}.")
    control.faults.seed = int(seed)
    return "faults"


def _switches(control: Control, _dialects: Dialects, fields: Fields) -> str:
    known = control.books.switches
    for name in fields:
        if name not in known:
            raise FormFault(f"There is no switch {name!r}.")
        control.books.set_switch(name, _chosen(fields, name, known[name].values, f"a value of {name}"))
    return "switches"


def _endpoint(control: Control, dialects: Dialects, fields: Fields) -> str:
    dialect = _chosen(fields, "dialect", dialects, "a provider")
    url = _text(fields, "url")
    if not url:
        control.books.set_endpoint(dialect, None)
        return "endpoints"
    secrets = tuple(secret for name in ("secret", "older_secret") if (secret := fields.get(name, "").strip()))
    try:
        control.books.set_endpoint(dialect, checked(dialect, Endpoint(url, secrets)))
    except EndpointFault as fault:
        raise FormFault(str(fault)) from fault
    return "endpoints"


def _act(control: Control, dialects: Dialects, fields: Fields) -> str:
    dialect = _chosen(fields, "dialect", dialects, "a provider")
    object_id = _text(fields, "id")
    books = control.books
    found = [entry for kind in ACTIONS[dialect] if (entry := books.get(dialect, kind, object_id)) is not None]
    if not found:
        kinds = ", ".join(ACTIONS[dialect]).replace("_", " ")
        raise FormFault(f"{dialect} has no object {object_id!r} that anything can happen to. Possible: {kinds}.")
    entry = found[0]
    possible = ACTIONS[dialect][entry.kind]
    action = _chosen(fields, "action", possible, f"something that can happen to a {entry.kind} of {dialect}")
    before = books.execute(_SQL["last_event"]).fetchone()
    dialects[dialect].act(books, control.clock.now(), action, object_id)
    if books.execute(_SQL["last_event"]).fetchone() == before:
        raise FormFault(
            f"Nothing changed: {object_id} is {entry.state} now, and {action} ({possible[action]}) needs it elsewhere."
        )
    return f"books-{dialect}"


def _reset(control: Control, _dialects: Dialects, fields: Fields) -> str:
    if _text(fields, "sure") != "yes":
        raise FormFault("Nothing was emptied. Tick the box first: the books cannot be brought back.")
    control.reset()
    return "top"


FORMS: Final[Mapping[str, Form]] = {
    "clock": _clock,
    "plan": _plan,
    "clear_faults": _clear_faults,
    "seed": _seed,
    "switches": _switches,
    "endpoint": _endpoint,
    "act": _act,
    "reset": _reset,
}


def _text(fields: Fields, name: str) -> str:
    text = fields.get(name, "").strip()
    if len(text) > _LONGEST_FIELD or not text.isprintable():
        raise FormFault(f"{name} is one line of at most {_LONGEST_FIELD} characters.")
    return text


def _chosen(fields: Fields, name: str, possible: "Mapping[str, object] | tuple[str, ...]", what: str) -> str:
    text = _text(fields, name)
    if text not in possible:
        raise FormFault(f"{text!r} is not {what}. Choose one of: {', '.join(possible)}.")
    return text
