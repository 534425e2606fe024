"""The journal's digest of one step: what an auditor can recompute from the bytes that were kept. Pure."""

import hashlib

_DOMAIN = b"tallystick/journal/1"


def step_digest(tenant: str, subject: str, *contents: bytes) -> bytes:
    """SHA-256 over a length-prefixed list: shifting a byte from one part to the next gives another digest."""
    parts = [_DOMAIN]
    for part in (tenant.encode(), subject.encode(), *contents):
        parts.append(len(part).to_bytes(4, "big"))
        parts.append(part)
    return hashlib.sha256(b"".join(parts)).digest()
