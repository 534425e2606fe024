"""A provider's books held against ours, both ways round."""
