"""What a provider said, as the log of charges and refunds keeps it; and the database's time between two looks at it."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from tallystick.providers.steady import steady
from tallystick.providers.words import Absent, Answer, Done, Exchange, Found, Looked, Undecided


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a question, or of anything else that a person may ask for later."""

    what: str
    found: str
    detail: str = ""
    exchanges: tuple[Exchange, ...] = ()


def now_after(said: datetime, heard: float) -> datetime:
    """The database's time, carried on by this machine's steady clock: its wall clock may be wrong by a day."""
    return said + timedelta(seconds=max(steady() - heard, 0.0))


def answered(answer: Answer) -> bytes:
    """What came of a send."""
    what = answer.movement.status if isinstance(answer, Done) else f"{answer.code}: {answer.message}"
    return kept("answered", type(answer).__name__.lower(), what, answer.evidence)


def looked_up(looked: Looked) -> bytes:
    """What the provider's books showed."""
    match looked:
        case Found():
            ids = ", ".join(f"{movement.id} {movement.status}" for movement in looked.movements)
            return kept("looked_up", "found", ids, looked.evidence)
        case Absent():
            return kept("looked_up", "absent", looked.lookup, looked.evidence)
        case Undecided():
            return kept("looked_up", "undecided", f"{looked.code}: {looked.message}", looked.evidence)


def kept(what: str, found: str, detail: str, exchanges: Sequence[Exchange] = ()) -> bytes:
    """As it is stored."""
    return msgspec.json.encode(Evidence(what=what, found=found, detail=detail, exchanges=tuple(exchanges)))
