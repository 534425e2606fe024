"""Named SQL statements, kept in a `.sql` file beside the module that runs them.

The simulator's own reader: it uses nothing of the store whose work it checks.
"""

import re
from importlib import resources
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(filename: str) -> dict[str, str]:
    """The statements of one file by name."""
    text = resources.files("tallystick.providers.simulator").joinpath(filename).read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))
