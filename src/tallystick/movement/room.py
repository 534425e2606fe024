"""The way out to providers, as it is given to the whole."""

from tallystick.movement.metrics import ProviderCounts
from tallystick.room import Room

ROOM = Room(name="movement", counts=lambda service: [ProviderCounts(service.sender)])
