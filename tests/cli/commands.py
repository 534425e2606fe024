"""The commands as processes of their own."""

import os
import subprocess
import sys

TALLY = [sys.executable, "-c", "from tallystick.cli import main; main()"]


def tally(*arguments: str, dsn: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
    return subprocess.run(
        [*TALLY, *arguments],
        env={**environment, "TALLY_DATABASE_URL": dsn, **more},
        capture_output=True,
        text=True,
        check=False,
    )
