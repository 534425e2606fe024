"""Stripe's dialect."""
