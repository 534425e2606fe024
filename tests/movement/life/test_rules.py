"""What hints at another life of the database, and what does not."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tallystick.movement.life.rules import DatabasePlace, Seen, hint

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HERE = DatabasePlace(7, 1, 16_384, NOW, 16_500)
changed = msgspec.structs.replace


def seen(
    place: DatabasePlace = HERE, *, position: int = 100, after: float = 0.0, jumped: float = 0.0, took: float = 0.01
) -> Seen:
    """`after` so many seconds of our own clock, in which its clock went `jumped` more. It was asked `took` before."""
    heard = 1_000.0 + after
    now = NOW + timedelta(seconds=after + jumped)
    return Seen(place=place, position=position, now=now, asked=heard - took, steady=heard)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({}, None),
        ({"system": 8}, "another system"),
        ({"timeline": 2}, "another timeline"),
        ({"database": 5}, "another database"),
        ({"intents": 17_000}, "another intents"),
        ({"started_at": NOW + timedelta(seconds=1)}, "another started_at"),
    ],
)
def test_another_place_is_a_hint(other: dict[str, Any], expected: str | None) -> None:
    assert hint(HERE, seen(changed(HERE, **other)), seen()) == expected


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (seen(after=3_600.0, position=200), None),
        (seen(after=3_600.0, jumped=59.0), None),
        (seen(after=3_600.0, jumped=61.0), "its clock jumped"),
        (seen(after=3_600.0, jumped=-61.0), "its clock jumped"),
        # A machine that was rolled back with all its memory: nothing that is stored tells.
        (seen(after=3_600.0, position=99), "its log went back"),
        # Overtaken by a younger look on another connection: begun before that one was heard, whichever is heard first.
        (seen(after=-5.0), None),
        (seen(after=0.5, took=1.0, position=99), None),
        (seen(after=0.5, took=0.4, position=99), "its log went back"),
        (seen(after=70.0, took=71.0, jumped=-70.0), None),
    ],
)
def test_a_process_remembers_what_the_database_cannot(look: Seen, expected: str | None) -> None:
    assert hint(HERE, look, seen()) == expected
    assert hint(HERE, look, None) is None, "a process that has just begun has nothing to compare with"
