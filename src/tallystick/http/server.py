"""The HTTP server: uvicorn inside our own event loop, stopped without dropping what it has begun."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from math import ceil
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from tallystick.errors import Misconfigured
from tallystick.http.crowd import Crowd, descriptors
from tallystick.http.http1.call_protocol import CallProtocol
from tallystick.settings import LIMITS, Limits

# What uvicorn says there is about somebody's bytes, a line for each request: the crowd counts them instead.
_OF_CALLERS: Final = "httptools_impl"
# Connections the kernel holds while we are busy; more than any test of ours opened at once.
_BACKLOG: Final = 2048
# And so many at least, however few files we may have.
_LEAST_BACKLOG: Final = 16
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def _is_news(record: logging.LogRecord) -> bool:
    return record.levelno > logging.WARNING or record.module != _OF_CALLERS


async def serve(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    on_listening: Callable[[str, int], None] = lambda _host, _port: None,
    on_stopping: Callable[[], None] = lambda: None,
    limits: Limits = LIMITS,
) -> None:
    """Serve until SIGINT, SIGTERM or cancellation; then answer what was begun (bounded) and return.

    Port 0 takes a free one; `on_listening` is told the real one. `on_stopping` is called before it waits for what was
    begun. Run it under uvloop (`uvloop.run`).
    """
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    crowd: Crowd = getattr(app, "crowd", None) or Crowd(limits=limits)
    crowd.most, left = descriptors(crowd.limits)
    # All of these may be taken in one turn of the loop, before any is counted: they must fit what is left.
    backlog = max(min(_BACKLOG, left // 2), _LEAST_BACKLOG)
    listener = _listen(host, port, backlog)
    server = _Server(
        uvicorn.Config(
            app,
            http=partial(CallProtocol, crowd=crowd),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=backlog,
            timeout_keep_alive=crowd.limits.idle_seconds,
            timeout_graceful_shutdown=ceil(LIMITS.drain_seconds),
        ),
        lambda: on_listening(host, listener.getsockname()[1]),
        on_stopping,
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    async with _stopped_by_signals(server), crowd.watched():
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.should_exit = True
            await serving
            raise


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, on_listening: Callable[[], None], on_stopping: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._on_listening = on_listening
        self._on_stopping = on_stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stopping()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn's own raises the signal again at its end, which kills the process before the engine has
        # drained and the embedded database has stopped.
        yield


@contextlib.asynccontextmanager
async def _stopped_by_signals(server: uvicorn.Server) -> AsyncIterator[None]:
    """The first signal asks the server to finish; the second, to hurry."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _listen(host: str, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        message = f"TALLY_HOST, TALLY_PORT: cannot listen on {host} port {port}: {error.strerror or error}"
        raise Misconfigured(message) from error
