"""Four ways in which a database comes back as it was.

    base      pg_basebackup of the running server, started plainly: no recovery.signal, the same timeline
    files     a copy of the files of the stopped server
    dump      pg_dump, and pg_restore --clean into the very same database
    rollback  the rows and sequences of every table put back inside the running server: the same start, the same oids,
              and whoever is connected stays so, as when a machine is rolled back with its memory

None of them changes a row by hand: what was there at the backup is there again.
"""

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Literal

import asyncpg

from tests import servers
from tests.clocks import Movable

Kind = Literal["base", "files", "dump", "rollback"]
KINDS: Final[tuple[Kind, ...]] = ("base", "files", "dump", "rollback")

_TABLES = """
SELECT c.relname AS name, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) AS columns
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                                     AND a.attgenerated = ''
 WHERE c.relnamespace = 'tally'::regnamespace AND c.relkind = 'r' GROUP BY c.relname ORDER BY 1
"""
_SEQUENCES = "SELECT sequencename AS name, last_value AS value FROM pg_sequences WHERE schemaname = 'tally'"


async def backed_up(server: Movable, dsn: str, kind: Kind) -> Callable[[], Awaitable[None]]:
    """Take a backup now. What is returned brings it to life: for `base` and `files` nobody may be connected."""
    taken = {"base": _base, "files": _files, "dump": _dump, "rollback": _rollback}[kind]
    return await taken(server, dsn)


async def _base(server: Movable, _dsn: str) -> Callable[[], Awaitable[None]]:
    folder = server.folder / "base"
    servers._private(folder, server._account)
    address = f"host={server._sockets} port=5432 user=postgres"
    server._run("pg_basebackup", "-d", address, "-D", str(folder), "-X", "stream", "-c", "fast")

    async def restore() -> None:
        assert (folder / "backup_label").exists()
        assert not (folder / "recovery.signal").exists()
        assert not (folder / "standby.signal").exists()
        server.stop(immediate=True)
        server.replace_data(folder)
        server.start()

    return restore


async def _files(server: Movable, _dsn: str) -> Callable[[], Awaitable[None]]:
    folder = server.folder / "files"
    server.stop()
    _copy(server._data, folder)
    server.start()

    async def restore() -> None:
        server.stop(immediate=True)
        server.replace_data(folder)
        server.start()

    return restore


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True)
    for of, made in [(source, target), *((one, target / one.relative_to(source)) for one in source.rglob("*"))]:
        owner = of.lstat()
        os.chown(made, owner.st_uid, owner.st_gid, follow_symlinks=False)


async def _dump(server: Movable, dsn: str) -> Callable[[], Awaitable[None]]:
    target = server.folder / "dump"
    servers._private(target, server._account)
    name = dsn.split("@/")[1].split("?", maxsplit=1)[0]
    address = f"host={server._sockets} port=5432 user=postgres dbname={name}"
    server._run("pg_dump", "-d", address, "-Fc", "-f", str(target / "file"))
    before = await _rows(server, name)

    async def restore() -> None:
        try:
            server._run("pg_restore", "-d", address, "--clean", "--if-exists", str(target / "file"))
        except RuntimeError as error:
            # It cannot drop the keys of partitions one by one, says so, and drops them with their tables.
            if str(error).count("could not execute query") != str(error).count("cannot drop inherited"):
                raise
        assert await _rows(server, name) == before

    return restore


async def _rows(server: Movable, database: str) -> dict[str, int]:
    """How many each table has."""
    connection = await asyncpg.connect(server.dsn(database, user="postgres"))
    try:
        tables = [row["name"] for row in await connection.fetch(_TABLES)]
        return {name: await connection.fetchval(f"SELECT count(*) FROM tally.{name}") for name in tables}
    finally:
        await connection.close()


async def _rollback(server: Movable, dsn: str) -> Callable[[], Awaitable[None]]:
    connection = await asyncpg.connect(server.dsn(dsn.split("@/")[1].split("?", maxsplit=1)[0], user="postgres"))
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        tables = await connection.fetch(_TABLES)
        kept: dict[str, bytes] = {}
        for table in tables:
            parts: list[bytes] = []
            query = f"SELECT {table['columns']} FROM tally.{table['name']}"

            async def keep(data: bytes, parts: list[bytes] = parts) -> None:
                parts.append(data)

            await connection.copy_from_query(query, output=keep, format="binary")
            kept[table["name"]] = b"".join(parts)
        sequences = await connection.fetch(_SEQUENCES)

    async def restore() -> None:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            for table in await connection.fetch(_TABLES):
                await connection.execute(f"DELETE FROM tally.{table['name']}")
            for table in tables:
                await connection.copy_to_table(
                    table["name"],
                    schema_name="tally",
                    columns=[column.strip('"') for column in table["columns"].split(", ")],
                    source=_stream(kept[table["name"]]),
                    format="binary",
                )
            for sequence in sequences:
                used = sequence["value"] is not None
                await connection.execute(
                    "SELECT setval(format('tally.%I', $1::text)::regclass, $2, $3)",
                    sequence["name"],
                    sequence["value"] or 1,
                    used,
                )
        await connection.close()

    return restore


async def _stream(data: bytes) -> Any:
    yield data
