"""The version that was released last, from this repository's history, as processes beside those of this one."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Self

import pytest

# The last tree that was given to users. Its processes must go on working through `tally migrate` of this one.
RELEASED = "0c23f20"
ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 90
COMMAND = [sys.executable, "-c", "from tallystick.cli import main; main()"]


def released(folder: Path) -> Path:
    """The package of the version before, to be put first on Python's path."""
    command = [shutil.which("git") or "git", "-C", str(ROOT), "archive", RELEASED, "src"]
    known = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    if known.returncode != 0:
        pytest.fail(
            f"The version before ({RELEASED}) is not in this clone's history: it is shallow, or no clone. Fetch all "
            f"of it (git fetch --unshallow). git said: {known.stderr.decode(errors='replace').strip()}"
        )
    with tarfile.open(fileobj=BytesIO(known.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


@dataclass
class Version:
    """One version's commands, against one database and one provider."""

    name: str
    source: Path
    environment: dict[str, str]
    logs: Path
    _started: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    _count: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.wait()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *arguments],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS * 2,
        )

    def is_this(self) -> bool:
        """That the process runs the code it is said to run."""
        shown = subprocess.run(
            [sys.executable, "-c", "import tallystick; print(tallystick.__file__)"],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        )
        return Path(shown.stdout.strip()).is_relative_to(self.source)

    async def start(self, *arguments: str, until: str) -> str:
        """A command that goes on; what its log says, as soon as it says `until`."""
        self._count += 1
        log = self.logs / f"{self.name}-{self._count}.log"
        with log.open("wb") as output:
            process = subprocess.Popen([*COMMAND, *arguments], env=self._environment(), stdout=output, stderr=output)
        self._started.append(process)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not re.search(until, said := log.read_text(errors="replace")):
                assert process.poll() is None, said
                await asyncio.sleep(0.05)
        return said

    def ended(self) -> list[str]:
        """Processes that ended by themselves, with the end of what they said."""
        return [
            f"{self.name} {number}: {(self.logs / f'{self.name}-{number}.log').read_text(errors='replace')[-2000:]}"
            for number, process in enumerate(self._started, start=1)
            if process.poll() is not None
        ]

    def _environment(self) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
        return {**plain, **self.environment, "PYTHONPATH": str(self.source), "PYTHONDONTWRITEBYTECODE": "1"}
