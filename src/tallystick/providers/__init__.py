"""Providers: one port, and its adapters: Stripe, Adyen, Square, Wise."""
