"""The tables of docs/operating.md know every reason that the code can write on a payout: it is read from the code."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tallystick.core import reconciliation, settlement
from tests.docs.examples import ROOT

OPERATING = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
SOURCES = ROOT / "src" / "tallystick"
# Where verdicts about payouts are made. A verdict made elsewhere about something else has another table.
ELSEWHERE = {"core/payment.py", "core/refund.py", "core/webhook.py", "flows/payment.py", "flows/refund.py"}
ELSEWHERE |= {"flows/events.py", "store/saga.py"}

# Reasons that are not written out where the verdict is made, and what they can be. None: a provider's own code.
OPEN: Final[dict[str, set[str] | None]] = {
    "f'{movement.state}_after_transferred'": {"failed_after_transferred", "returned_after_transferred"},
    "alarm": set(settlement.ALARMS.values()),
    "answer.code": None,
    "history.refused_as": None,
    "no.code": None,
}


def _made(verdict: str) -> Iterator[tuple[str, ast.expr, Path]]:
    """The reason of every `Disputed(...)` or `Failed(...)` that is made of a payout, as it is written."""
    for file in sorted(SOURCES.rglob("*.py")):
        if file.relative_to(SOURCES).as_posix() in ELSEWHERE:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == verdict:
                yield f"{file.name}:{node.lineno}", node.args[0], file


def _reasons(verdict: str) -> set[str]:
    found: set[str] = set()
    for where, reason, file in _made(verdict):
        match reason:
            case ast.Constant(value=str(text)):
                found.add(text)
            case ast.Name(id=name) if name.isupper():
                module = ".".join(("tallystick", *file.relative_to(SOURCES).with_suffix("").parts))
                found.add(getattr(importlib.import_module(module), name))
            case _:
                assert ast.unparse(reason) in OPEN, f"{where}: which reasons can {ast.unparse(reason)!r} be?"
                found |= OPEN[ast.unparse(reason)] or set()
    return found


def _told(title: str) -> set[str]:
    """The reasons in the first column of the table of that title."""
    table = OPERATING.split(f"| {title} |")[1].split("\n\n")[0]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_every_reason_of_a_disputed_payout_is_in_the_table() -> None:
    made = _reasons("Disputed") | _of_reconciliation()
    assert len(made) > 20
    assert made - _told("disputed because") == set(), "the code can say this, and the table does not"
    assert _told("disputed because") - made == set(), "the table explains what nothing says any more"


def test_every_reason_of_a_failed_payout_is_in_the_table() -> None:
    made = _reasons("Failed") | _decided()
    assert {"written_off", "retry_budget_exhausted", "failed_at_the_provider"} <= made
    assert made - _told("failed because") == set()


def _of_reconciliation() -> set[str]:
    """`tally reconcile --repair` disputes what is missing there."""
    found = set()
    for node in ast.walk(ast.parse(Path(reconciliation.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Finding":
            told = {word.arg: word.value for word in node.keywords}
            if ast.unparse(told["kind"]) == "'missing_there'":
                found.add(str(getattr(reconciliation, ast.unparse(told["reason"]))))
    return found


def _decided() -> set[str]:
    """What persons write on a row, by `_moved(..., "failed", ..., reason=...)`."""
    text = (SOURCES / "store" / "settlement_review.py").read_text(encoding="utf-8")
    return set(re.findall(r'_moved\([^()]*"failed", [^()]*reason="(\w+)"\)', text))
