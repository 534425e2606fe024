"""How an order stands, for those who ask and those who wait."""
