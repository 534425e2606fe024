"""Who does it: the author that travels with a call, and is written with every step of the journal.

    anna/tsk_AbCd1234    a person or a service, and the key it used
    root/terminal        who sat at this machine's terminal
    billing/library      a program that opened the ledger itself
    worker/host:4711     a process that works by itself
    provider/stripe      what a provider told us
    unknown/...          code of an earlier release, or a key without a name

The edges (a web call, a command, the library, a worker) sign once, and everything below them is theirs. Whatever waits
to be committed together with others' takes its author along (`Claim.author`): the lane that commits is nobody's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

UNKNOWN: Final = "unknown"
# The first key of an installation: whoever set it up has it, and so it says nothing of who uses it.
BOOTSTRAP: Final = "bootstrap"
# What nobody signed: the database's own word for it (migration 0013).
UNSIGNED: Final = f"{UNKNOWN}/earlier release"
# Names that are no person's, so that a person's key cannot be taken for them.
TAKEN: Final = frozenset({UNKNOWN, BOOTSTRAP, "worker", "provider", "library"})

_author: ContextVar[str | None] = ContextVar("tally_author", default=None)


def current() -> str:
    """Who does what happens now."""
    return _author.get() or UNSIGNED


def signed() -> str | None:
    """The same; None: nobody has signed."""
    return _author.get()


def sign(author: str | None) -> None:
    """From here on, in this task and those it starts, it is this author's doing. None: nobody's."""
    _author.set(author)


@contextmanager
def acting(author: str) -> Iterator[None]:
    """The same for a block."""
    before = _author.set(author)
    try:
        yield
    finally:
        _author.reset(before)


def by_key(owner: str, prefix: str) -> str:
    """The author behind an API key."""
    return f"{owner}/{prefix}"


def at_terminal(person: str) -> str:
    """The author of a command."""
    return f"{person}/terminal"


def by_library(service: str) -> str:
    """The author of a program that opened the ledger itself."""
    return f"{service}/library"


def by_worker(name: str) -> str:
    """The author of what a worker does by itself."""
    return f"worker/{name}"


def by_provider(*providers: str) -> str:
    """The author of what providers told us."""
    return f"provider/{','.join(sorted(set(providers)))}"


def person_of(author: str) -> str:
    """The person or service, whatever it used: a second key is no second person."""
    return author.partition("/")[0]


def is_somebody(person: str) -> bool:
    """Whether this names one person: only then can he be a second one."""
    return person not in TAKEN


def written(author: str) -> str:
    """The author as a literal of SQL: what cannot be printed, and whatever could end the literal, is left out."""
    return "'" + "".join(letter for letter in author if letter.isprintable() and letter not in "'\\")[:300] + "'"
