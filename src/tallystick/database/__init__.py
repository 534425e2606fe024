"""PostgreSQL itself: connections, migrations, roles, the embedded server, feeds, verify and explain."""
