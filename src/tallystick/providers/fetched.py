"""What it means that a provider does not show the one object that it was asked for by its own id. Pure."""

from typing import Final

from tallystick.providers.http import Reply
from tallystick.providers.line import Said
from tallystick.providers.words import Absent, Answer, Done, Exchange, Fetched, Lookup, NotShown, Undecided, Unknown

_OK: Final = 200
_SERVER_ERROR: Final = 500
_THERE_IS_NONE: Final = frozenset({404, 410})
# Credentials that it does not take, and haste: neither is said of the object.
_ASK_LATER: Final = frozenset({401, 408, 425, 429})


def body_of(name: str, said: Said) -> bytes | Absent | Undecided:
    """The body that should show it; otherwise why there is none. `name` is the provider's, for a person."""
    evidence = (said.exchange,)
    if not isinstance(said.result, Reply):
        return Undecided(code="unanswered", message=f"{name}: {said.result.reason}.", evidence=evidence)
    status = said.result.status
    if status == _OK:
        return said.result.body
    if status in _THERE_IS_NONE:
        return Absent(lookup=Lookup.EXACT, evidence=evidence)
    return Undecided(
        code=f"status_{status}",
        message=f"{name} answered {status} to a question for one object.",
        may_pass=status >= _SERVER_ERROR or status in _ASK_LATER,
        evidence=evidence,
    )


def unreadable(name: str, why: str, evidence: tuple[Exchange, ...]) -> Undecided:
    """It answered with something else than the object."""
    return Undecided(code="answer_unreadable", message=f"{name}'s answer: {why}.", may_pass=False, evidence=evidence)


def no_such_id() -> Absent:
    """Nothing of the provider's can have this id, so nothing was asked."""
    return Absent(lookup=Lookup.EXACT)


def none_by_id(name: str, what: str) -> NotShown:
    """There is no such question."""
    return NotShown(message=f"{name} shows no {what} by its id.")


def as_an_answer(shown: Fetched) -> Answer:
    """The same after a call that may have moved money, or may have kept it from moving."""
    match shown:
        case Done():
            return shown
        case Absent():
            return Unknown(code="not_there", message="The provider has nothing of that id.", evidence=shown.evidence)
        case NotShown():
            return Unknown(code="not_shown", message=shown.message)
        case Undecided():
            return Unknown(code=shown.code, message=shown.message, evidence=shown.evidence)
