"""Square: takes payments and gives them back. It cannot pay third parties, and its payouts can only be read."""
