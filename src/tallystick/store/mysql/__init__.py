"""MariaDB (10.11 or newer) and MySQL (8.0.21 or newer) under the engine.

The ledger only: tenants, accounts, operations. The same rules hold as on PostgreSQL, but not all are held by
the same hand:

    by the database on both     one outcome per key, one closing, solvency, the running balance, history that is
                                never changed, foreign keys between rows of one tenant
    here by code and `verify`   conservation: a trigger sees one row, never the whole transaction
                                a placeholder is filled or deleted before COMMIT (`operation`)
                                tenants are walls for reads too: there is no row-level security
                                nobody may TRUNCATE: no trigger sees it; withhold DROP from the user

`verify` checks each of these against the rows.
"""
