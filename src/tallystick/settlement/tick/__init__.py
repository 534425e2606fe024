"""One tick: pays what is pending, recovers what is stuck."""
