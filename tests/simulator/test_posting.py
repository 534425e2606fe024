"""How the simulator posts webhooks: on connections that are kept for as long as their receiver keeps them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tallystick.simulator.posting import NotDelivered, Posting

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Answer = Callable[[int], bytes | None]


class Receiver:
    """Answers the n-th request of a connection with `answer(n)`; None: it closes instead."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.connections = 0
        self.bodies: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                number += 1
                answer = self._answer(number)
                if answer is None:
                    return
                self.bodies.append(body)
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[Receiver]:
    receiver = Receiver(answer)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    async with server:
        yield receiver


async def told(posting: Posting, receiver: Receiver, *bodies: bytes) -> list[int]:
    return [(await posting.post(receiver.url, (("a", "b"),), body, seconds=5)).status for body in bodies]


async def test_a_connection_is_used_again() -> None:
    async with listening(lambda _number: OK) as receiver:
        posting = Posting()
        assert await told(posting, receiver, b"1", b"2", b"3") == [200, 200, 200]
        assert (receiver.connections, receiver.bodies) == (1, [b"1", b"2", b"3"])
        posting.close()


async def test_a_kept_connection_that_the_receiver_closed_costs_no_attempt() -> None:
    """Else every webhook after a pause would count as refused, and come an hour later."""
    async with listening(lambda number: OK if number == 1 else None) as receiver:
        posting = Posting()
        assert await told(posting, receiver, b"1", b"2", b"3") == [200, 200, 200]
        assert (receiver.connections, receiver.bodies) == (3, [b"1", b"2", b"3"])
        posting.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n",
    ],
    ids=["closing", "old", "no length", "endless"],
)
async def test_what_cannot_be_read_to_its_end_is_not_kept(answer: bytes) -> None:
    """The rest of it would be taken for the next answer."""
    async with listening(lambda _number: answer) as receiver:
        posting = Posting()
        assert await told(posting, receiver, b"1", b"2") == [200, 200]
        assert receiver.connections == 2
        posting.close()


async def test_a_receiver_that_never_answers_is_told_once_on_a_new_connection() -> None:
    async with listening(lambda _number: None) as receiver:
        with pytest.raises(NotDelivered):
            await told(Posting(), receiver, b"1")
        assert receiver.connections == 1


async def test_each_request_has_its_own_time() -> None:
    """One timer serves all of them, and goes on with the next."""
    async with listening(lambda _number: b"") as receiver:
        posting, loop = Posting(), asyncio.get_running_loop()

        async def lasted() -> float:
            begun = loop.time()
            with pytest.raises(NotDelivered, match=r"no answer within 0\.2 s"):
                await posting.post(receiver.url, (), b"1", seconds=0.2)
            return loop.time() - begun

        first = asyncio.create_task(lasted())
        await asyncio.sleep(0.1)
        # The third begins when nothing is under way any more.
        for seconds in (*await asyncio.gather(first, lasted()), await lasted()):
            assert seconds >= 0.19
        posting.close()
