"""Lists that come page by page."""

from tallystick.providers.words import Exchange


class BrokenOff(Exception):
    """A page that did not come, or not whole: what came before it is not the whole list."""

    def __init__(self, reason: str, exchange: Exchange) -> None:
        """`reason` for a person; `exchange` is the page's."""
        super().__init__(reason)
        self.exchange = exchange
