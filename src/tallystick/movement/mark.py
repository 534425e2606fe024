"""The mark: whose a movement in a provider's books is, and when it proves that this database has lost a life. Pure.

Every movement carries it where the provider has room for it: the installation, made once by `tally migrate`, and what
is paid for. A backup that came to life has the installation of the life that it lost.

    another installation's mark                     theirs: nothing follows
    no mark, and nothing here explains it           a break; nothing stops
    ours, and an attempt that is recorded here      as it should be
    ours, and none                                  a lost life made it
    answered from memory to our first attempt       a lost life had made it

Proof stops sending to that provider until its books have been read (`recovery.reading`). Safety does not rest on it:
that is `movement.rules`'s.
"""

from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from tallystick.providers.words import Answer, Done, Movement

# Longer than any permit, answer and second of a provider's own clock: what is older was not made by this request.
_OLDER: Final = timedelta(minutes=10)

UNEXPLAINED: Final = "no attempt of this database explains it"
FROM_MEMORY: Final = "answered from memory to our first attempt"


def mark_of(installation: str, subject: str) -> str:
    """What is written beside a movement."""
    return f"{installation}/{subject}"


def is_ours(mark: str, installation: str) -> bool:
    """Whether this installation made it, in this life or another."""
    return mark.partition("/")[0] == installation


def proof(movement: Movement, *, installation: str, by_our_key: bool) -> str | None:
    """Why a movement that no attempt recorded here explains shows that a life was lost; None: it does not.

    `by_our_key`: it was asked for by a key of something here of which nothing was sent. A provider without room for
    marks shows no other sign of whose it is, and needs none.
    """
    if movement.elsewhere:
        # Its owner can write there what he likes.
        return None
    if movement.mark:
        return UNEXPLAINED if is_ours(movement.mark, installation) else None
    return UNEXPLAINED if by_our_key else None


def proof_by_answer(answer: Answer, *, attempt: int) -> str | None:
    """The same of an answer to one of our attempts. A refusal moved nothing, and leaves nothing to be known by."""
    return FROM_MEMORY if attempt == 1 and isinstance(answer, Done) and answer.replayed else None


def is_older(made_at: datetime | None, answered: str) -> bool:
    """Whether what a provider answered with was there before it was asked, both by its own clock.

    `answered`: the time of its answer as HTTP writes it. Our clocks are not asked: theirs may differ by hours.
    """
    if made_at is None or not answered:
        return False
    try:
        at = parsedate_to_datetime(answered)
    except (ValueError, TypeError):
        return False
    return at.tzinfo is not None and made_at < at - _OLDER
