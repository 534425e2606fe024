"""Square: takes payments and gives them back. It cannot pay third parties, and its payouts can only be read."""

from tallystick.providers.square.account import SquareAccount
from tallystick.providers.square.adapter import Square

__all__ = ["Square", "SquareAccount"]
