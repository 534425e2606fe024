"""One run of one side: `python -m bench.side NAME DSN SECONDS SEED`, answered in JSON.

Each run has a process of its own. DBOS needs one, and nobody is measured where another has left his threads.
"""

import gc
import importlib
import sys
from typing import Protocol

import msgspec

from bench.load import Driven
from tallystick.bench.ledger import ACCOUNTS
from tallystick.cli.running import run

# As in `tally bench`: most objects live for one operation, and the collector would be measured.
_COLLECT_EVERY = 50_000


class Side(Protocol):
    """What each `peer_` module is."""

    BOOKS: str
    """A query for the sum of all balances, the number of entries and the number of operations."""

    async def prepare(self, dsn: str, accounts: list[str]) -> None:
        """Make tables and accounts. Not measured."""

    async def run(self, dsn: str, accounts: list[str], *, seconds: float, seed: int) -> Driven:
        """Drive the load and check each answer."""


def find(name: str) -> Side:
    """The side of that name, imported only when it is asked for: DBOS is not everywhere."""
    side: Side = importlib.import_module(f"bench.peer_{name}")
    return side


def accounts() -> list[str]:
    """The names all sides use, as `ground.make_accounts` makes them."""
    return [f"acct:{number}" for number in range(ACCOUNTS)]


def main(name: str, dsn: str, seconds: str, seed: str) -> None:
    """Run, and print what was driven."""
    gc.set_threshold(_COLLECT_EVERY)
    driven = run(find(name).run(dsn, accounts(), seconds=float(seconds), seed=int(seed)))
    sys.stdout.buffer.write(msgspec.json.encode(driven))


if __name__ == "__main__":
    main(*sys.argv[1:])
