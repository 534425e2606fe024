"""Stripe: charges, refunds, transfers to connected accounts and payouts to bank accounts, over its v1 API."""
