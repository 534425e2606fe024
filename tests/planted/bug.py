"""What a planted bug is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from tallystick.database import migrate


@dataclass(frozen=True, slots=True)
class Bug:
    """How to plant it, and which tests must notice."""

    plant: Callable[[], None]
    noticed_by: tuple[str, ...]
    # The fixture of a server that those tests borrow, besides the database.
    on: str | None = None
    # Errors by which it shows that are a plant's own mistake elsewhere (`ROTTEN`).
    also: tuple[str, ...] = ()


def migrated(*changes: tuple[str, str]) -> None:
    """The schema with these parts replaced, in every migration that has them: a later one may say it again.

    A part that is nowhere would plant nothing.
    """
    original = migrate.migrations

    def migrations() -> list[migrate.Migration]:
        found = original()
        for old, new in changes:
            if not any(old in one.sql for one in found):
                raise ValueError(f"no migration has {old!r} any more")
            found = [migrate.Migration(one.number, one.name, one.sql.replace(old, new)) for one in found]
        return found

    cast("Any", migrate).migrations = migrations
