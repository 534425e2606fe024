"""Checkout: stock, orders, payments, the saga of what providers tell, refunds."""
