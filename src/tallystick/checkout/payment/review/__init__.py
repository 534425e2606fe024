"""A charge that nobody answers for: a person closes it, with his evidence."""
