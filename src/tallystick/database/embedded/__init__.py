"""The embedded PostgreSQL: one server per home, shared by every tally process of one user."""
