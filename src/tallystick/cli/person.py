"""Who sits at this terminal: decisions are kept with a name."""

import getpass
import os


def system_user() -> str:
    """The system user's name, or his number where the system has no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
