"""A process of its own whose buyer clicks.

python -m tests.checkout.payment.payer DSN SIMULATOR ORDER TOKEN CLICKS

Clicks so often at once as soon as a line comes in, and again until the payment is known; prints each answer on a line.
"""

import asyncio
import os
import sys

from tallystick.checkout.payment.rules import Paying, PaymentPending
from tests.payments import age, checkout, new_key
from tests.planted.bugs import BUGS
from tests.providers.worlds import Control

MOST_ROUNDS = 20


async def main(dsn: str, simulator: str, order: str, token: str, *, clicks: int) -> None:
    async with checkout(dsn, Control(simulator)) as shop:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

        async def click() -> Paying:
            key = new_key()
            for _ in range(MOST_ROUNDS):
                answer = await shop.payments.pay(shop.tenant, order, token, idempotency_key=key)
                if isinstance(answer, Paying):
                    return answer
                assert isinstance(answer, PaymentPending), answer
                # As if the buyer had waited: what was unknown may be asked about.
                await age(dsn)
            raise AssertionError("still pending")

        for answer in await asyncio.gather(*(click() for _ in range(clicks))):
            secret = answer.client_secret
            print(answer.payment.payment_intent_id, secret and secret.reveal(), answer.payment.attempts, flush=True)


if __name__ == "__main__":
    if planted := os.environ.get("TALLY_TEST_PLANT"):
        BUGS[planted].plant()
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], clicks=int(sys.argv[5])))
