"""Wise's dialect."""
