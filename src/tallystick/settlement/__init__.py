"""Settlement: payouts, paid exactly once."""
