"""What is so about Stripe, whoever the account. Each value with its section of docs/providers.md."""

from datetime import timedelta
from types import MappingProxyType
from typing import Final

from tallystick.providers.stripe.currencies import WIRE
from tallystick.providers.words import Facts, Lookup

# 2.1: what the official package of the day sends. Pinned: a reply must not change its shape under us.
STRIPE_VERSION: Final = "2026-10-28.endive"

FACTS: Final = Facts(
    name="stripe",
    wire=WIRE,
    key_form="hex64",
    key_characters=255,  # 1, Key limit
    key_horizon=timedelta(hours=24),  # 1, Retention: at least 24 h, then reuse executes again
    key_margin=timedelta(hours=1),  # ours
    horizon_is_published=True,
    lookup=MappingProxyType(
        {
            "transfer": Lookup.EXACT,  # 2.9: list filter transfer_group, no search delay
            "refund": Lookup.EXACT,  # 2.9: list by payment, match metadata
            "charge": Lookup.SCAN,  # 2.9: search is delayed; we list by time and match metadata
            "payout": Lookup.SCAN,  # 2.9
        }
    ),
    pushes_money=True,  # 1, last rows
    answer_seconds=20.0,  # ours: 2.3 knows only the official package's own 80 s
    longest_in_flight=timedelta(minutes=2),  # assumed: nothing is published
    bounces=MappingProxyType(
        {
            "payout": timedelta(days=7),  # 2.8: paid turns into failed within about 5 business days
            "refund": timedelta(days=30),  # 2.7, unverified: assumed that it can; the span is ours
        }
    ),
    lists=frozenset({"charge", "refund", "transfer", "payout"}),  # 2.5 to 2.8
    events_reach=timedelta(days=30),  # 2.11
    webhook_tolerance=timedelta(seconds=300),  # 2.10; in both directions, unlike the official package
    cancels_charges=True,  # 2.6: every state but succeeded
    requests_per_second=25.0,  # 2.1: default per endpoint
    concurrency=200,  # ours: 2.1 names a concurrency limiter without its number
)
