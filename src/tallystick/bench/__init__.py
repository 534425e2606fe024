"""Benches: each measures a figure beside its baseline in the same run, on the same server, and checks the books."""
