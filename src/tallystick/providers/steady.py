"""The steady clock: how much time has passed, whatever anybody does to the wall clock."""

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def steady() -> float:
        """Seconds since some moment. Goes on while the process is stopped and while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:

    def steady() -> float:
        """Seconds since some moment. Goes on while the process is stopped."""
        return time.monotonic()
