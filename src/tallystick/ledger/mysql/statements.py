"""Named SQL of this folder, without comments: the driver knows a multi-row INSERT by its first word."""

from tallystick import queries


def load(filename: str) -> dict[str, str]:
    """The statements of one file by name."""
    named = queries.load(__package__, filename)
    return {name: "\n".join(_code(text)) for name, text in named.items()}


def _code(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.lstrip().startswith("--")]
