"""Guessed keys: what they cost others, and how soon they are told to stop."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import asyncpg
import httpx2
import pytest
import pytest_asyncio

from tallystick import app
from tallystick.access import store as tenant
from tallystick.access.store import Access, new_key
from tallystick.database.pool import Database
from tallystick.errors import TooManyGuesses
from tallystick.http.access import Doorkeeper, Need
from tallystick.http.address import caller_address, share_of
from tallystick.http.api import build
from tallystick.http.guesses import Guesses
from tallystick.http.server import serve
from tallystick.ledger.outcome import Rejected
from tallystick.settings import LIMITS, Settings
from tests import servers

PATIENCE_SECONDS = 8 if "TALLY_TEST_PLANT" in os.environ else 30


def comes_from(address: str) -> dict[str, Any]:
    return {"client": (address, 1), "headers": []}


async def test_an_address_may_guess_so_often_and_then_waits(embedded18: servers.Server) -> None:
    limits = replace(LIMITS, guesses=3)
    async with app.running(Settings(database_url=embedded18.fresh_database())) as service:
        owner = await tenant.ensure_tenant(service.database, "default")
        key = new_key().encode()
        await tenant.add_key(service.database, owner, "viewer", key.decode())
        doorkeeper = Doorkeeper(service.database, limits=limits)
        guesser = comes_from("10.0.0.1")
        for _ in range(3):
            assert isinstance(await doorkeeper.admit([b"Bearer " + new_key().encode()], Need.READ, guesser), Rejected)
        with pytest.raises(TooManyGuesses) as told:
            await doorkeeper.admit([b"Bearer " + new_key().encode()], Need.READ, guesser)
        assert told.value.retry_after_seconds == 1
        # Others are not counted with him; and who is known is known, wherever he comes from.
        assert isinstance(await doorkeeper.admit([b"Bearer " + key], Need.READ, comes_from("10.0.0.2")), Access)
        assert isinstance(await doorkeeper.admit([b"Bearer " + key], Need.READ, guesser), Access)
        doorkeeper._known[key] = doorkeeper._known[key]._replace(until=0.0)
        assert isinstance(await doorkeeper.admit([b"Bearer " + key], Need.READ, guesser), Access)


async def test_a_wrong_checksum_is_not_looked_up(embedded18: servers.Server) -> None:
    async with app.running(Settings(database_url=embedded18.fresh_database())) as service:
        doorkeeper = Doorkeeper(service.database, limits=replace(LIMITS, guesses=1))
        await service.database.close()
        for number in range(10):
            wrong = new_key().encode()[:-1] + b"!"
            assert isinstance(await doorkeeper.admit([b"Bearer " + wrong], Need.READ, comes_from("10.0.0.1")), Rejected)
            assert not doorkeeper._lookups, number
        assert service.database._idle == []


async def test_a_key_of_before_is_as_good_as_ever(embedded18: servers.Server) -> None:
    async with app.running(Settings(database_url=embedded18.fresh_database())) as service:
        owner = await tenant.ensure_tenant(service.database, "default")
        old = "tsk_" + "o" * 43
        await tenant.add_key(service.database, owner, "viewer", old)
        doorkeeper = Doorkeeper(service.database)
        assert isinstance(await doorkeeper.admit([b"Bearer " + old.encode()], Need.READ), Access)


def test_what_is_left_grows_again_and_is_bounded() -> None:
    guesses = Guesses(limits=replace(LIMITS, guesses=2, guesses_per_second=0.5, guessers=2))
    for _ in range(2):
        assert guesses.wait_seconds("a", 0.0) == 0
        guesses.spend("a", 0.0)
    assert guesses.wait_seconds("a", 0.0) == 2
    assert guesses.wait_seconds("a", 1.0) == 1
    assert guesses.wait_seconds("a", 2.0) == 0
    guesses.spend("b", 2.0)
    guesses.spend("c", 2.0)
    assert len(guesses._left) == 2
    guesses.give_back("b")
    assert guesses.wait_seconds("b", 2.0) == 0


PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("client", "forwarded", "proxies", "found"),
    [
        ("192.0.2.1", [], PROXIES, "192.0.2.1"),
        # Nobody else is believed.
        ("192.0.2.1", [b"198.51.100.1"], PROXIES, "192.0.2.1"),
        ("10.0.0.1", [b"198.51.100.1"], (), "10.0.0.1"),
        ("10.0.0.1", [b"198.51.100.1"], PROXIES, "198.51.100.1"),
        # What the caller himself wrote stands before it.
        ("10.0.0.1", [b"203.0.113.9, 198.51.100.1"], PROXIES, "198.51.100.1"),
        ("10.0.0.1", [b"203.0.113.9", b"198.51.100.1, 10.0.0.2"], PROXIES, "198.51.100.1"),
        ("10.0.0.1", [b"10.0.0.3"], PROXIES, "10.0.0.3"),
        ("10.0.0.1", [b"not an address"], PROXIES, "not an address"),
        ("fd00::1", [b"2001:db8:1:2:3:4:5:6"], PROXIES, "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", [], (), "192.0.2.1"),
    ],
)
def test_whom_a_request_comes_from(client: str, forwarded: list[bytes], proxies: Any, found: str) -> None:
    headers = [(b"x-forwarded-for", value) for value in forwarded]
    assert caller_address({"client": (client, 1), "headers": headers}, proxies) == found


@pytest.mark.parametrize(
    ("one", "other", "is_shared"),
    [
        (("192.0.2.1", 1), ("192.0.2.1", 2), True),
        (("192.0.2.1", 1), ("192.0.2.2", 2), False),
        # Whoever has one address of a network has all.
        (("2001:db8:1:2::3", 1), ("2001:db8:1:2:ffff::4", 2), True),
        (("2001:db8:1:2::3", 1), ("2001:db8:1:3::3", 2), False),
        (("::ffff:192.0.2.1", 1), ("192.0.2.1", 2), True),
        # A proxy of ours speaks for somebody else each time.
        (("10.0.0.1", 1), ("10.0.0.1", 2), False),
        (("::ffff:10.0.0.1", 1), ("::ffff:10.0.0.1", 2), False),
        (("fd00::1", 1), ("fd00::1", 2), False),
    ],
)
def test_whose_share_a_connection_is_of(one: tuple[str, int], other: tuple[str, int], *, is_shared: bool) -> None:
    assert (share_of(one, PROXIES) == share_of(other, PROXIES)) is is_shared


class Place:
    def __init__(self, dsn: str, port: int, key: str, other_key: str) -> None:
        self.dsn = dsn
        self.url = f"http://127.0.0.1:{port}"
        self.key = {"authorization": f"Bearer {key}"}
        self.other_key = {"authorization": f"Bearer {other_key}"}


async def rows(dsn: str, statement: str) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()


@pytest_asyncio.fixture
async def place(embedded18: servers.Server) -> AsyncIterator[Place]:
    dsn = embedded18.fresh_database()
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with app.running(Settings(database_url=dsn)) as service:
        keys = {name: new_key() for name in ("default", "other")}
        for name, key in keys.items():
            await tenant.add_key(service.database, await tenant.ensure_tenant(service.database, name), "viewer", key)
        serving = asyncio.create_task(
            serve(build(service), "127.0.0.1", 0, on_listening=lambda _host, port: listening.set_result(port))
        )
        yield Place(dsn, await listening, *keys.values())
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


@contextlib.asynccontextmanager
async def keys_locked(dsn: str) -> AsyncIterator[None]:
    """Whoever looks a key up waits: as a database does that has more to do than it can."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE tally.api_key IN ACCESS EXCLUSIVE MODE")
            yield
    finally:
        await connection.close()


