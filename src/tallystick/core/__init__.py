"""Decisions: pure functions from facts to what happens next. No I/O, no clock, no randomness."""
