"""Stripe: charges, refunds, transfers to connected accounts and payouts to bank accounts, over its v1 API."""

from tallystick.providers.stripe.account import StripeAccount
from tallystick.providers.stripe.adapter import Stripe

__all__ = ["Stripe", "StripeAccount"]
