"""Lists that come page by page. One that breaks off is never taken for its end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tallystick.providers.steady import steady
from tallystick.providers.words import Exchange

# Before a page is asked for again. Of a thousand pages one in ten may fail, and the list is still read to its end.
PAUSES: Final = (0.05, 0.1, 0.2, 0.4)
# A page that took longer than this to fail is not waited for again.
_PATIENCE_SECONDS: Final = 10.0
_UNANSWERED: Final = 0
_OK: Final = 200
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500

Page = TypeVar("Page")


class BrokenOff(Exception):
    """A page that did not come, or not whole: what came before it is not the whole list."""

    def __init__(self, reason: str, exchange: Exchange, *, code: str = "lookup_broken_off") -> None:
        """`reason` for a person, `code` for a program; `exchange` is the page's."""
        super().__init__(reason)
        self.exchange = exchange
        self.code = code

    @property
    def may_pass(self) -> bool:
        """Whether the same page may come whole when it is asked for again: not where it was refused."""
        status = self.exchange.status
        return status in {_UNANSWERED, _OK, _TOO_MANY} or status >= _SERVER_ERROR


async def page_of(ask: Callable[[], Awaitable[Page]], *, begun: bool) -> Page:
    """What `ask` gives; it raises BrokenOff.

    A page of a list that has `begun` is asked for a few times more before all that was read of it is given up: a long
    list of a provider that fails now and then would never be read to its end. The first page of all is asked for once:
    a provider that is away is found to be so by one question.
    """
    until = steady() + _PATIENCE_SECONDS
    for pause in PAUSES if begun else ():
        try:
            return await ask()
        except BrokenOff as error:
            if not error.may_pass or steady() >= until:
                raise
        await asyncio.sleep(pause)
    return await ask()
