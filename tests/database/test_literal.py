"""What is sent as one literal is what an array of the same elements would have been, to the last character."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.database.literal import booleans, numbers, texts, uuids
from tallystick.database.pool import connect
from tests import servers

# Whatever PostgreSQL can store: it has no NUL and no half of a character.
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
# What an array literal, or whoever would put one together carelessly, gives a meaning to.
TELLING = st.text(st.sampled_from("\",\\{}()NUL nul'\n\r\t\v\f\x1e\x1d\x7f\u00a0\u2028$%:;é😀"))
TEXTS = st.lists(
    st.none() | st.sampled_from(["", "NULL", "null", '"', "\\", "{}", '","', " "]) | TELLING | st.text(CHARACTERS)
)
SMALL = st.integers(-(2**31), 2**31 - 1)
LARGE = st.integers(-(2**63), 2**63 - 1)
# Nan is like nothing, itself included.
FLOATS = st.floats(allow_nan=False)
OFTEN = settings(deadline=timedelta(seconds=5), max_examples=200)


class Server:
    """A connection that a test which is no coroutine may use."""

    def __init__(self, dsn: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection = self._loop.run_until_complete(asyncpg.connect(dsn))

    def read(self, type_: str, literal: str) -> list[Any]:
        """The elements that the server finds, in its own order."""
        rows = self._loop.run_until_complete(
            self._connection.fetch(f"SELECT e FROM unnest($1::text::{type_}[]) AS e", literal)
        )
        return [row["e"] for row in rows]

    def close(self) -> None:
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()


@pytest.fixture(scope="module", params=["embedded18", "postgres15"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    postgres: servers.Server = request.getfixturevalue(request.param)
    connected = Server(postgres.fresh_database())
    yield connected
    connected.close()


@OFTEN
@given(values=TEXTS)
def test_texts_arrive_as_they_are(server: Server, values: list[str | None]) -> None:
    assert server.read("text", texts(values)) == values


@OFTEN
@given(values=st.lists(st.none() | SMALL))
def test_numbers_arrive_as_they_are(server: Server, values: list[int | None]) -> None:
    assert server.read("integer", numbers(values)) == values


@OFTEN
@given(values=st.lists(st.none() | LARGE))
def test_large_numbers_arrive_as_they_are(server: Server, values: list[int | None]) -> None:
    assert server.read("bigint", numbers(values)) == values


@OFTEN
@given(values=st.lists(st.none() | FLOATS))
def test_fractions_arrive_as_they_are(server: Server, values: list[float | None]) -> None:
    assert server.read("float8", numbers(values)) == values


@OFTEN
@given(values=st.lists(st.booleans()))
def test_booleans_arrive_as_they_are(server: Server, values: list[bool]) -> None:
    assert server.read("boolean", booleans(values)) == values


@OFTEN
@given(values=st.lists(st.uuids()))
def test_ids_arrive_as_they_are(server: Server, values: list[Any]) -> None:
    assert server.read("uuid", uuids(values)) == values


@pytest.mark.parametrize(
    ("type_", "literal"),
    [
        ("integer", numbers([2**31])),
        ("integer", numbers([-(2**31) - 1])),
        ("bigint", numbers([2**63])),
        ("bigint", numbers([1.5])),
        ("integer", numbers([True])),
        ("text", texts(["\0"])),
        ("text", texts(["\ud800"])),
    ],
)
def test_what_the_column_cannot_hold_is_refused_and_not_bent(server: Server, type_: str, literal: str) -> None:
    with pytest.raises(asyncpg.DataError):
        server.read(type_, literal)


@pytest.mark.parametrize("column", [texts, numbers, booleans, uuids])
def test_nothing_is_an_array_of_nothing(column: Any) -> None:
    assert column([]) == "{}"


async def test_nothing_is_not_taken_for_a_word_where_the_server_is_told_to(embedded18: servers.Server) -> None:
    dsn = embedded18.fresh_database()
    careless = await asyncpg.connect(dsn)
    await careless.execute(
        f'ALTER DATABASE "{await careless.fetchval("SELECT current_database()")}" SET array_nulls = off'
    )
    await careless.close()
    database = await connect(dsn, connections=1)
    async with database.owning() as connection:
        rows = await connection.fetch("SELECT e FROM unnest($1::text::text[]) AS e", texts([None, "NULL"]))
    await database.close()
    assert [row["e"] for row in rows] == [None, "NULL"]
