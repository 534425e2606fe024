"""Which life of the database this is, and what that hints."""
