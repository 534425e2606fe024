"""What a planted bug is."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bug:
    """How to plant it, and which tests must notice."""

    plant: Callable[[], None]
    noticed_by: tuple[str, ...]
    # The fixture of a server that those tests borrow, besides the database.
    on: str | None = None
