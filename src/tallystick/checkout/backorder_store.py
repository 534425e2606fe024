"""Backorders on PostgreSQL: stock that is free again goes to those who paid for it and wait."""

from typing import Final

from tallystick import queries
from tallystick.database.pool import Database

_SQL: Final = queries.load(__package__, "backorder_store.sql")
_LOCK_STOCKS: Final = queries.load("tallystick.checkout.saga", "store.sql")["lock_stocks"]


async def fill(database: Database, most: int) -> int:
    """Give stock that is free again to those who paid for it and wait, the oldest first. How many were filled."""
    async with database.stepping() as connection:
        rows = await connection.fetch(_SQL["fillable"], most)
        places = sorted({(row["tenant_id"], row["sku"]) for row in rows})
        if not places:
            return 0
        locked = await connection.fetch(_LOCK_STOCKS, [tenant for tenant, _ in places], [sku for _, sku in places])
        free = {(row["tenant_id"], row["sku"]): row["available"] for row in locked}
        filled = []
        for row in rows:
            place = row["tenant_id"], row["sku"]
            if free[place] >= row["quantity"]:
                free[place] -= row["quantity"]
                filled.append((row["tenant_id"], row["id"]))
            else:
                # Who waits longest is not overtaken by a smaller wish.
                free[place] = 0
        if filled:
            await connection.fetch(_SQL["fill"], [tenant for tenant, _ in filled], [id_ for _, id_ in filled])
    return len(filled)
