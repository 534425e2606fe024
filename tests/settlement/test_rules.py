"""What late news mean for a settlement, what its fee is, and how its id is written."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.keys.names import settlement_id, settlement_name
from tallystick.movement.steps import (
    Disputed,
)
from tallystick.providers.words import (
    Movement,
)
from tallystick.settlement.rules import ALARMS, STATUSES, after_movement, fee_micros

T0 = datetime(2026, 11, 16, tzinfo=UTC)


def movement(state: Any = "moved", *, amount: int = 5_000_000, id_: str = "tr_1", currency: str = "EUR") -> Movement:
    return Movement(
        provider="stripe",
        purpose="transfer",
        id=id_,
        amount_micros=amount,
        currency=currency,
        state=state,
        status=state,
    )


@pytest.mark.parametrize(
    ("status", "state", "options", "expected"),
    [
        ("transferred", "moved", {}, None),
        ("transferred", "moving", {}, None),
        ("transferred", "failed", {}, Disputed("failed_after_transferred", "tr_1")),
        ("transferred", "returned", {}, Disputed("returned_after_transferred", "tr_1")),
        ("transferred", "moved", {"id_": "tr_2"}, Disputed("moved_twice", is_double=True)),
        ("transferred", "failed", {"id_": "tr_2"}, None),
        ("transferred", "moved", {"amount": 1}, Disputed("amount_differs", "tr_1")),
        ("transferred", "moved", {"currency": "USD"}, Disputed("amount_differs", "tr_1")),
        ("failed", "moved", {}, Disputed("moved_after_failed", "tr_1")),
        ("failed", "failed", {}, None),
        ("pending", "moved", {}, Disputed("moved_before_it_was_sent", "tr_1")),
        ("processing", "moved", {}, None),
        ("processing", "moved", {"live": False, "id_": "tr_0"}, Disputed("earlier_generation_moved", "tr_0")),
        (
            "transferred",
            "moved",
            {"live": False, "id_": "tr_0"},
            Disputed("earlier_generation_moved", "tr_0", is_double=True),
        ),
        ("transferred", "returned", {"live": False, "id_": "tr_0"}, None),
        ("transferred", "moved", {"live": False}, None),  # a person confirmed that very movement
        ("transferred", "returned", {"live": False}, Disputed("returned_after_transferred", "tr_1")),
        ("disputed", "moved", {}, None),
    ],
)
def test_what_late_news_means(status: Any, state: Any, options: dict[str, Any], expected: object) -> None:
    live = options.get("live", True)
    told = {"id_": "tr_1", **{name: value for name, value in options.items() if name != "live"}}
    news = movement(state, **told)
    after = after_movement(status, "tr_1", news, is_live_key=live, amount_micros=5_000_000, currency="EUR")
    assert after == expected


@given(st.sampled_from(STATUSES), st.sampled_from(["waiting", "moving", "moved", "failed", "returned"]), st.booleans())
def test_news_never_leads_to_another_send(status: Any, state: Any, live: bool) -> None:  # noqa: FBT001
    after = after_movement(status, "tr_1", movement(state), is_live_key=live, amount_micros=5_000_000, currency="EUR")
    assert after is None or isinstance(after, Disputed)


@given(st.integers(1, 2**63 - 1), st.integers(0, 1_000_000), st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_fee_is_at_least_its_minimum_and_never_rounds_up(gross: int, ppm: int, fixed: int, minimum: int) -> None:
    fee = fee_micros(gross, percent_ppm=ppm, fixed_micros=fixed, minimum_micros=minimum)
    assert fee >= minimum
    assert fee == minimum or (fee - fixed) * 1_000_000 <= gross * ppm < (fee - fixed + 1) * 1_000_000


@pytest.mark.parametrize(
    "name", ["st_", "st_12", "xx_" + "0" * 32, "st_" + "G" * 32, "st_" + "A" * 32, "st_" + "-" * 32]
)
def test_only_one_spelling_is_an_id(name: str) -> None:
    assert settlement_id(name) is None


def test_an_id_is_read_as_it_is_written() -> None:
    id_ = bytes(range(16))
    found = settlement_id(settlement_name(id_))
    assert found is not None
    assert found.bytes == id_


@pytest.mark.parametrize("state", ["waiting", "moving", "moved"])
def test_an_alarm_is_a_persons_whatever_the_books_call_the_state(state: Any) -> None:
    (alarm,) = ALARMS.values()
    said: Any = {"is_live_key": True, "amount_micros": 5_000_000, "currency": "EUR"}
    assert after_movement("transferred", "tr_1", movement(state), **said) is None
    assert after_movement("transferred", "tr_1", movement(state), alarm=alarm, **said) == Disputed(alarm, "tr_1")
    assert after_movement("disputed", "tr_1", movement(state), alarm=alarm, **said) is None
