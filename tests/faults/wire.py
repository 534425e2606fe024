"""A wire to PostgreSQL that can be cut at a chosen message.

It understands just enough of the protocol to see COMMIT go by.
"""

import asyncio
import contextlib
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum


class Cut(Enum):
    """Where the wire breaks."""

    AT_BEGIN = "the server never sees the transaction"
    BEFORE_COMMIT = "COMMIT is sent by the client and never reaches the server"
    AFTER_COMMIT = "the server commits, and the client never hears of it"


class Wire:
    """Passes bytes on; `cut_next` arms one cut, `is_down` refuses everything."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self.cut_next: Cut | None = None
        self.down_after_cut = False
        self.is_down = False
        # Nothing passes, and nobody is told.
        self.is_frozen = False
        # Those who listen hear nothing more, and their connections stay open.
        self.is_mute = False
        self._listening: set[asyncio.StreamWriter] = set()
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client connection."""
        if self.is_down:
            writer.transport.abort()
            return
        upstream, downstream = await asyncio.open_unix_connection(self._socket_path)
        answers = asyncio.create_task(self._answers(upstream, writer))
        try:
            await self._requests(reader, writer, downstream, upstream, answers)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            answers.cancel()
            self._listening.discard(writer)
            downstream.close()
            writer.transport.abort()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: asyncio.StreamWriter,
        upstream: asyncio.StreamReader,
        answers: "asyncio.Task[None]",
    ) -> None:
        startup = await reader.readexactly(4)
        server.write(startup + await reader.readexactly(int.from_bytes(startup, "big") - 4))
        while True:
            head = await reader.readexactly(5)
            body = await reader.readexactly(int.from_bytes(head[1:], "big") - 4)
            statement = body.rstrip(b"\0") if head[:1] == b"Q" else b""
            while self.is_frozen:
                await asyncio.sleep(0.01)
            cut = self._cut_at(statement)
            if cut is Cut.AFTER_COMMIT:
                answers.cancel()
                await asyncio.wait([answers])
                server.write(head + body)
                # The server answers CommandComplete only when the commit is durable.
                while b"COMMIT" not in await upstream.read(4096):
                    pass
            if cut is not None:
                self.cuts += 1
                self.is_down = self.down_after_cut
                return
            if b"LISTEN " in body:
                self._listening.add(writer)
            server.write(head + body)
            await server.drain()

    def _cut_at(self, statement: bytes) -> Cut | None:
        wanted = self.cut_next
        hit = (wanted is Cut.AT_BEGIN and statement.split(b";")[0] == b"BEGIN") or (
            wanted in (Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT) and statement == b"COMMIT"
        )
        if not hit:
            return None
        self.cut_next = None
        return wanted

    async def _answers(self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await upstream.read(65536):
                if self.is_mute and writer in self._listening:
                    continue
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def wire(dsn: str) -> AsyncIterator[tuple[Wire, str]]:
    """A wire to that server (reached by its socket), and the DSN that goes through it."""
    parts = urllib.parse.urlsplit(dsn)
    query = urllib.parse.parse_qs(parts.query)
    socket_path = f"{query['host'][0]}/.s.PGSQL.{query.get('port', ['5432'])[0]}"
    made = Wire(socket_path)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield made, f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}?sslmode=disable"
    finally:
        server.close()
