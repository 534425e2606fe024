"""Who may come in, as it is given to the whole."""

from tallystick.access.cli import keys
from tallystick.room import Room

ROOM = Room(name="access", commands=(keys,))
