"""A process under load, to be killed: submits transfers and writes down every key that was acknowledged.

python -m tests.faults.load DSN FILE
"""

import asyncio
import sys
from pathlib import Path

from tallystick.errors import TallystickError
from tallystick.ledger.kinds import Transfer
from tallystick.ledger.outcome import Committed, Duplicate, Outcome
from tallystick.settings import Limits
from tests.ledgers import Ledger, ledger

CALLERS = 100
ACCOUNTS = 20


def transfer(number: int) -> Transfer:
    """The operation that belongs to a key; the same in every process."""
    there, back = f"n{number % ACCOUNTS}", f"n{(number * 7 + 1) % ACCOUNTS}"
    if there == back:
        back = "world"
    return Transfer(debit=there, credit=back, amount_micros=1 + number % 9, currency="USD")


async def prepare(one: Ledger) -> None:
    for number in range(ACCOUNTS):
        await one.account(f"n{number}", floor=None)
    await one.account("world", floor=None)


async def submit_until_known(one: Ledger, number: int) -> Outcome:
    """As a good client does: whatever went wrong, the same request with the same key again."""
    while True:
        try:
            return await one.submit(transfer(number), f"load-{number}")  # type: ignore[no-any-return]
        except TallystickError:
            await asyncio.sleep(0.05)


async def main(dsn: str, path: Path, first: int) -> None:
    numbers = iter(range(first, 10**9))
    with path.open("a", buffering=1) as acknowledged:
        async with ledger(dsn, limits=Limits(outage_seconds=1.0)) as one:

            async def caller() -> None:
                for number in numbers:
                    outcome = await submit_until_known(one, number)
                    if isinstance(outcome, Committed | Duplicate):
                        acknowledged.write(f"{number}\n")

            await asyncio.gather(*(caller() for _ in range(CALLERS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
