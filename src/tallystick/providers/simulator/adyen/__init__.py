"""Adyen's dialect."""
