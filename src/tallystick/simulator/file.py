"""One SQLite file, and when what is in it may be told to a client.

Everything a request changes runs in the current transaction; one commit per turn of the event loop covers all
requests of that turn, and only then do their replies leave. So a client was never told what a SIGKILL can undo.
`synchronous=NORMAL` is enough for that: a commit is in the file's WAL, in the kernel's hands, when it returns;
only a power cut could lose it.

    request ─┐
    request ─┼─> transaction ─> commit (next turn) ─> what watches it ─> replies
    request ─┘      one that raises is rolled back: alone where it has a SAVEPOINT, else with its whole turn

New rows wait in memory until something is asked of the file or the turn ends, and are then written together: that
takes a third less than writing each by itself.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

# Rows that wait to be written: more gain nothing by being written together.
_MOST_UNWRITTEN: Final = 1_000


class File:
    """A connection with group commit. One thread."""

    def __init__(self, path: Path | str) -> None:
        # It holds the secrets that sign webhooks. SQLite gives the files beside it the same mode.
        Path(path).touch(mode=0o600)
        Path(path).chmod(0o600)
        self._connection = sqlite3.connect(path, timeout=0.2, isolation_level=None, cached_statements=512)
        # Two simulators on one file would issue the same ids: the second must fail at once.
        self._connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        # A checkpoint waits for the disk, and every client with it: rather few large ones (pages of 4 KB).
        self._connection.execute("PRAGMA wal_autocheckpoint=16000")
        self._connection.execute("PRAGMA cache_size=-65536")
        # Savepoints keep the pages they may have to put back: in memory.
        self._connection.execute("PRAGMA temp_store=MEMORY")
        self._undone: sqlite3.Error | None = None
        self._waiting: list[Callable[[sqlite3.Error | None], None]] = []
        self._ending: asyncio.Handle | None = None
        # Whether a transaction was begun that we have not ended. SQLite ends one by itself, after an error of the disk.
        self._is_begun = False
        # By statement and by what each is found by; how many there ever were, and how many of those do not wait.
        self._unwritten: dict[str, dict[Hashable, tuple[Any, ...]]] = {}
        self._put = self._written = 0
        # Whether what is written belongs to a part that is undone by itself.
        self._is_alone = False
        # Rows that were changed by writing them, which is no change of the call that made it necessary.
        self._changed_late = 0
        # Called before the commit of each turn: what was gathered for it can be written.
        self.before_commit: Callable[[], None] = lambda: None
        # Called first after each turn: at that moment the file holds nothing that is not committed.
        self.watch: Callable[[sqlite3.Error | None], None] = lambda _error: None

    def close(self) -> None:
        """Commit what is open, then close. Whoever waits for the end of the turn is not told."""
        if self._ending is not None:
            self._ending.cancel()
        self.before_commit()
        self._notice_loss()
        self.commit()
        self._connection.close()

    def execute(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> sqlite3.Cursor:
        """Run one statement in the current transaction, which it opens if there is none."""
        if not self._connection.in_transaction:
            self._begin()
        if self._unwritten:
            self._write()
        return self._connection.execute(sql, values)

    def read(self, sql: str, values: Sequence[Any]) -> sqlite3.Cursor:
        """Ask, in the current transaction if there is one; without opening one."""
        self._notice_loss()
        if self._unwritten:
            self._write()
        return self._connection.execute(sql, values)

    def put(self, sql: str, key: Hashable, values: tuple[Any, ...]) -> None:
        """Have a row written in the current transaction, before anything else is done in it.

        One with the same key that still waits is replaced. A row that cannot be written undoes the turn.
        """
        if not self._connection.in_transaction:
            self._begin()
        rows = self._unwritten.get(sql)
        if rows is None:
            rows = self._unwritten[sql] = {}
        rows[key] = values
        self._put += 1
        if self._put - self._written >= _MOST_UNWRITTEN:
            self._write()

    def unwritten(self, sql: str, key: Hashable) -> tuple[Any, ...] | None:
        """The row that waits under this key; None: it was written, or there is none."""
        rows = self._unwritten.get(sql)
        return None if rows is None else rows.get(key)

    def read_written(self, sql: str, values: Sequence[Any]) -> sqlite3.Cursor:
        """`read` for who has looked among the unwritten himself: they go on waiting."""
        return self._connection.execute(sql, values)

    def _begin(self) -> None:
        self._notice_loss()
        self._connection.execute("BEGIN IMMEDIATE")
        self._is_begun = True

    def _notice_loss(self) -> None:
        if self._is_begun and not self._connection.in_transaction:
            # Whoever met the error need not have been one of the turn's calls. Theirs is what was lost, and what waits.
            self._is_begun = False
            self._take_unwritten()
            self._undone = self._undone or sqlite3.OperationalError("SQLite has ended the transaction")
            self.forget_what_was_read()

    def _write(self) -> None:
        unwritten = self._take_unwritten()
        before = self._connection.total_changes
        try:
            for sql, rows in unwritten.items():
                self._connection.executemany(sql, rows.values())
        except sqlite3.Error as error:
            self._not_written(error)
            raise
        except (OverflowError, ValueError) as error:
            # A number that is too large for SQLite, or text that UTF-8 cannot hold: no error of SQLite's.
            failed = sqlite3.DataError(f"{type(error).__name__}: {error}")
            self._not_written(failed)
            raise failed from error
        self._changed_late += self._connection.total_changes - before

    def _not_written(self, error: sqlite3.Error) -> None:
        if not self._is_alone:
            # They are of any of the turn's calls, and some of them are missing.
            self._roll_back()
            self._undone = error
            self.forget_what_was_read()

    def _take_unwritten(self) -> dict[str, dict[Hashable, tuple[Any, ...]]]:
        unwritten, self._unwritten = self._unwritten, {}
        self._written = self._put
        return unwritten

    def _roll_back(self) -> None:
        self._take_unwritten()
        self._connection.rollback()
        self._is_begun = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A part of the transaction that is undone if it raises; its neighbours stay."""
        self.execute("SAVEPOINT alone")
        self._is_alone = True
        try:
            yield
            if self._unwritten:
                self._write()
        except BaseException as error:
            self._take_unwritten()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO alone")
                self._connection.execute("RELEASE alone")
            self._failed(error)
            raise
        finally:
            self._is_alone = False
        self._connection.execute("RELEASE alone")

    @property
    def changes(self) -> int:
        """How many rows were changed so far; for `undo_turn`."""
        return self._connection.total_changes - self._changed_late + self._put

    def undo_turn(self, changes: int, error: BaseException) -> None:
        """Something failed halfway that had no savepoint of its own: what it changed goes, and the turn with it.

        All of the turn are told so, those that come after it too. If it has changed nothing since `changes`, neither
        do we; but SQLite may have.
        """
        if self.changes == changes:
            self._failed(error)
            return
        self._roll_back()
        self._undone = sqlite3.OperationalError(f"undone together with a call that failed: {type(error).__name__}")
        self.forget_what_was_read()

    def execute_alone(self, sql: str, *rows: Sequence[Any]) -> None:
        """`alone` for one statement, which SQLite undoes by itself: without the savepoint.

        Of several rows, those before the one that failed stay.
        """
        try:
            if not self._connection.in_transaction:
                self._begin()
            if self._unwritten:
                self._write()
            self._connection.executemany(sql, rows)
        except BaseException as error:
            self._failed(error)
            raise

    def _failed(self, error: BaseException) -> None:
        if not self._connection.in_transaction and isinstance(error, sqlite3.Error):
            # A full disk ends the whole transaction: the neighbours are undone as well, and must not be told else.
            # What still waits is theirs, and would now be written without a transaction that can be undone.
            self._roll_back()
            self._undone = error
        self.forget_what_was_read()

    def after_commit(self, callback: Callable[[sqlite3.Error | None], None]) -> None:
        """Call back when everything up to now is safe, or with the error that undid it.

        All of one turn of the event loop share one commit. Called from the commit itself: work that comes after it
        belongs to the next.
        """
        self.end_turn()
        self._waiting.append(callback)

    def end_turn(self) -> None:
        """Commit at the end of this turn of the event loop, even if nobody waits for it."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().call_soon(self._end_turn)

    def committed(self) -> asyncio.Future[None]:
        """Done when everything up to now is safe."""
        future = asyncio.get_running_loop().create_future()

        def tell(error: sqlite3.Error | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.after_commit(tell)
        return future

    def commit(self) -> None:
        """Make everything up to now safe, at once."""
        if self._unwritten:
            self._write()
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
            self._is_begun = False

    def _end_turn(self) -> None:
        self.before_commit()
        self._notice_loss()
        waiting, self._waiting = self._waiting, []
        failed, self._undone = self._undone, None
        self._ending = None
        try:
            if failed is None:
                self.commit()
        except sqlite3.Error as error:
            failed = error
        if failed is not None:
            # With what came after it: nothing stays of which somebody is told that it failed.
            self._roll_back()
            # The failed write of what waited said so too.
            self._undone = None
            self.forget_what_was_read()
        self.watch(failed)
        for callback in waiting:
            callback(failed)

    def forget_what_was_read(self) -> None:
        """Called when something was rolled back: what is held in memory may no longer be what is stored."""
