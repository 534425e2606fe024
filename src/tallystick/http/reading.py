"""From bytes to requests: JSON with one meaning only, and refusals that name the field.

msgspec checks types and keeps the last of two fields of one name; which of two amounts was meant is not ours
to guess, so a second look refuses them (3 to 6 microseconds for an operation).
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Final, NoReturn, TypeVar

import msgspec

from tallystick.ledger.outcome import Rejected

T = TypeVar("T")

_PATH: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$?(?P<path>.*)`)?$", re.DOTALL)
_NAMED: Final = re.compile(r"field `(?P<name>.*)`$", re.DOTALL)
_AMOUNT_REMEDY: Final = "Send a whole number of micros (millionths of the major unit): digits, no point, no exponent."


def read(decode: Callable[[bytes], T], body: bytes) -> T | Rejected:
    """The body as what `decode` makes of it; or why not, and which field is to blame."""
    try:
        value = decode(body)
        _look_for_repetition(body.decode())
    except msgspec.ValidationError as error:
        return _field_refused(str(error))
    except _Repeated as repeated:
        return Rejected(
            "json_field_repeated", f"The field {repeated.name!r:.80} is given twice.", "Give each field once."
        )
    except msgspec.DecodeError as error:
        return _not_json(str(error))
    except RecursionError:
        return _not_json("It is nested too deeply.")
    except ValueError:
        return _not_json("It is not UTF-8, or a number in it is absurdly long.")
    return value


class _Repeated(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _unique(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        _complain(name for name, _ in pairs)


def _complain(names: Iterable[str]) -> NoReturn:
    seen: set[str] = set()
    repeated = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    raise _Repeated(repeated[0])


_look_for_repetition = json.JSONDecoder(object_pairs_hook=_unique).decode


def _not_json(why: str) -> Rejected:
    return Rejected("json_invalid", f"The body is not valid JSON: {why}", "Send one JSON object in UTF-8.")


def _field_refused(message: str) -> Rejected:
    """The complaint of msgspec in our codes, the same that the rules gives for the same field in Python."""
    match = _PATH.match(message)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    field = path.rpartition(".")[2]
    where = path.lstrip(".") or "the body"
    if path.startswith(".limits"):
        return Rejected("limits_invalid", f"{where}: {what}.", "Send window_seconds and max_count or max_sum_micros.")
    if field == "floor_micros":
        return Rejected("floor_invalid", f"{where}: {what}.", "Send whole micros, or null for none.")
    if field.endswith("_micros"):
        code = "amount_overflow" if what.startswith("Integer") else "amount_not_integer"
        return Rejected(code, f"{where} is not a whole number of micros: {what}.", _AMOUNT_REMEDY)
    if path == ".quantity":
        return Rejected(
            "quantity_too_large" if what.startswith("Integer") else "quantity_not_integer",
            f"quantity: {what}.",
            "Send a whole number of pieces: digits, no point, no exponent.",
        )
    if path == ".stock":
        return Rejected("stock_invalid", f"stock: {what}.", "Send a whole number of pieces, 0 or more.")
    if field == "kind":
        return Rejected("kind_unknown", f"kind: {what}.", "Use one of the kinds listed at /docs.")
    named = _NAMED.search(what)
    fields = (named["name"],) if named else (field,) if field else ()
    return Rejected(
        "field_invalid", f"{where}: {what}.", "Compare the request with /docs.", tuple(f[:80] for f in fields)
    )
