"""Recovery, as it is given to the whole."""

from collections.abc import Iterator

from tallystick.app import Service
from tallystick.recovery.cli import recover
from tallystick.recovery.reading import Reader
from tallystick.room import Room
from tallystick.settings import LIMITS
from tallystick.workers.worker import Periodic, Worker


def _workers(service: Service) -> Iterator[Worker]:
    reader = Reader(service.database, service.providers)
    yield Periodic("readings", reader.run_once, every_seconds=LIMITS.reading_pause_seconds)


ROOM = Room(name="recovery", workers=_workers, commands=(recover,))
