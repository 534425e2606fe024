"""DBOS: every transfer is a workflow under the caller's key, with one datasource transaction in it.

Called as its documentation does: synchronous functions, a thread per caller, `SetWorkflowID` for the key. The
workflow's own checkpoints are in the figures: they are what its users come for, and what they pay.
"""

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource, run_dbos_database_migrations
from sqlalchemy import text

from bench.load import Driven, drive, make_tables
from tallystick.errors import require
from tallystick.ledger.kinds import Operation, Transfer
from tallystick.ledger.outcome import Committed, Duplicate, Outcome

# 4 and 16 came out alike and 64 slower: a workflow takes some 10 ms of Python's time, so more only queue for that.
CALLERS = 16
# A twin is a second thread of its caller. Each may hold a connection of both pools.
THREADS = 2 * CALLERS

SCHEMA = Path(__file__).with_name("dbos.sql").read_text(encoding="utf-8")
BOOKS = """
    SELECT (SELECT sum(balance_micros) FROM peer.account), (SELECT count(*) FROM peer.entry),
           (SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS')
"""

# The UPDATE alone would lock in the order of its plan, and deadlock.
LOCK = text("SELECT FROM peer.account WHERE id IN (:debit, :credit) ORDER BY id FOR NO KEY UPDATE")
MOVE = text("""
    WITH moved AS (
        UPDATE peer.account a SET balance_micros = a.balance_micros + leg.amount_micros
          FROM (VALUES (:debit, -CAST(:amount_micros AS bigint)), (:credit, CAST(:amount_micros AS bigint)))
               AS leg (id, amount_micros)
         WHERE a.id = leg.id
        RETURNING a.id, leg.amount_micros, a.balance_micros
    )
    INSERT INTO peer.entry (operation_key, account, amount_micros, balance_micros)
    SELECT :key, id, amount_micros, balance_micros FROM moved
""")


async def prepare(dsn: str, accounts: list[str]) -> None:
    """Its own tables beside the application's: one database, so that every commit is counted."""
    await make_tables(dsn, SCHEMA, accounts)
    await asyncio.to_thread(run_dbos_database_migrations, dsn)
    await asyncio.to_thread(SQLAlchemyDatasource.migrate, dsn)


async def run(dsn: str, accounts: list[str], *, seconds: float, seed: int) -> Driven:
    """Only in a process of its own: DBOS takes over the loop's executor and shuts it down at the end."""
    DBOS(config={"name": "peer", "system_database_url": dsn, "sys_db_pool_size": THREADS, "log_level": "ERROR"})
    datasource = SQLAlchemyDatasource.create(dsn, engine_kwargs={"pool_size": THREADS, "max_overflow": 0})

    def move(key: str, debit: str, credit: str, amount_micros: int, submission: int) -> int:
        leg = {"key": key, "debit": debit, "credit": credit, "amount_micros": amount_micros}
        session = datasource.sql_session()
        session.execute(LOCK, leg)
        require(session.execute(MOVE, leg).rowcount == 2, f"no account {debit} or {credit}")
        return submission

    # Its default is SERIALIZABLE. The rows are locked first, so this is as safe, and spares it the retries.
    step = datasource.transaction(isolation_level="READ COMMITTED")(move)

    def transfer(key: str, debit: str, credit: str, amount_micros: int, submission: int) -> int:
        return int(step(key, debit, credit, amount_micros, submission))

    workflow = DBOS.workflow()(transfer)

    def call(operation: Transfer, key: str, submission: int) -> int:
        with SetWorkflowID(key):
            return int(workflow(key, operation.debit, operation.credit, operation.amount_micros, submission))

    DBOS.launch()
    submissions = itertools.count()
    loop = asyncio.get_running_loop()
    try:
        with ThreadPoolExecutor(THREADS) as threads:

            async def submit(operation: Operation, key: str) -> Outcome:
                if not isinstance(operation, Transfer):
                    raise TypeError(operation)
                # DBOS does not say whether it replayed; the answer names the submission that ran.
                submission = next(submissions)
                ran = await loop.run_in_executor(threads, call, operation, key, submission)
                return (Committed if ran == submission else Duplicate)(b"%d" % ran)

            return await drive(submit, accounts, callers=CALLERS, seconds=seconds, seed=seed)
    finally:
        datasource.engine.dispose()
        DBOS.destroy()
