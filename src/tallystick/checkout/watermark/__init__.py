"""The moment up to which everything that was received has been decided."""
