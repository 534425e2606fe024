"""The server starts where it is told, and stops without dropping what it has begun."""

import asyncio
import contextlib
import socket

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from tallystick.errors import Misconfigured
from tallystick.http import server


async def test_a_request_in_work_is_answered_before_the_server_stops() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_scope: Scope, _receive: Receive, send: Send) -> None:
        begun.set()
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})

    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        server.serve(slow, "127.0.0.1", 0, on_listening=lambda _host, real: port.set_result(real))
    )
    async with httpx2.AsyncClient() as client:
        asking = asyncio.create_task(client.get(f"http://127.0.0.1:{await port}/"))
        await begun.wait()
        serving.cancel()
        done, _ = await asyncio.wait([serving], timeout=0.5)
        assert not done
        go_on.set()
        answer = await asking
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    assert (answer.status_code, answer.text) == (200, "done")
    with pytest.raises(OSError, match=r"refused|Connect"):
        socket.create_connection(("127.0.0.1", port.result()), 1)


async def test_a_port_that_is_taken_is_named() -> None:
    async def nothing(_scope: Scope, _receive: Receive, _send: Send) -> None: ...

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Misconfigured, match=f"TALLY_PORT.*{port}"):
            await server.serve(nothing, "127.0.0.1", port)
