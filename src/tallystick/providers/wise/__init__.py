"""Wise: payouts to third parties out of a balance. It takes no payments, so there is nothing to charge or refund.

One transfer is four calls, each with its own rule: see wise.saga.
"""
