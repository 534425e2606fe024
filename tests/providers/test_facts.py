"""The times that safety rests on. Whoever shortens one shows why in docs/providers.md, and here."""

from datetime import timedelta

import pytest

from tallystick.providers.known import KNOWN

HOUR, MINUTE, DAY = timedelta(hours=1), timedelta(minutes=1), timedelta(days=1)
# How long a key is relied on; until what was written has happened or not; and until lists show it.
RELIED_ON = {"stripe": 23 * HOUR, "adyen": 7 * DAY - 12 * HOUR, "square": 50 * MINUTE, "wise": 50 * MINUTE}
IN_FLIGHT = {"stripe": 2 * MINUTE, "adyen": 2 * MINUTE, "square": 2 * MINUTE, "wise": 5 * MINUTE}
LISTS_LAG = {"stripe": timedelta(), "adyen": timedelta(), "square": 2 * MINUTE, "wise": 2 * MINUTE}


@pytest.mark.parametrize("name", KNOWN)
def test_no_time_that_safety_rests_on_is_shortened_unnoticed(name: str) -> None:
    facts = KNOWN[name].facts
    assert facts.remembered == RELIED_ON[name]
    assert facts.longest_in_flight == IN_FLIGHT[name]
    assert facts.list_lag == LISTS_LAG[name]
    assert facts.settles_in == IN_FLIGHT[name] + LISTS_LAG[name]
