"""The examples of README and docs, found in the files themselves.

Every fenced block of shell, Python or SQL is run as it stands, in order, in one folder with one service. What cannot be
run here says so in a comment before it: `<!-- not run: why -->`. `<!-- until Ctrl-C -->`: it is ended by one.

In shell, `NAME=...` with three dots is what the reader fills in, from what was answered; the address is the service's.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
RUNNABLE = ("sh", "python", "sql")
_FENCE = re.compile(r"^```(\w*)\s*$")
_NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
_ENDLESS = "<!-- until Ctrl-C -->"
_LEFT_OPEN = re.compile(r"(\w+)=\S*\.\.\.")


@dataclass(frozen=True)
class Example:
    file: str
    line: int
    language: str
    text: str
    not_run: str | None
    is_endless: bool

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}"

    def parts(self) -> list[tuple[list[str], str]]:
        """What is done in one go, each with the names that the reader fills in before it."""
        parts: list[tuple[list[str], str]] = [([], "")]
        for line in self.text.splitlines(keepends=True):
            if name := _LEFT_OPEN.match(line):
                if parts[-1][1]:
                    parts.append(([], ""))
                parts[-1][0].append(name.group(1))
            else:
                parts[-1] = (parts[-1][0], parts[-1][1] + line)
        return parts


def examples(file: str) -> Iterator[Example]:
    """Every fenced block of a file, with what is said before it."""
    before, opened, language, lines = "", 0, "", list[str]()
    for number, line in enumerate((ROOT / file).read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if not opened and fence:
            opened, language, lines = number, fence.group(1), []
        elif opened and line == "```":
            reason = _NOT_RUN.match(before)
            yield Example(
                file, opened, language, "\n".join(lines), reason and reason.group(1), is_endless=before == _ENDLESS
            )
            opened = 0
        elif opened:
            lines.append(line)
        elif line.strip():
            before = line.strip()
        if not opened and fence and line != "```":
            before = ""
