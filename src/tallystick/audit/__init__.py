"""The journal: who did it, and the digest of what was done. Pure."""
