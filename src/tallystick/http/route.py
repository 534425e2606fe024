"""A route: what is called, who may call it, what runs, and what its documentation says. All in one place."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick.http.access import Need
from tallystick.http.call import Call, Reply
from tallystick.ledger.outcome import Rejected

Endpoint = Callable[[Call], Awaitable[Reply | Rejected]]
Schema = Mapping[str, Any]

_BODY_PROBLEMS = (
    "json_invalid",
    "json_field_repeated",
    "body_incomplete",
    "field_invalid",
    "body_too_large",
    "content_type_unsupported",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A part of the path, of the query, or a header."""

    name: str
    place: str
    description: str
    schema: Schema
    required: bool = False
    example: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A good answer. `types` are the msgspec types it may have; none for what is not JSON."""

    description: str
    types: tuple[Any, ...] = ()
    example: object = None
    media_type: str = "application/json"
    headers: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    endpoint: Endpoint
    name: str
    group: str
    summary: str
    description: str
    answers: Mapping[int, Answer]
    need: Need = Need.NOTHING
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    body_examples: Mapping[str, object] = field(default_factory=dict)
    own_problems: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Every code this call may answer with: its own, and those that any call of its sort shares."""
        codes = [*self.own_problems]
        if any(parameter.place == "query" for parameter in self.parameters) or self.body is None:
            codes.append("query_invalid")
        if self.body is not None:
            codes.extend(_BODY_PROBLEMS)
        if self.need is not Need.NOTHING:
            codes.extend(("unauthenticated", "too_many_guesses", "rate_exceeded", "share_used", "database_unreachable"))
        if self.need not in (Need.NOTHING, Need.READ):
            codes.append("forbidden")
        codes.append("internal_error")
        return tuple(dict.fromkeys(codes))
