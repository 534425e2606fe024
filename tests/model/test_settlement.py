"""The settlement machine, explored to its end: two workers, and whatever a provider, people and disasters may do.

The deciders are those of production. Crashes, pauses, late requests, webhooks and time have no bound; workers (2), the
retry budget, what people do, generations (2), accounts (2) and restores (1, of a row that is not final) do.
TALLY_TEST_FULL=1 takes two workers, more people and a larger budget where the short run does not.

Assumed: a provider that remembers a key moves money once under it; Refused and Busy are true; a request takes effect at
most `longest_in_flight` after its not-after, and then every list shows it; a person says what the provider's dashboard
shows; no process outlives a restore. What else is needed is shown below, by taking it away.
"""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from tallystick.providers.words import Lookup
from tallystick.settlement.rules import STATUSES
from tests.model.settlement.constitution import FAILED_MEANS_UNPAID, ONE_MOVEMENT, ONE_PAYMENT
from tests.model.settlement.proof import endless, explore, stranded
from tests.model.settlement.shape import Database, Intent, Row, World

FULL = os.environ.get("TALLY_TEST_FULL") == "1"

EXACT, SCAN, NONE = Lookup.EXACT, Lookup.SCAN, Lookup.NONE
# What the short run explores.
WORLDS = {
    "exact lookup": World(EXACT, fails_at_once=True),
    "scanned lists": World(SCAN, fails_at_once=True, crashes=False),
    "no lookup": World(NONE, fails_at_once=True),
    "made, then funded": World(SCAN, waits_for_us=True, workers=1),
    "keys not kept, exact lookup": World(EXACT, keeps_keys=False, rolls="never", crashes=False),
    "payouts that come back": World(NONE, bounces=True, replays_today=True, crashes=False),
    "another account": World(NONE, accounts=2, workers=1),
    "people": World(EXACT, persons=1, generations=2, workers=1),
    "a restore, exact lookup": World(EXACT, restores=True, rolls="never", workers=1, crashes=False),
    "a restore, no lookup": World(NONE, restores=True, workers=1, crashes=False),
}
# What the long run adds, or explores in its place.
WIDER = {
    "exact lookup": World(EXACT, fails_at_once=True, budget=3),
    "scanned lists": World(SCAN, fails_at_once=True, budget=3),
    "no lookup": World(NONE, fails_at_once=True, budget=3),
    "failures that are answered Done": World(EXACT, fails_at_once=True, failed_is_done=True),
    "failures that are answered Done, no lookup": World(NONE, fails_at_once=True, failed_is_done=True),
    "made, then funded": World(SCAN, fails_at_once=True, waits_for_us=True),
    "keys not kept, exact lookup": World(EXACT, fails_at_once=True, keeps_keys=False, rolls="never"),
    "payouts that come back": World(NONE, bounces=True, replays_today=True),
    "payouts that come back, exact lookup": World(EXACT, bounces=True, replays_today=True),
    "another account": World(NONE, accounts=2),
    "another account, exact lookup": World(EXACT, accounts=2),
    "people": World(EXACT, persons=2, generations=2, workers=1, bounces=True),
    "people, no lookup": World(NONE, persons=3, generations=2, workers=1),
    "people and two workers": World(EXACT, persons=1, generations=2),
    "a restore, exact lookup": World(EXACT, restores=True, rolls="never"),
    "a restore, scanned lists": World(SCAN, restores=True, rolls="never", workers=1),
    "a restore, no lookup": World(NONE, restores=True, workers=1),
    "a restore and people": World(EXACT, restores=True, rolls="never", workers=1, persons=2),
    "a restore and people, scanned lists": World(SCAN, restores=True, rolls="never", workers=1, persons=1),
}
CHOSEN = {**WORLDS, **WIDER} if FULL else WORLDS


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("name", CHOSEN)
def test_the_constitution_holds_in_every_state(name: str, record_property: Callable[[str, object], None]) -> None:
    """And every end is reached, none is out of reach, and nothing goes on for ever."""
    graph, violation = explore(CHOSEN[name])
    record_property("counted", f"model of settlement, {name}: {len(graph.states):,} states, {graph.steps:,} steps")
    assert violation is None, str(violation)
    assert {state.database.row.status for state in graph.states} == set(STATUSES)
    lost = stranded(graph)
    assert lost is None, f"Nothing is decided any more after:\n{lost}"
    circle = endless(graph)
    assert circle is None, f"It goes on for ever after:\n{circle}"


def test_asking_first_protects_where_keys_are_not_kept_unless_an_unheard_500_rolls_forward() -> None:
    """A 500 whose answer never came looks like silence; carried out later, it pays beside the second send."""
    _, violation = explore(World(EXACT, keeps_keys=False, workers=1))
    assert violation is not None
    assert violation.name == ONE_MOVEMENT


def test_the_margin_must_cover_the_leave_and_the_flight() -> None:
    """Else a send that begins inside the horizon arrives past it, and the provider takes it for a new one."""
    _, violation = explore(replace(WORLDS["no lookup"], margin=0))
    assert violation is not None
    assert violation.name == ONE_MOVEMENT


def test_absence_after_a_restore_is_believed_only_if_nothing_rolls_forward() -> None:
    """Whether the lost life got a 500 nobody knows. A refusal of the next send is then taken for the end."""
    _, violation = explore(replace(WORLDS["a restore, exact lookup"], rolls="in_horizon"))
    assert violation is not None
    assert violation.name == FAILED_MEANS_UNPAID


def test_a_restore_must_not_lose_a_new_generation() -> None:
    """The backup knows of a send, not of its refusal, nor of the new key that was paid: only the old one is asked."""
    world = World(EXACT, restores=True, rolls="never", workers=1, crashes=False, generations=2)
    silent = Intent(0, 0, 0, answered=False)
    backup = Database(Row("processing"), (0, 1, 0), (silent, None))
    failed = Database(Row("failed"), (1, 0, 0), (silent._replace(answered=True), None))
    first = world.first_state()._replace(database=failed, backup=backup, persons=1)
    _, violation = explore(world, first=first)
    assert violation is not None
    assert violation.name == ONE_PAYMENT
