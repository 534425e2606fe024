"""Keys: which name an effect carries, so that doing it twice is seen to be the same. Pure."""
