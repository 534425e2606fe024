"""Providers: one port, its adapters (Stripe, Adyen, Square, Wise), and a hostile simulator of all four."""
