"""Square's dialect."""
