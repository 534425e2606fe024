"""The whole service as its callers meet it: the HTTP API on a real database, called without a socket."""

import json
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tallystick import app
from tallystick.access import store as tenants
from tallystick.app import Service
from tallystick.http import api
from tallystick.ledger.claims import Tenant
from tallystick.probes.ground import open_clearing
from tallystick.settings import Settings


class Answer(msgspec.Struct, frozen=True):
    """What the API said."""

    status: int
    body: Any

    @property
    def is_good(self) -> bool:
        """It did, or showed, something."""
        return self.status < 400  # noqa: PLR2004 - where refusals begin


class Shop:
    """A running service, and a key of each role for each tenant."""

    def __init__(self, service: Service) -> None:
        """Use `opened`."""
        self.service = service
        self._api = api.build(service)
        self._keys: dict[tuple[str, str], str] = {}
        self._calls = 0

    async def tenant(self, name: str, *, pays: bool = True) -> Tenant:
        """The tenant, with a key for each role. Not `pays`: it has no account, and nothing that could be shown."""
        made = await tenants.ensure_tenant(self.service.database, name)
        for role in tenants.ROLES:
            self._keys[name, role] = tenants.new_key()
            await tenants.add_key(self.service.database, made, role, self._keys[name, role], owner=role)
        if pays:
            await open_clearing(self.service.database, made)
        return made

    async def call(
        self,
        tenant: str,
        method: str,
        path: str,
        body: object = None,
        *,
        role: str = "operator",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request with that tenant's key. A new Idempotency-Key, unless the headers have one."""
        self._calls += 1
        content = b"" if body is None else json.dumps(body).encode()
        sent = {
            "authorization": f"Bearer {self._keys[tenant, role]}",
            "content-type": "application/json",
            "content-length": str(len(content)),
            "idempotency-key": f"call-{self._calls}",
            **(headers or {}),
        }
        route, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": route,
            "raw_path": route.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        }
        status, said = 0, b""

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status, said
            status = message.get("status", status)
            said += message.get("body", b"")

        await self._api(scope, receive, send)
        return Answer(status, json.loads(said) if said else None)


@asynccontextmanager
async def opened(dsn: str, url: str) -> AsyncIterator[Shop]:
    """Run it on that database, with the simulator at `url` as its provider."""
    async with app.running(Settings(database_url=dsn), simulator_url=url) as service:
        yield Shop(service)
