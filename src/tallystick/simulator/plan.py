r"""The text of a fault plan. Pure.

plan       = rule { ("," | newline) rule }        `#` starts a comment
rule       = dialect "." operation ":" fault [ "(" argument ")" ] [ "@" calls | "=" rate "%" ]
calls      = n | n "-" m | "*"                    which of the calls that match; without it, the next one
dialect, operation: a name, or `*`

stripe.transfer:execute_then_drop@3, *.transfer:gateway_503=2%
stripe.refund:refused(charge_disputed)@2-4
stripe.payout.paid:webhook_lost@*                 for webhooks, a part of the event's type
"""

import re
from typing import Final

import msgspec

from tallystick.simulator.catalogue import ALL, CATALOGUE, KEYED, KEYLESS, OPERATIONS, Fault, Stage

_RULE: Final = re.compile(
    r"""(?P<dialect>\w+|\*) \. (?P<operation>[\w.\#*-]+) : (?P<fault>\w+) (?:\( (?P<argument>[^()]*) \))?
        (?: @(?: (?P<every>\*) | (?P<first>\d{1,9}) (?:-(?P<last>\d{1,9}))? ) | = (?P<rate>\d+(?:\.\d+)?)% )?""",
    re.VERBOSE,
)
# Wise's event types have a `#` inside; a comment's stands at the start or after a space.
_COMMENT: Final = re.compile(r"(^|(?<=\s))#.*")
_LAST: Final = 10**9


class PlanFault(ValueError):
    """A plan that cannot be read; the message shows the place."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of a plan. `rate` None: it strikes the calls from `first` to `last`, counted from one."""

    dialect: str
    operation: str
    fault: Fault
    argument: str
    first: int = 1
    last: int = 1
    rate: float | None = None
    text: str


def parse(text: str) -> list[Rule]:
    """The rules of a plan. Raises PlanFault."""
    rules = []
    for line_number, line in enumerate(text.split("\n"), start=1):
        column = 0
        for piece in _pieces(_COMMENT.sub("", line)):
            if piece.strip():
                rules.append(_rule(piece.strip(), f"line {line_number}, column {column + 1 + _indent(piece)}"))
            column += len(piece) + 1
    return rules


def _indent(piece: str) -> int:
    return len(piece) - len(piece.lstrip())


def _pieces(line: str) -> list[str]:
    pieces, depth = [""], 0
    for character in line:
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces


def _rule(text: str, place: str) -> Rule:
    match = _RULE.fullmatch(text)
    if match is None:
        good = "dialect.operation:fault, then (argument), then @3, @2-4, @* or =2%"
        raise PlanFault(f"{place}: {text!r} is no rule. A rule is {good}.")
    words = match.groupdict()
    fault = CATALOGUE.get(words["fault"])
    if fault is None:
        raise PlanFault(f"{place}: there is no fault {words['fault']!r}. There are: {', '.join(CATALOGUE)}.")
    _check_names(words, fault, place)
    first = int(words["first"] or 1)
    last = _LAST if words["every"] else int(words["last"] or first)
    rate = None if words["rate"] is None else float(words["rate"]) / 100
    if first < 1 or last < first or (rate is not None and rate > 1):
        raise PlanFault(f"{place}: {text!r}: calls count from 1 upwards, and a rate is 0% to 100%.")
    argument = fault.default if words["argument"] is None else words["argument"]
    if fault.default:
        _check_number(argument, fault, place)
    if words["argument"] and not fault.argument:
        raise PlanFault(f"{place}: {fault.name} takes no argument.")
    return Rule(
        dialect=words["dialect"],
        operation=words["operation"],
        fault=fault,
        argument=argument,
        first=first,
        last=last,
        rate=rate,
        text=text,
    )


def _check_number(argument: str, fault: Fault, place: str) -> None:
    pattern = r"[0-9]{1,12}" if fault.whole else r"[0-9]{1,12}(\.[0-9]{1,12})?"
    if not re.fullmatch(pattern, argument):
        raise PlanFault(f"{place}: {fault.name} takes {fault.argument}, not {argument[:40]!r}.")
    if float(argument) > fault.most:
        raise PlanFault(f"{place}: {fault.name} takes {fault.argument}, at most {fault.most}.")


def _check_names(words: dict[str, str], fault: Fault, place: str) -> None:
    dialect, operation = words["dialect"], words["operation"]
    if dialect != "*" and dialect not in ALL:
        raise PlanFault(f"{place}: there is no dialect {dialect!r}. There are: {', '.join(ALL)}, and * for all.")
    if dialect != "*" and dialect not in fault.dialects:
        raise PlanFault(f"{place}: {fault.name} is a fault of {', '.join(fault.dialects)}, not of {dialect}.")
    if fault.stage is Stage.WEBHOOK or operation == "*":
        return
    known = OPERATIONS if dialect == "*" else (*KEYED[dialect], *KEYLESS[dialect])
    if operation not in known:
        where = "" if dialect == "*" else f" at {dialect}"
        raise PlanFault(f"{place}: there is no operation {operation!r}{where}. There are: {', '.join(known)}, and *.")
    if "*" not in fault.operations and operation not in fault.operations:
        raise PlanFault(f"{place}: {fault.name} strikes {', '.join(fault.operations)}, not {operation}.")
    if fault.needs_key and dialect != "*" and operation not in KEYED[dialect]:
        keyed = ", ".join(KEYED[dialect])
        raise PlanFault(
            f"{place}: {fault.name} needs a key, and {operation} has none at {dialect}. These have: {keyed}."
        )
