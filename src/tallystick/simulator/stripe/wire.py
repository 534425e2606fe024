"""Stripe's wire: form-encoded parameters in, JSON and its error envelope out (docs/providers.md 2.1, 2.4, 8)."""

import itertools
import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NoReturn
from urllib.parse import unquote_plus

import msgspec

from tallystick.simulator import amounts
from tallystick.simulator.books import Books, Entry
from tallystick.simulator.dialect import NOT_SIMULATED, Reply, Request

DIALECT: Final = "stripe"
API_VERSION: Final = "2026-10-28.endive"
JSON: Final = ("content-type", "application/json")
# docs/providers.md 1, Our own reference.
MOST_METADATA: Final = 50
LONGEST_METADATA_KEY: Final = 40
LONGEST_METADATA_VALUE: Final = 500
# Digits: twelve are more than any real movement, and still exact in every reader of JSON.
LARGEST_AMOUNT: Final = 999_999_999_999
# docs/providers.md 2.9: where a client puts its own id.
REFERENCE_FIELDS: Final = ("tally_key", "ref", "reference")
_ENCODE: Final = msgspec.json.Encoder().encode
# The reference is in the bodies of books that are older.
_KEPT: Final = frozenset({"_account", "_reference"})
_PART: Final = re.compile(r"[^\[\]]+")
# Parameters that are a hash or a list; every other one is a plain value.
_NESTED: Final = frozenset(
    [
        "arrival_date",
        "automatic_payment_methods",
        "created",
        "expand",
        "metadata",
        "off_session",
        "payment_method_data",
        "payment_method_options",
        "payment_method_types",
        "shipping",
        "transfer_data",
        "types",
    ]
)
_BOOLEANS: Final = frozenset({"confirm", "error_on_requires_action", "refund_application_fee", "reverse_transfer"})

Parameters = dict[str, Any]


