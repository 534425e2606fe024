"""What a probe reports. Pure."""

from typing import Literal

import msgspec

# BLUNT: the attack did not even win against the naive implementation, so that it failed against ours says nothing.
Verdict = Literal["held", "BROKEN", "BLUNT"]


class Outcome(msgspec.Struct, frozen=True):
    """Whether the attacker got what he wanted, and what was seen."""

    won: bool
    told: str


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """One way of the attack, against Tallystick and against the naive implementation."""

    way: str
    attack: Outcome
    control: Outcome


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """A probe that was run."""

    probe: str
    ways: tuple[Tried, ...]
    seconds: float

    @property
    def won(self) -> int:
        """Ways in which the attack won."""
        return sum(tried.attack.won for tried in self.ways)

    @property
    def control_won(self) -> int:
        """Ways in which it won against the naive implementation: all of them, or the probe is blunt."""
        return sum(tried.control.won for tried in self.ways)

    @property
    def verdict(self) -> Verdict:
        """A probe without ways has shown nothing."""
        if self.won:
            return "BROKEN"
        return "held" if self.ways and self.control_won == len(self.ways) else "BLUNT"

    def line(self) -> str:
        """For a person."""
        tried = len(self.ways)
        return (
            f"{self.verdict:<6} {self.probe:<20} tried {tried} ways, won {self.won}; "
            f"control won {self.control_won} of {tried} ({self.seconds:.1f} s)"
        )

    def troubles(self) -> list[str]:
        """The ways that did not go as they should, for a person."""
        return [
            f"{self.probe}, {tried.way}: won against Tallystick: {tried.attack.told}"
            for tried in self.ways
            if tried.attack.won
        ] + [
            f"{self.probe}, {tried.way}: did not win against the naive implementation: {tried.control.told}"
            for tried in self.ways
            if not tried.control.won
        ]

    def summary(self) -> dict[str, object]:
        """For a program."""
        return {
            "probe": self.probe,
            "verdict": self.verdict,
            "tried": len(self.ways),
            "won": self.won,
            "control_won": self.control_won,
            "seconds": round(self.seconds, 1),
            "ways": msgspec.to_builtins(self.ways),
        }
