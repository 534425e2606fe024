"""The tables of docs/operating.md know every reason that the code can write on a payout, a charge or a refund.

The reasons are read from the code.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import pytest

from tallystick.checkout.saga import rules as saga
from tallystick.movement import steps
from tallystick.reconciliation import rules as reconciliation
from tallystick.settlement import rules as settlement
from tests.docs.examples import ROOT

OPERATING = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
SOURCES = ROOT / "src" / "tallystick"
# Where verdicts about payouts are made. A verdict made elsewhere about something else has another table.
ELSEWHERE = {
    "checkout/payment/rules.py",
    "checkout/refund/rules.py",
    "webhooks/rules.py",
    "checkout/payment/flow.py",
    "checkout/refund/flow.py",
    "checkout/refund/review/decisions.py",
}
ELSEWHERE |= {"webhooks/flow.py", "checkout/saga/store.py"}

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
    text = (SOURCES / "settlement" / "review" / "store.py").read_text(encoding="utf-8")
    return set(re.findall(r'_moved\([^()]*"failed", [^()]*reason="(\w+)"\)', text))


# Where charges and refunds get their reasons: their own deciders and flows, and what payouts share with them.
Flow = Literal["charge", "refund"]
Standing = Literal["open", "failed"]
SHARED: Final = "movement/steps.py"
OF_FLOW: Final[dict[Flow, tuple[str, ...]]] = {
    "charge": (
        "checkout/payment/rules.py",
        "checkout/payment/flow.py",
        "checkout/payment/review/flow.py",
        "checkout/payment/plan.py",
    ),
    "refund": ("checkout/refund/rules.py", "checkout/refund/flow.py", "checkout/refund/review/decisions.py"),
}
# In the saga, for both: by the class of the verdict.
OF_SAGA: Final[dict[Flow, str]] = {"charge": "FailCharge", "refund": "FailRefund"}
# Deciders that only payouts ask.
OF_PAYOUTS: Final = {"after_movement", "after_first_look"}
# How a verdict about a movement stands in the log (`entry_of`), and where in it the reason is.
STANDS: Final[dict[str, tuple[Standing, int]]] = {
    "Disputed": ("open", 0),
    "Hold": ("open", 2),
    "Failed": ("failed", 0),
    "FailCharge": ("failed", 0),
    "FailRefund": ("failed", 0),
}
# Reasons that are not written out, and what they can be. None: another's, which is read where it is made, or a
# provider's own code.
PASSED_ON: Final[dict[str, set[str] | None]] = {
    "answer.code": None,
    "answer.code if answer.needs_person else None": None,
    "charge.reason": None,
    "code": None,
    "decision.reason": None,
    "history.refused_as": None,
    "verdict.reason": None,
    "f'{movement.state}_at_the_provider'": {"failed_at_the_provider", "returned_at_the_provider"},
}
# What the deciders share and this flow never comes to.
NEVER: Final[dict[tuple[Flow, Standing], set[str]]] = {
    # Wise alone waits for our money (`Facts.waits_for_us`), and takes no payments. What came back was made.
    ("charge", "open"): {"made_but_not_funded", "returned"},
    ("charge", "failed"): set(),
    # No number of tries ends a refund (`checkout.refund.rules.patience`), and absence after an error has it sent again.
    ("refund", "open"): {"made_but_not_funded", "returned", "retry_budget_exhausted", "server_error_then_absent"},
    ("refund", "failed"): {"retry_budget_exhausted"},
}


def _calls(file: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call in the file by its last name, without what only payouts ask."""
    tree = ast.parse((SOURCES / file).read_text(encoding="utf-8"))
    bodies = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name in OF_PAYOUTS)]
    for body in bodies:
        for node in ast.walk(body):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield node.func.id, node
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield node.func.attr, node


def _named(reason: ast.expr, file: str) -> set[str]:
    """What the reason of a verdict can be, as it is written."""
    if ast.unparse(reason) in PASSED_ON:
        return PASSED_ON[ast.unparse(reason)] or set()
    match reason:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.Constant(value=None):
            return set()
        case ast.IfExp(body=one, orelse=other):
            return _named(one, file) | _named(other, file)
        case ast.Name(id=name) if name.isupper():
            module = ".".join(("tallystick", *Path(file).with_suffix("").parts))
            return {getattr(importlib.import_module(module), name)}
    raise AssertionError(f"{file}:{reason.lineno}: which reasons can {ast.unparse(reason)!r} be?")