async def test_health_and_known_callers_wait_for_no_guesses(place: Place) -> None:
    """More guesses than there ever were connections for reads, and none of them is answered."""
    async with httpx2.AsyncClient(timeout=PATIENCE_SECONDS, limits=httpx2.Limits(max_connections=200)) as client:
        assert (await client.get(f"{place.url}/v1/accounts", headers=place.key)).status_code == 200
        async with keys_locked(place.dsn):
            guessing = [
                asyncio.create_task(
                    client.get(f"{place.url}/v1/accounts", headers={"authorization": f"Bearer {new_key()}"})
                )
                for _ in range(LIMITS.guesses)
            ]
            async with (
                asyncpg.create_pool(place.dsn, min_size=1, max_size=1) as pool,
                asyncio.timeout(PATIENCE_SECONDS),
            ):
                waiting = (
                    "SELECT count(*) FROM pg_stat_activity "
                    "WHERE wait_event_type = 'Lock' AND datname = current_database()"
                )
                while not await pool.fetchval(waiting):
                    await asyncio.sleep(0.01)
                assert await pool.fetchval(waiting) == LIMITS.key_readers
            assert (await client.get(f"{place.url}/readyz")).status_code == 200
            assert not any(task.done() for task in guessing)
        answers = [task.status_code for task in await asyncio.gather(*guessing)]
        # A look-up that waited for half a second was given up by the server.
        assert set(answers) <= {401, 503}


async def test_a_guesser_is_told_to_stop_and_a_caller_with_a_key_is_not(place: Place) -> None:
    async with httpx2.AsyncClient(timeout=PATIENCE_SECONDS) as client:
        answers = []
        for number in range(2 * LIMITS.guesses):
            guess = {"authorization": f"Bearer {new_key()}"}
            answers.append(await client.get(f"{place.url}/v1/accounts", headers=guess))
            known = await client.get(f"{place.url}/v1/accounts", headers=place.key)
            assert known.status_code == 200, number
        assert {answer.status_code for answer in answers[: LIMITS.guesses]} == {401}
        stopped = [answer for answer in answers if answer.status_code == 429]
        assert stopped
        assert stopped[0].json()["code"] == "too_many_guesses"
        assert int(stopped[0].headers["retry-after"]) >= 1


async def test_slow_lists_of_one_tenant_leave_the_others_a_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them at once than all connections for reads; the other tenant's list does not wait for one of them."""
    reading, go_on = asyncio.Semaphore(0), asyncio.Event()
    original = Database.reading
    owners = {row["name"]: row["tenant_id"] for row in await rows(place.dsn, "SELECT * FROM tally.tenant")}

    @contextlib.asynccontextmanager
    async def slowly(self: Database, tenant_number: int) -> AsyncIterator[Any]:
        async with original(self, tenant_number) as connection:
            if tenant_number == owners["default"]:
                reading.release()
                await go_on.wait()
            yield connection

    monkeypatch.setattr(Database, "reading", slowly)
    async with httpx2.AsyncClient(timeout=PATIENCE_SECONDS, limits=httpx2.Limits(max_connections=200)) as client:
        lists = [
            asyncio.create_task(client.get(f"{place.url}/v1/accounts", headers=place.key))
            for _ in range(2 * LIMITS.readers)
        ]
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(LIMITS.readers_per_tenant):
                await reading.acquire()
            answer = await client.get(f"{place.url}/v1/accounts", headers=place.other_key)
        assert answer.status_code == 200
        assert not any(task.done() for task in lists)
        go_on.set()
        assert {task.status_code for task in await asyncio.gather(*lists)} == {200}
