"""Accounts over HTTP: make, read now or at a moment, list, and their entries."""

from datetime import UTC, datetime

import msgspec

from tallystick.app import Service
from tallystick.errors import OutcomeUnknown, Unreachable
from tallystick.http.call import Call, Reply, json_reply
from tallystick.http.query import numbered_cursor, page_size, query_refused
from tallystick.http.reading import read
from tallystick.ledger.account import store as account
from tallystick.ledger.account.store import EntryView, Put
from tallystick.ledger.kinds import account_fault
from tallystick.ledger.outcome import Rejected
from tallystick.ledger.velocity import VelocityLimit


class AccountRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An account as it shall be. `floor_micros` null: it may go below zero without bound."""

    currency: str
    floor_micros: int | None = 0
    limits: tuple[VelocityLimit, ...] = ()


class PastBalance(msgspec.Struct, frozen=True):
    """The balance and the number of entries of an account at the end of a moment."""

    id: str
    currency: str
    at: datetime
    balance_micros: int
    entries: int


class ListedAccount(msgspec.Struct, frozen=True):
    """An account in a list; its velocity limits are shown where it is read alone."""

    id: str
    currency: str
    floor_micros: int | None
    balance_micros: int
    entries: int
    created_at: datetime


class AccountPage(msgspec.Struct, frozen=True):
    """Accounts by id. `next` is the cursor of the following page; null: there is none."""

    accounts: list[ListedAccount]
    next: str | None


class EntryPage(msgspec.Struct, frozen=True):
    """Entries, newest first. `next` is the cursor of the following page; null: there is none."""

    entries: list[EntryView]
    next: str | None


class Accounts:
    """The endpoints of accounts."""

    def __init__(self, service: Service) -> None:
        """Reads go to the database, as the caller's tenant."""
        self._database = service.database
        self._decode = msgspec.json.Decoder(AccountRequest).decode

    async def put(self, call: Call) -> Reply | Rejected:
        """Make the account or change its floor and limits."""
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        asked = read(self._decode, body)
        if isinstance(asked, Rejected):
            return asked
        name, tenant = call.path("id"), call.access.tenant
        done = await account.put(
            self._database,
            tenant,
            name,
            currency=asked.currency,
            floor_micros=asked.floor_micros,
            limits=asked.limits,
            may_bound=call.access.role == "admin",
        )
        if isinstance(done, Rejected):
            return done
        try:
            now = await account.read(self._database, tenant, name)
        except Unreachable as error:
            # It is made; only the look at it failed.
            raise OutcomeUnknown from error
        return now if isinstance(now, Rejected) else json_reply(201 if done is Put.CREATED else 200, now)

    async def read(self, call: Call) -> Reply | Rejected:
        """The account now, or its balance at a moment."""
        query = call.query("at")
        if isinstance(query, Rejected):
            return query
        moment = _moment(query["at"]) if "at" in query else None
        if isinstance(moment, Rejected):
            return moment
        name, tenant = call.path("id"), call.access.tenant
        fault = account_fault(name)
        if fault is not None:
            return fault
        now = await account.read(self._database, tenant, name)
        if isinstance(now, Rejected):
            return now
        if moment is None:
            return json_reply(200, now)
        then = await account.balance_at(self._database, tenant, name, moment)
        if isinstance(then, Rejected):
            return then
        balance, entries = then
        return json_reply(200, PastBalance(name, now.currency, moment, balance, entries))

    async def list(self, call: Call) -> Reply | Rejected:
        """A page of the tenant's accounts."""
        query = call.query("cursor", "limit")
        if isinstance(query, Rejected):
            return query
        most = page_size(query)
        if isinstance(most, Rejected):
            return most
        after = query.get("cursor", "")
        if "cursor" in query and account_fault(after) is not None:
            return query_refused("cursor", "Use the `next` of the page before.")
        found = await account.list_accounts(self._database, call.access.tenant, after=after, most=most + 1)
        page = [
            ListedAccount(a.id, a.currency, a.floor_micros, a.balance_micros, a.entries, a.created_at)
            for a in found[:most]
        ]
        return json_reply(200, AccountPage(page, page[-1].id if len(found) > most else None))

    async def entries(self, call: Call) -> Reply | Rejected:
        """A page of an account's entries."""
        query = call.query("cursor", "limit")
        if isinstance(query, Rejected):
            return query
        most = page_size(query)
        if isinstance(most, Rejected):
            return most
        before = numbered_cursor(query)
        if isinstance(before, Rejected):
            return before
        name = call.path("id")
        fault = account_fault(name)
        if fault is not None:
            return fault
        found = await account.list_entries(self._database, call.access.tenant, name, before=before, most=most + 1)
        if isinstance(found, Rejected):
            return found
        page = found[:most]
        return json_reply(200, EntryPage(page, str(page[-1].number) if len(found) > most else None))


def _moment(text: str) -> datetime | Rejected:
    """An RFC 3339 time. One without a zone is refused: it would mean another moment in another place."""
    try:
        moment = msgspec.convert(text, datetime)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (msgspec.ValidationError, OverflowError):
        pass
    return query_refused("at", "Send an RFC 3339 time with its zone, such as 2026-01-31T12:00:00Z.")
