"""Who may come in: tenants and their API keys."""
