"""Authority over HTTP: the tenant's policy, and the destinations that were made known."""

from typing import Annotated

import msgspec

from tallystick.app import Service
from tallystick.authority import store as authority
from tallystick.authority.rules import Policy
from tallystick.authority.store import DestinationView
from tallystick.http.call import Call, Reply, json_reply
from tallystick.http.query import numbered_cursor, page_size
from tallystick.http.reading import read
from tallystick.ledger.outcome import Rejected

ProviderName = Annotated[str, msgspec.Meta(pattern="^[a-z0-9_-]{1,40}$")]


class DestinationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A destination, as settlements name it. `known` false withdraws it.

    Without `provider` it is that of the setting TALLY_PROVIDER.
    """

    destination: str
    provider: ProviderName | None = None
    known: bool = True


class DestinationPage(msgspec.Struct, frozen=True):
    """Destinations, newest first. `next` is the cursor of the following page; null: there is none."""

    destinations: list[DestinationView]
    next: str | None


class Authority:
    """The endpoints of the authority policy and of destinations."""

    def __init__(self, service: Service) -> None:
        """Reads go to the database, as the caller's tenant."""
        self._database = service.database
        self._provider = service.settings.provider
        self._decode = msgspec.json.Decoder(Policy).decode
        self._decode_destination = msgspec.json.Decoder(DestinationRequest).decode

    async def policy(self, call: Call) -> Reply | Rejected:
        """The tenant's."""
        query = call.query()
        if isinstance(query, Rejected):
            return query
        return json_reply(200, await authority.read(self._database, call.access.tenant))

    async def put_policy(self, call: Call) -> Reply | Rejected:
        """Replace it, for payouts that are promised from now on."""
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        asked = read(self._decode, body)
        if isinstance(asked, Rejected):
            return asked
        refusal = await authority.put(self._database, call.access.tenant, asked, by=call.access.author)
        if refusal is not None:
            return refusal
        return json_reply(200, await authority.read(self._database, call.access.tenant))

    async def list(self, call: Call) -> Reply | Rejected:
        """A page of the tenant's destinations."""
        query = call.query("cursor", "limit")
        if isinstance(query, Rejected):
            return query
        most, before = page_size(query), numbered_cursor(query)
        if isinstance(most, Rejected):
            return most
        if isinstance(before, Rejected):
            return before
        page, following = await authority.list_destinations(
            self._database, call.access.tenant, before=before, most=most
        )
        return json_reply(200, DestinationPage(page, None if following is None else str(following)))

    async def put(self, call: Call) -> Reply | Rejected:
        """Make one known, or withdraw it."""
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        asked = read(self._decode_destination, body)
        if isinstance(asked, Rejected):
            return asked
        stored = await authority.put_destination(
            self._database,
            call.access.tenant,
            self._provider if asked.provider is None else asked.provider,
            asked.destination,
            is_known=asked.known,
            by=call.access.author,
        )
        return stored if isinstance(stored, Rejected) else json_reply(200, stored)
