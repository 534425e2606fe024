"""The ledger: operations apply exactly once, on PostgreSQL, MariaDB and MySQL."""
