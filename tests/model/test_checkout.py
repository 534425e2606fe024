"""Checkout, explored to its end: buyers, a provider that tells late, twice and in any order, sweepers, workers, people.

The deciders are those of production. Crashes, takeovers of claims, silence and outages have no bound; orders (2, on one
SKU of one piece), charges of an order (2), event ids of a fact (2), workers (2), what people do and generations of a
refund (2) do. TALLY_TEST_FULL=1 takes more of them at once.

Assumed: a provider that remembers a key gives back once under it; Refused and Busy are true; a request takes effect at
most `longest_in_flight` after its not-after; an event that is lost comes later, from the provider's own list.
"""

import os
from collections.abc import Callable

import pytest

from tallystick.providers.words import Lookup
from tests.model.checkout.proof import explore, stranded
from tests.model.checkout.shape import World

FULL = os.environ.get("TALLY_TEST_FULL") == "1"

EXACT, SCAN, NONE = Lookup.EXACT, Lookup.SCAN, Lookup.NONE
# What the short run explores.
WORLDS = {
    "a ghost payment, told twice": World(swept_at_once=True, workers=1, crashes=False),
    "a ghost payment, two workers": World(swept_at_once=True, copies=1),
    "a ghost payment, scanned lists": World(SCAN, swept_at_once=True, copies=1, workers=1, errors=True),
    "a ghost payment, no lookup, a long outage": World(NONE, swept_at_once=True, copies=1, workers=1, ages=True),
    "a buyer who cancels, an answer that is lost": World(
        copies=1, workers=1, is_calm=True, cancels=True, loses_answers=True
    ),
    "two buyers of one piece": World(orders=2, copies=1, workers=1, is_calm=True, crashes=False),
    "backorders": World(late="backorder", orders=2, workers=1, is_calm=True),
    "two charges of one order": World(
        attempts=2, copies=1, workers=1, crashes=False, pauses=False, contradicts=True, is_calm=True
    ),
    "another amount, given back": World(other_amount="refund", copies=1, is_calm=True),
    "another amount, a person decides": World(other_amount="review", persons=1, workers=1),
    "refunds that are refused": World(swept_at_once=True, copies=1, workers=1, refuses=True, persons=1, generations=2),
    "refunds that come back": World(
        swept_at_once=True, copies=1, crashes=False, is_calm=True, refunds_fail=True, persons=1, generations=2
    ),
    "refunds that come back and have no name of ours": World(
        swept_at_once=True,
        copies=1,
        crashes=False,
        pauses=False,
        is_calm=True,
        refunds_fail=True,
        has_names=False,
        persons=1,
        generations=2,
    ),
    "dead letters": World(swept_at_once=True, copies=1, workers=1, is_calm=True, poison=True, persons=1),
}
# What the long run adds, or explores in its place.
WIDER = {
    "a ghost payment, told twice": World(swept_at_once=True),
    "a ghost payment, no lookup, a long outage": World(NONE, swept_at_once=True, copies=1, errors=True, ages=True),
    "a ghost payment, exact lookup, a long outage": World(
        swept_at_once=True, copies=1, workers=1, errors=True, ages=True, checks=True
    ),
    "backorders": World(late="backorder", orders=2, is_calm=True),
}
CHOSEN = {**WORLDS, **WIDER} if FULL else WORLDS


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("name", CHOSEN)
def test_the_constitution_holds_in_every_state(name: str, record_property: Callable[[str, object], None]) -> None:
    """And from every state the shop heals: what was charged is PAID or refunded, or a person was called."""
    graph, violation = explore(CHOSEN[name])
    record_property("counted", f"model of checkout, {name}: {len(graph.states):,} states, {graph.steps:,} steps")
    assert violation is None, str(violation)
    lost = stranded(graph)
    assert lost is None, f"Nothing heals any more after:\n{lost}"
