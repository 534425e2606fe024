"""The five probes by name, and how one is run."""

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Final

from tallystick.probes.cross_tenant_leak import cross_tenant_leak
from tallystick.probes.double_payment import double_payment
from tallystick.probes.fee_bypass import fee_bypass
from tallystick.probes.ground import Ground
from tallystick.probes.key_nondeterminism import key_nondeterminism
from tallystick.probes.report import Probed, Tried
from tallystick.probes.stuck_recovery_race import stuck_recovery_race

Probe = Callable[[Ground, int], Awaitable[tuple[Tried, ...]]]

PROBES: Final[Mapping[str, Probe]] = {
    "double_payment": lambda ground, _seed: double_payment(ground),
    "fee_bypass": lambda ground, _seed: fee_bypass(ground),
    "stuck_recovery_race": lambda ground, _seed: stuck_recovery_race(ground),
    "key_nondeterminism": lambda ground, seed: key_nondeterminism(ground, seed=seed),
    "cross_tenant_leak": lambda ground, _seed: cross_tenant_leak(ground),
}


async def probe(name: str, ground: Ground, *, seed: int = 1) -> Probed:
    """Run one. `seed` chooses what is left to chance."""
    began = perf_counter()
    ways = await PROBES[name](ground, seed)
    return Probed(probe=name, ways=ways, seconds=perf_counter() - began)
