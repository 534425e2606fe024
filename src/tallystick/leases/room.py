"""Leases, as they are given to the whole."""

from collections.abc import Iterator

from tallystick import app
from tallystick.app import Service
from tallystick.room import Room
from tallystick.settings import LIMITS
from tallystick.workers.worker import Periodic, Worker


def _workers(service: Service) -> Iterator[Worker]:
    yield Periodic("timekeeper", app.timekeeper(service).run_once, every_seconds=LIMITS.timekeeping_seconds)


ROOM = Room(name="leases", workers=_workers)
