"""What a provider's package declares of itself: its facts, its settings, and how an adapter is made of them.

Read by the settings, before any adapter: a package's `declared.py` imports its adapter only where one is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.providers.words import Facts
from tallystick.secret import Secret

if TYPE_CHECKING:
    from tallystick.providers.port import Provider


@dataclass(frozen=True, slots=True)
class Setting:
    """One of its own, by its name without the prefix: `TALLY_<PROVIDER>_<NAME>`."""

    name: str
    meaning: str
    default: str | None = None
    # Without it calls would be refused, or go to the wrong account.
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """One provider's account. `more` are its own settings, by their name in lower case."""

    api_key: Secret
    api_base: str
    webhook_secrets: tuple[Secret, ...]
    requests_per_second: float | None
    more: Mapping[str, str]
    # None: what holds for all of them.
    settlement_timeout_seconds: float | None = None


def _no_fault(_own: Mapping[str, str]) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A provider, as the whole knows it."""

    name: str
    facts: Facts
    # In words: its key, and what its webhooks are signed with.
    api_key: str
    webhook_secret: str
    api_base: str
    settings: tuple[Setting, ...] = ()
    make: "Callable[[ProviderSettings], Provider]"
    # What is wrong with its settings together, as a sentence; by their names in lower case.
    fault: Callable[[Mapping[str, str]], str | None] = _no_fault

    @property
    def title(self) -> str:
        """As people write it."""
        return self.name.capitalize()
