"""Loops around flows. Each worker has `run_once`, which returns counts, and `run`, until told to stop."""
