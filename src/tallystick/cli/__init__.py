"""`tally`: the commands. Those of a room lie in the room; `tally.py` has them all."""


def main() -> None:
    """Run a command; an error is a sentence and an exit status, not a traceback."""
    # Commands of rooms import parts of this package: it must be there before they are.
    from tallystick.cli import tally  # noqa: PLC0415

    tally.main()
