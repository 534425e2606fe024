"""Reconciliation, as it is given to the whole."""

from tallystick.reconciliation.break_cli import breaks
from tallystick.reconciliation.cli import reconcile
from tallystick.room import Room

ROOM = Room(name="reconciliation", commands=(reconcile, breaks))
