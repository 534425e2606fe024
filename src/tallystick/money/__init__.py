"""Money: amounts in micros, and the currencies there are. Pure."""
