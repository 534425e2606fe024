"""A database that has no connection left, and one whose disk is really full: told plainly, and over by itself."""

import asyncio
import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import asyncpg
import httpx2
import pytest

import tallystick
from tallystick import Committed, Duplicate, Transfer, app
from tallystick.access import store as tenant
from tallystick.errors import OutcomeUnknown, Unreachable
from tallystick.http.api import build
from tallystick.http.server import serve
from tallystick.settings import LIMITS, Settings
from tests import servers
from tests.cli.commands import tally
from tests.ledgers import broken, ledger
from tests.servers import cannot_be_tested
from tests.settlements import superuser

PATIENCE_SECONDS = 60
# Of the commands' exit statuses.
OUT_OF_REACH = 3
KEPT = UUID("00000000-0000-4000-8000-000000000001")
FULL = (
    "database_unreachable: the database's disk is full: could not [^\n]+: No space left on device. Nothing was "
    "recorded and no money moved. Send the same request with the same key once the database is back."
)
END_OTHERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = $1"


@contextlib.asynccontextmanager
async def used_up(dsn: str) -> AsyncIterator[None]:
    """Not one connection more is to be had."""
    taken = []
    try:
        while True:
            try:
                taken.append(await asyncpg.connect(dsn))
            except asyncpg.TooManyConnectionsError:
                break
        yield
    finally:
        for connection in taken:
            connection.terminate()


@contextlib.asynccontextmanager
async def served(dsn: str) -> AsyncIterator[tuple[str, dict[str, str]]]:
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with app.running(Settings(database_url=dsn)) as service:
        key = tenant.new_key()
        await tenant.add_key(service.database, await tenant.ensure_tenant(service.database, "default"), "admin", key)
        serving = asyncio.create_task(
            serve(build(service), "127.0.0.1", 0, on_listening=lambda _host, port: listening.set_result(port))
        )
        yield f"http://127.0.0.1:{await listening}", {"authorization": f"Bearer {key}"}
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def test_a_server_without_a_connection_left_is_told_and_got_over(embedded18: servers.Server) -> None:
    """Others took all of them, and ours were ended: as after a restart of the server that they noticed sooner."""
    dsn = embedded18.fresh_database()
    async with served(dsn) as (url, headers), httpx2.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        assert (await client.put("/v1/accounts/a", json={"currency": "USD"})).status_code == 201
        other = embedded18.fresh_database()
        ender = await asyncpg.connect(other)
        name = await (await asyncpg.connect(dsn)).fetchval("SELECT current_database()")
        async with used_up(other):
            await ender.execute("SELECT 1")
            await ender.fetch(END_OTHERS, name)
            async with used_up(other):
                read = await client.get("/v1/accounts/a")
                assert (read.status_code, read.json()["code"]) == (503, "database_unreachable")
                assert read.json()["detail"] == "The database takes no more connections (max_connections)."
                assert int(read.headers["retry-after"]) >= 1
                give = {"kind": "transfer", "debit": "a", "credit": "b", "amount_micros": 1, "currency": "USD"}
                written = await client.post("/v1/operations", json=give, headers={"idempotency-key": "k"})
                assert (written.status_code, written.json()["code"]) == (503, "database_unreachable")
                ready = await client.get("/readyz?verbose")
                assert ready.status_code == 503
                (check,) = [each for each in ready.json()["checks"] if each["name"] == "database"]
                assert check["detail"] == "takes no more connections (max_connections)"
                assert (await client.get("/livez")).status_code == 200
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
        assert (await client.get("/v1/accounts/a")).status_code == 200
        assert (await client.put("/v1/accounts/b", json={"currency": "USD"})).status_code == 201
        await ender.close()


@pytest.mark.parametrize("command", ["verify", "serve"])
async def test_a_command_that_gets_no_connection_says_so_in_a_sentence(
    embedded18: servers.Server, tmp_path: Path, command: str
) -> None:
    dsn = embedded18.fresh_database()
    async with used_up(dsn):
        place = {"TALLY_HOME": str(tmp_path), "TALLY_PORT": "0", "TALLY_PROVIDER": "simulator"}
        shown = await asyncio.to_thread(tally, command, dsn=dsn, **place)
    assert shown.returncode == OUT_OF_REACH, shown.stderr
    assert shown.stdout == ""
    *before, sentence = shown.stderr.splitlines()
    assert sentence.startswith("tally: database_unreachable: "), shown.stderr
    assert "too many clients" in sentence or "connection slots" in sentence, sentence
    assert all(line.startswith("database: ") for line in before), shown.stderr


