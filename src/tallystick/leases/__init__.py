"""Leases, when the database's clock was ahead and is set right."""
