"""A new room: a table, a route, a worker and a metric, by its own folder and one line."""

import asyncio
from typing import Any

import pytest

from tallystick import app, rooms
from tallystick.database import migrate
from tallystick.settings import Settings
from tallystick.workers.crew import crew, working
from tests import servers
from tests.http import site as sites
from tests.notes import room

PATIENCE_SECONDS = 60


@pytest.fixture
def dsn(embedded18: servers.Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database as it would be with one more room."""
    monkeypatch.setattr(rooms, "ROOMS", (*rooms.ROOMS, room.ROOM))
    # In the package the folder would be found by itself.
    monkeypatch.setattr(migrate, "FOLDERS", (*migrate.FOLDERS, room.FOLDER / "migrations"))
    dsn = embedded18.empty_database()
    asyncio.run(_migrated(dsn))
    return dsn


async def _migrated(dsn: str) -> None:
    await migrate.migrate(dsn)


def _shown(text: str, name: str) -> list[float]:
    return [float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")]


def test_a_room_is_its_folder_and_one_line(dsn: str) -> None:
    with sites.running(dsn) as site, site.client() as client:
        assert client.post("/v1/notes", json={"text": "milk"}).json() == {"number": 1}
        refused = client.post("/v1/notes", json={"txt": "milk"})
        assert (refused.status_code, refused.json()["code"]) == (400, "field_invalid")
        document: dict[str, Any] = client.get("/openapi.json").json()
        assert document["paths"]["/v1/notes"]["post"]["operationId"] == "add_note"
        text = client.get("/metrics").text
        assert (_shown(text, "notes_waiting"), _shown(text, "notes_counted")) == ([1.0], [0.0])
        asyncio.run(_work(dsn))
    with sites.running(dsn) as site, site.client() as client:
        assert _shown(client.get("/metrics").text, "notes_counted") == [1.0]


async def _work(dsn: str) -> None:
    async with app.running(Settings(database_url=dsn)) as service:
        own = [worker for worker in crew(service) if worker.name == "notes"]
        async with working(own), asyncio.timeout(PATIENCE_SECONDS):
            assert len(own) == 1
            while await _waiting(service):
                await asyncio.sleep(0.01)


async def _waiting(service: app.Service) -> int:
    async with service.database.owning() as connection:
        found: int = await connection.fetchval("SELECT count(*) FROM tally.note WHERE NOT counted")
    return found