# What the server checks at COMMIT finds no room: the transaction was all right until then.
NO_ROOM_AT_COMMIT = """
CREATE FUNCTION public.full_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE disk_full USING MESSAGE = 'could not extend file: No space left on device';
END $$;
CREATE CONSTRAINT TRIGGER full_at_commit AFTER INSERT ON tally.operation DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION public.full_at_commit();
"""


async def test_a_commit_that_finds_no_room_is_in_doubt_and_never_called_committed(embedded18: servers.Server) -> None:
    """Whatever a COMMIT was answered with: only its success is one. The same key once more makes it once."""
    dsn = embedded18.fresh_database()
    give = Transfer(debit="a", credit="b", amount_micros=1, currency="USD")
    recorded = "SELECT count(*) FROM tally.operation WHERE convert_from(request, 'UTF8') LIKE '%transfer%'"
    async with ledger(dsn, limits=replace(LIMITS, outage_seconds=0.3)) as one:
        await one.account("a", 5)
        await one.account("b")
        async with superuser_of(dsn) as owner:
            await owner.execute(NO_ROOM_AT_COMMIT)
            with pytest.raises(OutcomeUnknown):
                await one.submit(give, "k")
            with pytest.raises(OutcomeUnknown):
                async with one.database.stepping() as connection:
                    await connection.execute(
                        "INSERT INTO tally.operation VALUES (1, $1, 'raw', '{}', '{}', now())", KEPT
                    )
            assert await owner.fetchval(recorded) == 0
            assert (await one.balance("a"), await one.balance("b")) == (5, 0)
            await owner.execute("DROP TRIGGER full_at_commit ON tally.operation")
            first, again = await one.submit(give, "k"), await one.submit(give, "k")
            assert isinstance(first, Committed), first
            assert isinstance(again, Duplicate), again
            assert await owner.fetchval(recorded) == 1
            assert await owner.fetchval("SELECT count(*) FROM tally.operation WHERE id = $1", KEPT) == 0
        assert (await one.balance("a"), await one.balance("b")) == (4, 1)
    assert await broken(dsn) == {}


@contextlib.asynccontextmanager
async def superuser_of(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(superuser(dsn))
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of its own, of 200 MB. Not below pytest's folders, which the server's user may not enter."""
    if os.geteuid() != 0:
        cannot_be_tested("mounting a small file system needs root")
    place = Path(tempfile.mkdtemp(prefix="tally-test-disk-"))
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=200m,mode=755", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    try:
        if mounted.returncode != 0:
            cannot_be_tested(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
        yield place
        subprocess.run(["/bin/umount", "--lazy", str(place)], check=True)
    finally:
        place.rmdir()


def fill(place: Path) -> Path:
    """Not one byte more fits."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return filler


async def test_a_full_disk_is_told_and_got_over_and_what_was_answered_is_there(small_disk: Path) -> None:
    async with tallystick.open(home=small_disk / "home") as tally:
        await tally.put_account("out", currency="USD", floor_micros=None)
        await tally.put_account("in", currency="USD")
        numbers = iter(range(1_000_000))
        committed: list[str] = []

        async def submit(key: str) -> None:
            give = Transfer(debit="out", credit="in", amount_micros=1, currency="USD", memo="m" * 200)
            outcome = await tally.submit(give, idempotency_key=key)
            assert isinstance(outcome, Committed | Duplicate), outcome
            committed.append(key)

        await submit(f"k{next(numbers)}")
        filler = fill(small_disk)
        failed = ""
        told: set[str] = set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not failed:
                batch = [f"k{next(numbers)}" for _ in range(500)]
                outcomes = await asyncio.gather(*(submit(key) for key in batch), return_exceptions=True)
                for key, outcome in zip(batch, outcomes, strict=True):
                    if outcome is not None:
                        assert isinstance(outcome, Unreachable | OutcomeUnknown), outcome
                        failed = key
                        told.add(str(outcome))
        # What the operator reads: which disk, the server's own words for where, and what to do.
        for sentence in told:
            assert re.fullmatch(FULL, sentence), sentence
        filler.unlink()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    await submit(failed)
                    break
                except (Unreachable, OutcomeUnknown):
                    await asyncio.sleep(0.1)
        account = await tally.account("in")
        for key in committed[:-1]:
            await submit(key)
        again = await tally.account("in")
        # Every one that was answered is there, once.
        assert not isinstance(account, tallystick.Rejected)
        assert again == account
        assert account.balance_micros >= len(set(committed))
