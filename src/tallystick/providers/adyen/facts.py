"""What is so about Adyen, each value with its source in docs/providers.md."""

from datetime import timedelta
from typing import Final

from tallystick.providers.adyen.currencies import WIRE
from tallystick.providers.words import Facts, Lookup

FACTS: Final = Facts(
    name="adyen",
    wire=WIRE,
    key_form="hex64",
    # 3, Idempotency: 64 characters, at least 7 days from the first submission.
    key_characters=64,
    key_horizon=timedelta(days=7),
    # Ours: queues and clocks of both sides, with room.
    key_margin=timedelta(hours=12),
    horizon_is_published=True,
    lookup={
        # 3, Payment look-up: Checkout has no GET for payments, and none for refunds.
        "charge": Lookup.NONE,
        "refund": Lookup.NONE,
        # 3, Look-up: GET /transfers?reference=.
        "transfer": Lookup.EXACT,
        # Every transfer, to a bank or inside the platform, is made and found in the same way: none is called payout.
        "payout": Lookup.NONE,
    },
    # 1, "Can push money to a third party?"
    pushes_money=True,
    # Assumed. 3, SDK: the official one waits 30 s.
    answer_seconds=20.0,
    # Assumed: nothing is published.
    longest_in_flight=timedelta(minutes=2),
    # 3, Late failure: booked can be followed by failed or returned; 3, Refund: REFUND_FAILED, REFUNDED_REVERSED.
    # For how long is not published: 30 days are assumed, as long as webhooks are retried.
    bounces={"transfer": timedelta(days=30), "refund": timedelta(days=30)},
    # 3, Look-up.
    lists=frozenset({"transfer"}),
    # There is no list of events at all.
    events_reach=None,
    # 3, Standard webhook signature: no time is signed.
    webhook_tolerance=None,
    # Assumed: nothing is published. An account may say otherwise.
    requests_per_second=50.0,
    concurrency=200,
)
