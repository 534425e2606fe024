"""Paying an order: once, however often its buyer clicks."""
