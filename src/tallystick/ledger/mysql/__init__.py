"""MariaDB (10.11 or newer) and MySQL (8.0.21 or newer) under the engine.

The ledger only: tenants, accounts, operations. The same rules hold as on PostgreSQL, but not all are held by
the same hand:

    by the database on both     one outcome per key, one closing, solvency, a balance moves by its entries
                                alone, history is never changed, rows refer only to their own tenant's
    here by code and `verify`   conservation: a trigger sees one row, never the whole transaction
                                each running balance follows from the one before: the database checks the sum
                                journal and outbox: written by `operation`, not by a trigger
                                a placeholder is filled or deleted before COMMIT (`operation`)
    here by code alone          reads keep to their tenant: there is no row-level security
                                TRUNCATE: no trigger sees it, so withhold DROP from the user

`verify` checks against the rows what it can.
"""
