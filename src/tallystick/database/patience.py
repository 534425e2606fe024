"""Trying again what others hold: for changes of the schema, which must not have everybody wait behind them."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import asyncpg

from tallystick.errors import MigrationBlocked
from tallystick.settings import LIMITS, Limits

# A grant and another one, or a vacuum, that met in the catalogue: PostgreSQL has no code of its own for it.
_MET: Final = "tuple concurrently updated"


async def patiently(name: str, work: Callable[[], Awaitable[None]], limits: Limits = LIMITS) -> None:
    """Try again when a lock was not to be had, after letting those pass who waited behind us."""
    pause = limits.migration_first_pause_seconds
    for _ in range(limits.migration_tries):
        try:
            await work()
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            blocked: asyncpg.PostgresError = error
        except asyncpg.InternalServerError as error:
            if _MET not in str(error):
                raise
            blocked = error
        else:
            return
        # Not in step with what keeps us out.
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        pause = min(pause * 2, limits.migration_longest_pause_seconds)
    raise MigrationBlocked(f"{name}: in {limits.migration_tries} tries a lock was not to be had") from blocked
