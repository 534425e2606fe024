"""A paid order is given back, whole or in parts."""
