"""What a dialect is: one provider's API, spoken against the common books.

A dialect is synchronous. It runs inside a transaction of the books that is committed before the first byte of
the reply leaves, so what a client was told survives a SIGKILL of the simulator.

    request ─> route ─> Call ─> [plan: refuse before] ─> keys: replay | in flight | mismatch
                                                            └─> execute (the books change) ─> store under the key
                                                                     └─> [plan: break the answer] ─> wire
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from tallystick.simulator.books import Books


# For whoever comes with another client: what is missing is not a mistake of his.
NOT_SIMULATED: Final = "This is a simulator, which does not do that."
# In patterns of paths: what is any version, and what is any id.
_VERSION: Final = re.compile(r"\(\?:[^()]*\)|v\\d\+")
_ID: Final = re.compile(r"\([^()]*\)")


def not_done(routes: Mapping[str, Iterable[str]]) -> str:
    """What is said of a path that a dialect does not know: what it does know. `routes`: methods by their pattern."""
    paths = {_ID.sub("{id}", _VERSION.sub("{version}", path)): methods for path, methods in routes.items()}
    known = sorted("/".join(sorted(methods)) + " " + path for path, methods in paths.items())
    return f"{NOT_SIMULATED} It does: {', '.join(known)}"


class Request(msgspec.Struct, frozen=True):
    """One HTTP request. `path` is below the dialect's prefix ("/v1/transfers"); header names are lower case."""

    method: str
    path: str
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    body: bytes


class Reply(msgspec.Struct, frozen=True):
    """One HTTP reply. Content-Length is added by the wire."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


class Call(msgspec.Struct, frozen=True):
    """A request understood: which operation, under which key, and what carries it out.

    `operation` is the word fault plans use: charge, refund, transfer, payout, fund, quote, recipient, cancel,
    lookup, list, events ... `key` None: the call has no idempotency. `scope` is where the key must be unique
    (account, company, endpoint). `fingerprint` is what must be equal for a replay. `execute` changes the books.
    """

    operation: str
    execute: "Callable[[Books, datetime], Reply]"
    key: str | None = None
    scope: str = ""
    fingerprint: bytes = b""


class KeyRule(msgspec.Struct, frozen=True, kw_only=True):
    """How a dialect remembers keys. `horizon_seconds` None: for ever.

    `stores` tells which replies are kept under the key; `replay` dresses a kept one; `in_flight` and `mismatch`
    are what is said while the first runs and to another request under the same key (None: the first's answer).
    `scope` overrides the call's own, where the scope itself is an unverified fact.
    """

    horizon_seconds: float | None
    stores: Callable[[Reply], bool]
    replay: Callable[[Reply], Reply]
    in_flight: Callable[[Call], Reply]
    mismatch: Callable[[Call], Reply] | None
    scope: Callable[[Call], str] | None = None


class Switch(msgspec.Struct, frozen=True):
    """A fact about the provider that nobody of us has verified: it runs every way. `source` cites PROVIDERS.md."""

    name: str
    values: tuple[str, ...]
    source: str

    @property
    def default(self) -> str:
        """The first value."""
        return self.values[0]


class Endpoint(msgspec.Struct, frozen=True):
    """Where a dialect's webhooks go. More than one secret: each signs (rotation), where the scheme can."""

    url: str
    secrets: tuple[str, ...]


class Dialect(Protocol):
    """One provider."""

    @property
    def name(self) -> str:
        """The prefix of its paths."""

    @property
    def switches(self) -> tuple[Switch, ...]:
        """What of it is unverified."""

    @property
    def retry_gaps_seconds(self) -> tuple[float, ...]:
        """From one delivery attempt to the next; when they are used up the provider gives up."""

    def route(self, request: Request) -> Call | Reply:
        """What is asked for; a Reply (404, 405, 401, bad parameters before the key layer) when it is answered now."""

    def keys(self, books: "Books") -> KeyRule:
        """The rule for keys, as the switches stand."""

    def fault(self, name: str, call: Call) -> Reply:
        """How this provider words a named trouble: refused, rate_limited, lock_timeout, error_500, gateway_502 ...

        A plan's `refused(account_closed)` is "refused:account_closed"; without a code the dialect chooses one.
        Raises KeyError for a trouble this provider does not have.
        """

    def act(self, books: "Books", now: datetime, action: str, object_id: str) -> None:
        """What happens at the provider later, by itself: succeed, fail, book, refuse, return, bounce, reverse, pay.

        Raises KeyError for an action or object this dialect does not have.
        """

    def notification(self, event: bytes, endpoint: Endpoint, sent_at: datetime) -> "Notification":
        """The signed HTTP request for one event, which is JSON as it is stored."""


class Notification(msgspec.Struct, frozen=True):
    """A webhook ready to be posted."""

    headers: tuple[tuple[str, str], ...]
    body: bytes
