"""Payments are ended at the provider before their order is swept."""
