"""The simulator: an HTTP server that speaks four providers' APIs and misbehaves on demand.

It keeps durable books of its own, and shares no code with the adapters beyond the currency tables: a second
opinion must not repeat the first one's mistakes.
"""
