"""The commands as processes of their own."""

import os
import subprocess
import sys
from typing import Final

from tests import forks

TALLY = [sys.executable, "-c", "from tallystick.cli import main; main()"]


# A command that should have ended by itself, and has not, is told with what it said; before a test's own limit.
PATIENCE_SECONDS: Final = 200


def tally(*arguments: str, dsn: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
    return forks.run(
        _tally, *arguments, environment={**environment, "TALLY_DATABASE_URL": dsn, **more}, seconds=PATIENCE_SECONDS
    )


def _tally(*arguments: str) -> None:
    from tallystick.cli import main  # noqa: PLC0415 - not before the fork, which starts with what the server has

    sys.argv = ["tally", *arguments]
    main()
