"""Reading Stripe's books: one object, lists with filters and cursors, the delayed search, events.

docs/providers.md 2.1 (envelope, cursors), 2.5 to 2.9 (filters), 2.9 (search is late), 2.11 (events reach 30 days).
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

import msgspec

from tallystick.simulator.books import Books, Entry
from tallystick.simulator.dialect import Reply
from tallystick.simulator.stripe import balance as stripe_balance
from tallystick.simulator.stripe.wire import (
    DIALECT,
    REFERENCE_FIELDS,
    Context,
    Parameters,
    check_names,
    good,
    missing,
    own,
    refuse,
    rendered,
    text,
)

SEARCH_SWITCH: Final = "stripe.search_delay_seconds"
EVENTS_REACH: Final = timedelta(days=30)
MOST: Final = 100
DEFAULT: Final = 10
_CHUNK: Final = 200
_MOST_TYPES: Final = 20
# Eleven digits of seconds reach the year 5138, and every calendar holds it.
_NUMBER: Final = re.compile(r"[0-9]{1,11}")
_MICROSECOND: Final = timedelta(microseconds=1)
_CLAUSE: Final = re.compile(
    r"""(?:metadata\[['"](?P<key>[^'"]+)['"]\]|(?P<field>\w+))\s*:\s*['"]?(?P<value>[^'"]*)['"]?"""
)

Fits = Callable[[Any], bool]


def _own_body(entry: Entry) -> dict[str, Any]:
    return entry.body


def _own_id(_books: Books, id_: str) -> str:
    return id_


def _not_narrowed(_books: Books, _given: Parameters) -> None:
    return None


class Listing(msgspec.Struct, frozen=True):
    """One kind's list: `filters` are compared with the fields of the same name.

    `reference` and `parent` are the filters that the books have an index for.
    """

    kind: str | tuple[str, ...]
    url: str
    filters: tuple[str, ...] = ()
    reference: str = ""
    parent: str = ""
    render: Callable[[Entry], dict[str, Any]] = _own_body
    cursor: Callable[[Books, str], str] = _own_id
    narrowed: Callable[[Books, Parameters], stripe_balance.Narrowed | None] = _not_narrowed


LISTINGS: Final = {
    listing.url: listing
    for listing in (
        Listing("transfer", "/v1/transfers", ("transfer_group", "destination"), "transfer_group", "destination"),
        Listing("payment_intent", "/v1/payment_intents", ("customer",)),
        Listing("charge", "/v1/charges", ("payment_intent", "customer", "transfer_group"), parent="payment_intent"),
        Listing("refund", "/v1/refunds", ("payment_intent", "charge"), parent="payment_intent"),
        Listing("account", "/v1/accounts"),
        Listing("dispute", "/v1/disputes", ("payment_intent", "charge"), parent="payment_intent"),
        Listing("payout", "/v1/payouts", ("status", "destination"), parent="destination"),
        Listing(
            stripe_balance.KINDS,
            "/v1/balance_transactions",
            ("source", "type", "currency"),
            render=stripe_balance.transaction,
            cursor=stripe_balance.entry_id,
            narrowed=stripe_balance.narrowed,
        ),
    )
}
_PAGE: Final = frozenset({"limit", "starting_after", "ending_before", "created"})


def one(books: Books, _now: datetime, *, kind: str, id_: str, context: Context) -> Reply:
    """GET of one object by its id."""
    return good(context, rendered(own(books, kind, id_, context).body))


def many(books: Books, _now: datetime, *, listing: Listing, given: Parameters, context: Context) -> Reply:
    """GET of a list, newest first."""
    check_names(given, _PAGE | frozenset(listing.filters) | {"payout", "arrival_date"}, context)
    wanted = {name: given[name] for name in listing.filters if name in given}
    # docs/providers.md 2.8: only automatic payouts have a list of their content, and the simulator makes none.
    if listing.kind == stripe_balance.KINDS and "payout" in given:
        return good(context, envelope(listing.url, [], more=False))

    def fits(body: dict[str, Any]) -> bool:
        mine = body.get("_account", "") == context.account
        return mine and all(body.get(name) == value for name, value in wanted.items())

    since, until = _created(given.get("created"), context)
    narrowed = listing.narrowed(books, given)
    if narrowed is None:
        narrowed = stripe_balance.Narrowed(listing.kind, given.get(listing.parent))
    if narrowed.at is not None:
        since, until = max(since or narrowed.at, narrowed.at), min(until or narrowed.at, narrowed.at)

    def pages(cursor: str | None, *, newest_first: bool) -> Iterator[Entry]:
        after = None if cursor is None else listing.cursor(books, cursor)
        while True:
            chunk = books.find(
                DIALECT,
                narrowed.kind,
                reference=given.get(listing.reference),
                parent=narrowed.parent,
                since=since,
                until=until,
                after=after,
                limit=_CHUNK,
                newest_first=newest_first,
            )
            yield from chunk
            if len(chunk) < _CHUNK:
                return
            after = chunk[-1].id

    found, more = _page(pages, lambda entry: fits(listing.render(entry)), given, context)
    return good(context, envelope(listing.url, [rendered(listing.render(entry)) for entry in found], more=more))


def transaction(books: Books, _now: datetime, *, id_: str, context: Context) -> Reply:
    """GET /v1/balance_transactions/{id}."""
    try:
        found = stripe_balance.entry_id(books, id_)
    except KeyError:
        missing(context, "balance transaction", id_)
    entries = (books.get(DIALECT, kind, found) for kind in stripe_balance.KINDS)
    body = next(stripe_balance.transaction(entry) for entry in entries if entry is not None)
    if body.get("_account", "") != context.account:
        missing(context, "balance transaction", id_)
    return good(context, rendered(body))


def reversals(books: Books, now: datetime, *, transfer_id: str, given: Parameters, context: Context) -> Reply:
    """GET /v1/transfers/{id}/reversals."""
    own(books, "transfer", transfer_id, context)
    url = f"/v1/transfers/{transfer_id}/reversals"
    listing = Listing("reversal", url, ("transfer",), parent="transfer")
    return many(books, now, listing=listing, given=given | {"transfer": transfer_id}, context=context)


def event(books: Books, now: datetime, *, id_: str, context: Context) -> Reply:
    """GET /v1/events/{id}."""
    found = books.event(DIALECT, id_)
    if found is None or found.created_at < now - EVENTS_REACH or found.body.get("account", "") != context.account:
        missing(context, "event", id_)
    return good(context, found.body)


def events(books: Books, now: datetime, *, given: Parameters, context: Context) -> Reply:
    """GET /v1/events."""
    check_names(given, _PAGE | {"type", "types"}, context)
    types = [given["type"]] if "type" in given else _types(given, context)
    since, until = _created(given.get("created"), context)
    reach = now - EVENTS_REACH
    since = reach if since is None else max(since, reach)

    def pages(after: str | None, *, newest_first: bool) -> Iterator[Any]:
        while True:
            chunk = books.events(
                DIALECT, types=types, since=since, until=until, after=after, limit=_CHUNK, newest_first=newest_first
            )
            yield from chunk
            if len(chunk) < _CHUNK:
                return
            after = chunk[-1].id

    found, more = _page(pages, lambda event: event.body.get("account", "") == context.account, given, context)
    return good(context, envelope("/v1/events", [each.body for each in found], more=more))


def search(books: Books, now: datetime, *, given: Parameters, context: Context) -> Reply:
    """GET /v1/payment_intents/search: what is too new is not found (docs/providers.md 2.9)."""
    check_names(given, frozenset({"query", "limit", "page"}), context)
    clauses = [_CLAUSE.fullmatch(clause.strip()) for clause in re.split(r"\s+AND\s+", text(given, "query", context))]
    if not all(clauses):
        refuse(400, "We were unable to parse your search query.", context, param="query")
    wanted = [(each["key"], each["field"], each["value"]) for each in clauses if each is not None]
    reference = next((value for key, _, value in wanted if key in REFERENCE_FIELDS), None)
    until = now - timedelta(seconds=float(books.switch(SEARCH_SWITCH)))

    def fits(body: dict[str, Any]) -> bool:
        if body.get("_account", "") != context.account:
            return False
        return all(
            (body["metadata"].get(key) if key else str(body.get(field))) == value for key, field, value in wanted
        )

    def pages(after: str | None = None) -> Iterator[Entry]:
        while True:
            chunk = books.find(DIALECT, "payment_intent", reference=reference, until=until, after=after, limit=_CHUNK)
            yield from chunk
            if len(chunk) < _CHUNK:
                return
            after = chunk[-1].id

    limit = _limit(given, context)
    fitting = (rendered(entry.body) for entry in pages() if fits(entry.body))
    found = list(islice(fitting, limit + 1))
    url = "/v1/payment_intents/search"
    result = {"object": "search_result", "data": found[:limit], "has_more": len(found) > limit, "url": url}
    return good(context, result | {"next_page": None})


def envelope(url: str, data: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    return {"object": "list", "data": data, "has_more": more, "url": url}


def _page(
    pages: Callable[..., Iterator[Any]], fits: Fits, given: Parameters, context: Context
) -> tuple[list[Any], bool]:
    limit = _limit(given, context)
    backwards = "ending_before" in given
    name = "ending_before" if backwards else "starting_after"
    found: list[Any] = []
    try:
        # Backwards means the ones right before the cursor, so it is read from there, and turned round.
        for each in pages(given.get(name), newest_first=not backwards):
            if fits(each):
                found.append(each)
            if len(found) > limit:
                break
    except KeyError:
        missing(context, "object", given[name], name, 400)
    page, more = found[:limit], len(found) > limit
    return page[::-1] if backwards else page, more


def _types(given: Parameters, context: Context) -> list[str] | None:
    if "types" not in given:
        return None
    wanted = list(given["types"].values()) if isinstance(given["types"], dict) else []
    if not 1 <= len(wanted) <= _MOST_TYPES or not all(isinstance(each, str) for each in wanted):
        refuse(400, f"Invalid array: up to {_MOST_TYPES} types of events", context, param="types")
    return wanted


def _limit(given: Parameters, context: Context) -> int:
    raw = str(given.get("limit", DEFAULT))
    if not _NUMBER.fullmatch(raw) or not 1 <= int(raw) <= MOST:
        message = f"This value must be between 1 and {MOST}."
        refuse(400, message, context, code="parameter_invalid_integer", param="limit")
    return int(raw)


def _created(given: Any, context: Context) -> tuple[datetime | None, datetime | None]:  # noqa: ANN401
    if given is None:
        return None, None
    bounds = given if isinstance(given, dict) else {"gte": given, "lte": given}
    since = until = None
    for name, raw in bounds.items():
        if name not in {"gt", "gte", "lt", "lte"} or not _NUMBER.fullmatch(str(raw)):
            refuse(400, "Invalid created filter", context, param="created")
        at = datetime.fromtimestamp(int(raw), UTC)
        if name in {"gt", "gte"}:
            since = at + timedelta(seconds=name == "gt")
        else:
            # Stripe's seconds hold all their microseconds.
            until = at + timedelta(seconds=name == "lte") - _MICROSECOND
    return since, until
