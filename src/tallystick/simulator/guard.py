"""Who may use the simulator: a person or a program that means the simulator itself. Pure.

There is no password, so two things keep other sites out of a person's browser:

    Host     must be an address of this simulator. A foreign name that was made to resolve to 127.0.0.1 (DNS
             rebinding) shows that name here.
    Origin   of a form must be this very page. Browsers always send it with a post; programs, which use /_sim/, send
             none.
"""

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from tallystick.simulator.dialect import Request


def refusal(request: Request, bound_host: str, *, is_form: bool) -> str | None:
    """Why the request is not answered, as a sentence; None: it is welcome."""
    host = request.headers.get("host", "")
    if not _is_own(host, bound_host):
        return _not_served_as(host)
    origin = request.headers.get("origin", "")
    if request.method in {"GET", "HEAD"} or not (origin or is_form):
        return None
    if origin.lower() != f"http://{host.lower()}":
        sent_by = repr(origin) if origin else "a page that does not say where it comes from"
        return f"This was sent by {sent_by}, and only the simulator's own page may send it. Nothing was changed."
    return None


def foreign_host(request: Request, bound_host: str) -> str | None:
    """Why a call of a dialect is not answered, as a sentence; None: it is. Who sends no Host is no browser."""
    host = request.headers.get("host", "")
    return None if not host or _is_own(host, bound_host) else _not_served_as(host)


def dialect_host(request: Request) -> str:
    """What stands before `.localhost` in the Host: a dialect may be called by it. Nothing, for any other host."""
    name = request.headers.get("host", "").partition(":")[0].lower()
    label, dot, rest = name.partition(".")
    return label if dot and rest == "localhost" else ""


def _not_served_as(host: str) -> str:
    return f"This page is not served as {host!r}. Open it at the address the simulator printed when it started."


# The same few names come with every call.
@lru_cache(maxsize=256)
def _is_own(host: str, bound_host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        bound = ipaddress.ip_address(bound_host)
    except ValueError:
        return False
    # Reserved for this machine (RFC 6761): no foreign name ends so.
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    # Listening everywhere, any address may be ours; a bare number in Host cannot have come from a foreign name.
    return address.is_loopback or address == bound or bound.is_unspecified
