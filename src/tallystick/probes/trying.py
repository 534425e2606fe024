"""Trying a way: what an attack that raises means."""

from collections.abc import Awaitable

from tallystick.probes.report import Outcome


async def judged(attack: Awaitable[Outcome], *, otherwise: bool) -> Outcome:
    """The outcome of an attack. One that breaks off counts as `otherwise`: it must never pass for a good sign."""
    try:
        return await attack
    except Exception as error:  # noqa: BLE001 - whatever it was, the other ways are tried too
        return Outcome(won=otherwise, told=f"it broke off: {type(error).__name__}: {error}")
