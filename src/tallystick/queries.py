"""Named SQL statements, kept in a `.sql` file beside the module that runs them."""

import re
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(package: str, filename: str) -> dict[str, str]:
    """The statements of one file by name. The comments above each statement stay with it."""
    return read(resources.files(package).joinpath(filename).read_text(encoding="utf-8"))


def read(text: str) -> dict[str, str]:
    """The statements of such a file's text by name."""
    parts = _NAME.split(text)[1:]
    return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))
