"""How ids are written for people. Pure."""

from uuid import UUID


def settlement_name(id_: bytes) -> str:
    """How a settlement's 16-byte id is written."""
    return "st_" + id_.hex()


def settlement_id(name: str) -> UUID | None:
    """The id behind a written one; None when it is not one of ours. One spelling only."""
    text = name.removeprefix("st_")
    if text == name or len(text) != 32 or not text.isascii() or text != text.lower() or not text.isalnum():  # noqa: PLR2004 - hexadecimal digits of 16 bytes
        return None
    try:
        return UUID(hex=text)
    except ValueError:
        return None