def _at(call: ast.Call, place: int) -> Iterator[ast.expr]:
    """The reason that is given to a call, by its place or by its name."""
    if len(call.args) > place:
        yield call.args[place]
    yield from (word.value for word in call.keywords if word.arg == "reason")


def _of_flow(flow: Flow, standing: Standing) -> set[str]:
    found: set[str] = set()
    for file in (SHARED, "checkout/saga/rules.py", *OF_FLOW[flow]):
        for name, call in _calls(file):
            if (
                name in STANDS
                and STANDS[name][0] == standing
                and (file != "checkout/saga/rules.py" or name == OF_SAGA[flow])
            ):
                for reason in _at(call, STANDS[name][1]):
                    found |= _named(reason, file)
    return (found | _set_otherwise(flow, standing) | _of_statements(flow, standing)) - NEVER[flow, standing]


def _set_otherwise(flow: Flow, standing: Standing) -> set[str]:
    """What is put on a row, or on the answer about one, in place of what was there: `replace(..., reason=...)`."""
    by: dict[Standing, str] = {"open": "replace", "failed": "resolve"}
    return {
        reason
        for file in OF_FLOW[flow]
        for name, call in _calls(file)
        if name == by[standing]
        for written in _at(call, len(call.args))
        for reason in _named(written, file)
    }


def _of_statements(flow: Flow, standing: Standing) -> set[str]:
    """Reasons that statements write by themselves: they end charges. What recovery gives one is of both."""
    found: set[str] = {steps.KEY_DIFFERS} if standing == "open" else set()
    for file in sorted(file for file in SOURCES.rglob("*.sql") if "migrations" not in file.parts):
        for statement in re.split(r"^-- name: ", file.read_text(encoding="utf-8"), flags=re.MULTILINE):
            for update in re.findall(r"UPDATE tally\.payment_idempotency_log.*", statement, re.DOTALL):
                written = set(re.findall(r"\breason = (?:CASE (?:(?!\bEND\b).)*?ELSE )?'(\w+)'", update, re.DOTALL))
                assert not written or "status = 'FAILED'" in update, (
                    f"{file.name}: how does a row with {written} stand?"
                )
                found |= written if (flow, standing) == ("charge", "failed") else set()
    return found


@pytest.mark.parametrize("standing", ["open", "failed"])
@pytest.mark.parametrize("flow", ["charge", "refund"])
def test_every_reason_of_a_charge_and_a_refund_is_in_its_table(flow: Flow, standing: Standing) -> None:
    made, told = _of_flow(flow, standing), _told(f"{'an open' if standing == 'open' else 'a failed'} {flow} because")
    assert made - told == set(), "the code can say this, and the table does not"
    # A provider's codes are examples there.
    assert told - made <= {"card_declined", "status_401"}, "the table explains what nothing says any more"


def test_the_reasons_of_charges_and_refunds_are_found_where_they_are_made() -> None:
    assert {"past_the_horizon", "key_differs", "order_no_longer_pending", "earlier_attempt_not_ended"} <= _of_flow(
        "charge", "open"
    )
    assert _of_flow("charge", "failed") >= {"never_seen", "never_charged", "failed_at_the_provider"}
    assert _of_flow("refund", "open") >= {"moved_under_another_key", "may_have_been_sent_before_the_restore"}
    assert _of_flow("refund", "failed") >= {"not_given_back", "returned_at_the_provider"}


def test_nobody_else_gives_a_charge_or_a_refund_a_reason() -> None:
    own = {"Hold", "FailCharge", "FailRefund"}
    makers = {
        file.relative_to(SOURCES).as_posix()
        for file in SOURCES.rglob("*.py")
        for name, _ in _calls(file.relative_to(SOURCES).as_posix())
        if name in own
    }
    assert makers <= {"checkout/saga/rules.py", *OF_FLOW["charge"], *OF_FLOW["refund"]}


def test_why_a_payment_is_given_back_or_in_review_is_in_the_table() -> None:
    made = {
        reason
        for name, call in _calls("checkout/saga/rules.py")
        if name in ("GiveBack", "Review")
        for written in _at(call, 0)
        for reason in _named(written, "checkout/saga/rules.py")
    }
    assert made == _told("given back, or in review, because")


def test_every_break_is_in_the_table() -> None:
    assert set(saga.BREAKS) == _told("`tally breaks list` shows")