class Refusal(Exception):
    """The request ends with this reply. Raised by whoever sees the reason, caught where the call is answered."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Context(msgspec.Struct, frozen=True):
    """Who asks: `account` is the connected account the call is made for, "" for the platform itself.

    What Stripe does by itself has no request id and no key.
    """

    request_id: str
    key: str | None
    account: str


# Unlike any of another run, and counted on: asking the kernel for chance with every call cost a twentieth of it.
_RUN: Final = secrets.token_hex(4)
_REQUESTS: Final = itertools.count(1)


def new_request_id() -> str:
    return f"req_{_RUN}{next(_REQUESTS):06x}"


def context(request: Request) -> Context:
    key = request.headers.get("idempotency-key") if request.method == "POST" else None
    return Context(new_request_id(), key or None, request.headers.get("stripe-account", ""))


def good(context: Context, body: Mapping[str, Any]) -> Reply:
    """200 with the object."""
    return good_json(context, _ENCODE(body))


def good_json(context: Context, body: bytes) -> Reply:
    """200 with the object, which is JSON already."""
    return Reply(200, body, headers(context))


def headers(context: Context) -> tuple[tuple[str, str], ...]:
    own = (JSON, ("request-id", context.request_id), ("stripe-version", API_VERSION))
    return own if context.key is None else (*own, ("idempotency-key", context.key))


def problem(
    status: int,
    message: str,
    *,
    context: Context | None = None,
    type: str = "invalid_request_error",  # noqa: A002  Stripe's word
    **fields: Any,  # noqa: ANN401  code, param, decline_code, payment_intent ...
) -> Reply:
    """The error envelope."""
    who = context or Context(new_request_id(), None, "")
    return Reply(status, _ENCODE({"error": {"message": message, "type": type, **fields}}), headers(who))


def refuse(status: int, message: str, context: Context, **fields: Any) -> NoReturn:  # noqa: ANN401
    raise Refusal(problem(status, message, context=context, **fields))


def missing(context: Context, what: str, id_: str, param: str = "id", status: int = 404) -> NoReturn:
    refuse(status, f"No such {what}: '{id_}'", context, code="resource_missing", param=param)


def parameters(request: Request) -> Parameters:
    """The body or the query, nested: `metadata[order]=7`, `expand[0]=data`, `created[gte]=1`."""
    found: Parameters = {}
    if request.method == "POST":
        for pair in request.body.decode("utf-8", "replace").split("&"):
            name, _, value = pair.partition("=")
            if name:
                _put(found, _plain(name), _plain(value))
    else:
        for name, values in request.query.items():
            for value in values:
                _put(found, name, value)
    return found


def _put(found: Parameters, name: str, value: str) -> None:
    outer, last = _place(name) if len(name) <= _LONGEST_KNOWN else _place.__wrapped__(name)
    if not outer:
        found[last] = value
        return
    inner = found
    for part in outer:
        deeper = inner.setdefault(part, {})
        inner = deeper if isinstance(deeper, dict) else {}
    inner[str(len(inner)) if last == "[]" else last] = value


# The same few names come with every call. A long one is nobody's, may be as long as a body, and is not kept.
_LONGEST_KNOWN: Final = 100


@lru_cache(maxsize=256)
def _place(name: str) -> tuple[tuple[str, ...], str]:
    """The hashes a parameter lies in, from the outermost, and its name there; `[]`: the next of a list."""
    parts = _PART.findall(name)
    if "[" not in name or not parts:
        return (), name
    *outer, last = parts + (["[]"] if name.endswith("[]") else [])
    return tuple(outer), last


def _plain(quoted: str) -> str:
    return unquote_plus(quoted) if "%" in quoted or "+" in quoted else quoted


# Known to Stripe, and not simulated. To take and ignore them would show money where at Stripe it is not.
_NOT_SIMULATED: Final = frozenset(
    {
        "application_fee_amount",
        "on_behalf_of",
        "refund_application_fee",
        "reverse_transfer",
        "setup_future_usage",
        "transfer_data",
    }
)


def check_names(given: Parameters, known: frozenset[str], context: Context) -> None:
    for name, value in given.items():
        if name in known & _NOT_SIMULATED and value != "false":
            refuse(400, f"{name}: {NOT_SIMULATED}", context, param=name)
        if name not in known and name != "expand":
            refuse(400, f"Received unknown parameter: {name}", context, code="parameter_unknown", param=name)
        if not isinstance(value, str) and name not in _NESTED:
            refuse(400, "Invalid string", context, param=name)
        if name in _BOOLEANS and value not in {"true", "false"}:
            refuse(400, f"Invalid boolean: {value[:60]}", context, param=name)


def check_choice(given: Parameters, name: str, choices: Iterable[str], context: Context) -> None:
    if name in given and given[name] not in choices:
        refuse(400, f"Invalid {name}: must be one of {', '.join(sorted(choices))}", context, param=name)


def text(given: Parameters, name: str, context: Context) -> str:
    """A parameter that must be there."""
    value = given.get(name)
    if value is None:
        refuse(400, f"Missing required param: {name}.", context, code="parameter_missing", param=name)
    if not isinstance(value, str) or not value:
        message = f"You passed an empty string for '{name}'."
        refuse(400, message, context, code="parameter_invalid_empty", param=name)
    return value


def amount(given: Parameters, context: Context, *, currency: str, payout: bool = False) -> int:
    """A positive integer that Stripe can write in this currency (docs/providers.md 2.12)."""
    raw = text(given, "amount", context)
    if not re.fullmatch(r"-?[0-9]{1,40}", raw):
        refuse(400, f"Invalid integer: {raw[:60]}", context, code="parameter_invalid_integer", param="amount")
    value = int(raw)
    if value < 1:
        message = "This value must be greater than or equal to 1."
        refuse(400, message, context, code="parameter_invalid_integer", param="amount")
    if value > LARGEST_AMOUNT:
        message = f"Amount must be no more than {LARGEST_AMOUNT}."
        refuse(400, message, context, code="amount_too_large", param="amount")
    step = amounts.step(DIALECT, currency.upper(), payout=payout)
    if value % step:
        message = f"Invalid amount: in {currency} it must be divisible by {step}."
        refuse(400, message, context, code="parameter_invalid_integer", param="amount")
    return value


def currency(given: Parameters, context: Context) -> str:
    code = text(given, "currency", context).lower()
    if not amounts.is_currency(code.upper()):
        refuse(400, f"Invalid currency: {code[:60]}", context, param="currency")
    return code


def metadata(given: Parameters, context: Context) -> dict[str, str]:
    found = given.get("metadata") or {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        refuse(400, "Invalid hash", context, code="parameter_invalid_empty", param="metadata")
    too_long = (len(key) > LONGEST_METADATA_KEY or len(value) > LONGEST_METADATA_VALUE for key, value in found.items())
    if len(found) > MOST_METADATA or any(too_long):
        limits = f"{MOST_METADATA} keys of {LONGEST_METADATA_KEY} with values of {LONGEST_METADATA_VALUE} characters"
        refuse(400, f"Metadata can have {limits}.", context, param="metadata")
    return found


def reference(found: Mapping[str, str]) -> str:
    return next((found[name] for name in REFERENCE_FIELDS if found.get(name)), "")


def unix(at: datetime) -> int:
    return int(at.timestamp())


def rendered(body: dict[str, Any]) -> dict[str, Any]:
    """Without what the simulator keeps for itself beside the provider's fields."""
    if _KEPT.isdisjoint(body):
        return body
    return {name: value for name, value in body.items() if name not in _KEPT}


def own(books: Books, kind: str, id_: str, context: Context, param: str = "id") -> Entry:
    """The caller's object. What belongs to another account is not there for him."""
    entry = books.get(DIALECT, kind, id_)
    if entry is None or entry.body.get("_account", "") != context.account:
        missing(context, kind, id_, param)
    return entry


def by_itself(body: Mapping[str, Any]) -> Context:
    """The context of what happens to this object later."""
    return Context("", None, body.get("_account", ""))


def owned(context: Context) -> dict[str, str]:
    """What marks an object of a connected account."""
    return {"_account": context.account} if context.account else {}


def shown(body: dict[str, Any], stored: bytes) -> bytes:
    """The object as its owner sees it, JSON. `stored` is all of it, JSON: mostly the same."""
    return stored if _KEPT.isdisjoint(body) else _ENCODE(rendered(body))


def emit(
    books: Books,
    now: datetime,
    type: str,  # noqa: A002  Stripe's word
    body: dict[str, Any],
    context: Context,
    *,
    snapshot: bytes | None = None,
) -> None:
    """An Event with a snapshot of the object, and the key that caused it (docs/providers.md 2.9, 2.10).

    Whoever has rendered the object (`shown`) passes that, and it is not done again.
    """
    event = {
        "id": books.next_id("evt_"),
        "object": "event",
        "api_version": API_VERSION,
        "created": unix(now),
        "data": {"object": rendered(body) if snapshot is None else msgspec.Raw(snapshot)},
        "livemode": False,
        "pending_webhooks": 0 if books.endpoint(DIALECT) is None else 1,
        "request": {
            "id": context.request_id or None,
            "idempotency_key": context.key,
        },
        "type": type,
    }
    if body.get("_account"):
        event["account"] = body["_account"]
    books.emit(DIALECT, type, event, now, body["id"])
