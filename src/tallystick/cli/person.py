"""Who sits at this terminal: decisions are kept with a name."""

import os
import pwd
from typing import Final

_ROOT: Final = 0


def system_user() -> str:
    """The system user's name, or his number where the system has no name for it.

    By the number that the kernel has of this process. Not by LOGNAME or USER: those say whatever was written into them.
    Under sudo it is the one who called it, as sudo says: root's own environment is nobody else's to write.
    """
    number = os.getuid()
    behind = os.environ.get("SUDO_UID", "")
    if number == _ROOT and behind.isascii() and behind.isdecimal():
        number = int(behind)
    try:
        return pwd.getpwuid(number).pw_name
    except (KeyError, OverflowError):
        return f"uid {number}"
