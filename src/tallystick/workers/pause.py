"""How workers rest: when there was nothing to do, and when something broke."""

import asyncio
import random
import traceback
from typing import Final

from tallystick.errors import TallystickError

# While the database is away: the first and the longest pause. Longer ones would keep work waiting after it is back.
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 15.0


def pause_after_failure(failures: int) -> float:
    """Seconds until the next try, after so many failures in a row."""
    return min(_FIRST_PAUSE_SECONDS * (1 << min(failures - 1, 16)), _LONGEST_PAUSE_SECONDS)


async def rest(stopping: asyncio.Event, seconds: float) -> None:
    """Wait about so long, or until told to stop."""
    if not seconds:
        return
    # Spread out: workers that were started together, or lost the database together, must not come back together.
    jitter = random.uniform(0.5, 1.5)  # noqa: S311 - no secret
    try:
        async with asyncio.timeout(seconds * jitter):
            await stopping.wait()
    except TimeoutError:
        return


def in_short(error: Exception) -> str:
    """What broke. Not what a caller would be told about the money: a worker may have acted before it broke off."""
    if isinstance(error, TallystickError):
        return str(error).split(". ", 1)[0]
    # As text: a log that shows local values would show credentials.
    return "".join(traceback.format_exception(error))
