"""What is so about Square, whoever the account. Each value with its section of docs/providers.md."""

from datetime import timedelta
from types import MappingProxyType
from typing import Final

from tallystick.providers.square.currencies import WIRE
from tallystick.providers.words import Facts, Lookup

# 4, Version header: what the official package of the day sends. Pinned: a reply must not change its shape under us.
SQUARE_VERSION: Final = "2026-09-16"

FACTS: Final = Facts(
    name="square",
    wire=WIRE,
    key_form="square45",
    key_characters=45,  # 1, Key limit
    key_horizon=timedelta(hours=1),  # 1, Retention: not published, so a short one is assumed
    key_margin=timedelta(minutes=10),  # ours
    horizon_is_published=False,
    lookup=MappingProxyType(
        {
            "charge": Lookup.SCAN,  # 4, List filters: no reference filter, and lists are seconds late
            "refund": Lookup.SCAN,  # 4, Refund list: no payment filter
            "transfer": Lookup.NONE,
            "payout": Lookup.NONE,  # Square makes them by itself: none bears a reference of ours
        }
    ),
    pushes_money=False,  # 4, Payouts: read-only
    answer_seconds=20.0,  # ours: 4 knows only the official package's own 60 s
    longest_in_flight=timedelta(minutes=2),  # assumed: nothing is published
    list_lag=timedelta(minutes=2),  # 4, List filters: seconds late; how late at most is not published
    bounces=MappingProxyType({"refund": timedelta(days=30)}),  # assumed: nothing is published
    lists=frozenset({"charge", "refund", "payout"}),  # 4
    # 4, Backfill: retention unverified. The official package words the search as one of a span of 28 days, and only
    # what happens while the seller has events enabled can be found.
    events_reach=timedelta(days=28),
    webhook_tolerance=None,  # 4, No timestamp in the signature
    cancels_charges=True,  # 4, Complete / cancel / get / list
    requests_per_second=10.0,  # assumed: Square does not publish its limits
    concurrency=200,  # ours
)
