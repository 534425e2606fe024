"""Giving a payment back, once, however long it takes."""
