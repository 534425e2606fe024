"""A process of its own that wants lamps.

python -m tests.checkout.order.buyer DSN NAME ATTEMPTS

Tries under keys NAME-0, NAME-1 ... as soon as a line comes in; prints the ids it was given, one per line.
"""

import asyncio
import sys

from tallystick.ledger.outcome import Rejected
from tests.orders import store


async def main(dsn: str, name: str, attempts: int) -> None:
    async with store(dsn) as shop:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        answers = await asyncio.gather(*(shop.reserve(f"{name}-{number}") for number in range(attempts)))
        for answer in answers:
            if isinstance(answer, Rejected):
                assert answer.code == "sold_out", answer
            else:
                print(answer.view.id, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
