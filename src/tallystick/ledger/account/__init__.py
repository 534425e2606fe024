"""Accounts: made, changed, read."""
