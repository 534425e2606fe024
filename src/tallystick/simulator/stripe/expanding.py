"""`expand[]`: ids in a reply become the objects they name, as deep as Stripe goes (four levels).

What is expanded is what the caller could fetch by its id; an id of nothing stays an id.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tallystick.simulator.books import Books
from tallystick.simulator.dialect import Reply
from tallystick.simulator.stripe import balance as stripe_balance
from tallystick.simulator.stripe.wire import DIALECT, Context, Parameters, refuse, rendered

_DEEPEST: Final = 4
_OK: Final = 200
_KINDS: Final = {
    "pi": "payment_intent",
    "ch": "charge",
    "re": "refund",
    "tr": "transfer",
    "po": "payout",
    "acct": "account",
    "dp": "dispute",
}


def paths(given: Parameters, context: Context) -> tuple[tuple[str, ...], ...]:
    """What is to be expanded. Raises Refusal."""
    asked = given.get("expand") or {}
    if not isinstance(asked, dict) or not all(isinstance(path, str) and path for path in asked.values()):
        refuse(400, "Invalid array", context, param="expand")
    found = tuple(tuple(path.split(".")) for path in asked.values())
    for path in found:
        if len(path) > _DEEPEST:
            message = f"You cannot expand more than {_DEEPEST} levels of a property ({'.'.join(path)})."
            refuse(400, message, context, param="expand")
    return found


def expanded(reply: Reply, wanted: Sequence[tuple[str, ...]], books: Books, context: Context) -> Reply:
    """The reply with these properties expanded. Raises Refusal for one that cannot be."""
    if reply.status != _OK:
        return reply
    body: dict[str, Any] = msgspec.json.decode(reply.body)
    for path in wanted:
        _expand(body, path, ".".join(path), books, context)
    return msgspec.structs.replace(reply, body=msgspec.json.encode(body))


def _expand(inside: Any, path: tuple[str, ...], name: str, books: Books, context: Context) -> None:  # noqa: ANN401 - JSON
    if isinstance(inside, list):
        for one in inside:
            _expand(one, path, name, books, context)
        return
    first, *rest = path
    if not isinstance(inside, dict) or first not in inside:
        refuse(400, f"This property cannot be expanded ({name}).", context, param="expand")
    value = inside[first]
    if isinstance(value, str):
        found = _object(value, books, context)
        if found is None:
            refuse(400, f"This property cannot be expanded ({name}).", context, param="expand")
        inside[first] = value = found
    elif value is not None and not rest and not isinstance(value, dict):
        refuse(400, f"This property cannot be expanded ({name}).", context, param="expand")
    if rest and value is not None:
        _expand(value, tuple(rest), name, books, context)


def _object(id_: str, books: Books, context: Context) -> dict[str, Any] | None:
    prefix = id_.partition("_")[0]
    if prefix == "txn":
        try:
            entry_id = stripe_balance.entry_id(books, id_)
        except KeyError:
            return None
        entry = books.get(DIALECT, stripe_balance.KIND, entry_id) or books.get(DIALECT, "transfer", entry_id)
        return None if entry is None else rendered(stripe_balance.transaction(entry))
    entry = books.get(DIALECT, _KINDS.get(prefix, ""), id_)
    if entry is None or entry.body.get("_account", "") != context.account:
        return None
    return rendered(entry.body)
