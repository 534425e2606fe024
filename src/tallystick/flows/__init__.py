"""Flows: gather, decide, record. Each leaves the deciding to `core` and the remembering to `store`."""
