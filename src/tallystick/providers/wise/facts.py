"""What is so about Wise, each value with its source in docs/providers.md."""

from datetime import timedelta
from typing import Final

from tallystick.providers.wise.currencies import WIRE
from tallystick.providers.words import Facts, Lookup

FACTS: Final = Facts(
    name="wise",
    wire=WIRE,
    # 1, Key limit: customerTransactionId must be a UUID.
    key_form="uuid",
    key_characters=36,
    # 1, Retention: no expiry is documented, so a short one is assumed.
    key_horizon=timedelta(hours=1),
    key_margin=timedelta(minutes=10),
    horizon_is_published=False,
    lookup={
        # It takes no payments.
        "charge": Lookup.NONE,
        "refund": Lookup.NONE,
        # 5, Look-up: no filter by customerTransactionId. All of a span of time are listed and matched by us.
        "transfer": Lookup.SCAN,
        "payout": Lookup.NONE,
    },
    # 1, "Can push money to a third party?"
    pushes_money=True,
    # Assumed, for each of the four calls.
    answer_seconds=30.0,
    # Assumed: nothing is published. The last of the four calls may start late.
    longest_in_flight=timedelta(minutes=5),
    # Assumed: nothing is published of how late the list is.
    list_lag=timedelta(minutes=2),
    # 5, Not final: outgoing_payment_sent can bounce, sometimes after weeks.
    bounces={"transfer": timedelta(days=30)},
    lists=frozenset({"transfer"}),
    # There is no list of events.
    events_reach=None,
    # 5, Webhook signature: no time is signed apart from the body.
    webhook_tolerance=None,
    # Assumed: nothing is published. An account may say otherwise.
    requests_per_second=10.0,
    concurrency=200,
    # 5: a transfer is made first and funded after.
    waits_for_us=True,
    # 5: recipient, quote, transfer, funding.
    requests_per_transfer=4,
)
