"""A room that only tests have: what a new noun takes is this folder and one line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tallystick import queries
from tallystick.app import Service
from tallystick.database.pool import Database
from tallystick.http.access import Need
from tallystick.http.call import Call, Reply, json_reply
from tallystick.http.reading import read
from tallystick.http.route import Answer, Route
from tallystick.ledger.outcome import Rejected
from tallystick.room import Figures, Room
from tallystick.workers.worker import Loop

FOLDER: Final = Path(__file__).parent
_SQL: Final = queries.read((FOLDER / "store.sql").read_text(encoding="utf-8"))


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What somebody wants to keep."""

    text: str


class Noted(msgspec.Struct, frozen=True):
    """It is kept."""

    number: int


class NoteFigures(msgspec.Struct, frozen=True):
    """How many were counted, and how many wait."""

    counted: int = 0
    waiting: int = 0
    is_current: bool = False


class NoteCounts(Collector):
    """The database's."""

    def __init__(self) -> None:
        self.figures = NoteFigures()

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("notes_counted", "Notes that were counted.", value=self.figures.counted)
        yield GaugeMetricFamily("notes_waiting", "Notes that wait.", value=self.figures.waiting)


class NoteWorker(Loop[int]):
    """Counts notes."""

    name = "notes"
    interrupted = "notes_interrupted"
    stopped = "notes_stopped"

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    async def run_once(self) -> int:
        async with self._database.stepping() as connection:
            return len(await connection.fetch(_SQL["count"]))

    def after(self, done: int) -> float:
        return 0.0 if done else 0.05


def _routes(service: Service) -> Iterator[Route]:
    decode = msgspec.json.Decoder(Note).decode

    async def add(call: Call) -> Reply | Rejected:
        body = await call.body()
        if isinstance(body, Rejected):
            return body
        note = read(decode, body)
        if isinstance(note, Rejected):
            return note
        async with service.database.stepping() as connection:
            number = await connection.fetchval(_SQL["add"], call.access.tenant.number, note.text)
        return json_reply(201, Noted(number))

    yield Route(
        method="POST",
        path="/v1/notes",
        endpoint=add,
        name="add_note",
        group="Notes",
        summary="Keep a note",
        description="Kept until somebody counts it.",
        need=Need.WRITE,
        body=Note,
        body_examples={"A note": Note("milk")},
        answers={201: Answer(description="It is kept.", types=(Noted,), example=Noted(1))},
    )


def _figures(service: Service) -> Iterator[Figures[NoteFigures]]:
    async def ask(_last: NoteFigures) -> NoteFigures:
        async with service.database.owning() as connection:
            ((counted, waiting),) = await connection.fetch(_SQL["figures"])
        return NoteFigures(counted, waiting, is_current=True)

    yield Figures(NoteCounts(), NoteFigures(), ask, "note_figures_unread")


ROOM: Final = Room(
    name="notes",
    routes=lambda service, _metrics: _routes(service),
    figures=_figures,
    workers=lambda service: [NoteWorker(service.database)],
)
