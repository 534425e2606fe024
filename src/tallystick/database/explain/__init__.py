"""Explain: everything known of a key or an id, in the order it happened."""
