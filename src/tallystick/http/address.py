"""Where somebody comes from: a request by what proxies of ours say of it, a connection by itself. Pure."""

import re
from collections.abc import Mapping
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from tallystick.settings import IpNetwork

_PORTED = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::[0-9]+)?|([0-9.]+):[0-9]+")
_FORWARDED = b"x-forwarded-for"
# Whoever has one address of it has all.
_IPV6_PREFIX = 64


def caller_address(scope: Mapping[str, Any], proxies: tuple[IpNetwork, ...]) -> str:
    """Whom a request comes from: the nearest that is not a proxy of ours. IPv6 by its network.

    What a caller himself wrote into X-Forwarded-For stands further away, and is never looked at.
    """
    client = scope.get("client")
    found = client[0] if client else ""
    if proxies:
        forwarded = b",".join(value for name, value in scope["headers"] if name == _FORWARDED)
        hops = [hop.strip() for hop in forwarded.decode("latin-1").split(",") if hop.strip()]
        while hops and _is_of(found, proxies):
            found = _without_port(hops.pop())
    try:
        address = ip_address(found)
    except ValueError:
        return found
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Network((address, _IPV6_PREFIX), strict=False))
    return found


def share_of(client: tuple[str, int] | None, proxies: tuple[IpNetwork, ...]) -> str:
    """Whose share a connection is of, before anything came over it: its address's. IPv6 by its network.

    One of a trusted proxy's is a share of its own: it speaks for somebody who is not known yet, and a proxy that
    everybody comes through is no stranger who takes everything.
    """
    if client is not None and _is_of(client[0], proxies):
        return f"{client[0]} port {client[1]}"
    return caller_address({"client": client, "headers": []}, ())


def _without_port(hop: str) -> str:
    """Some proxies write the port as well: each connection would be an address of its own. IPv6 is in brackets then."""
    ported = _PORTED.fullmatch(hop)
    return hop if ported is None else ported[1] or ported[2]


def _is_of(address: str, networks: tuple[IpNetwork, ...]) -> bool:
    try:
        known = ip_network(address)
    except ValueError:
        return False
    if isinstance(known, IPv6Network) and known.network_address.ipv4_mapped is not None:
        known = ip_network(known.network_address.ipv4_mapped)
    return any(known.version == one.version and known.subnet_of(one) for one in networks)  # type: ignore[arg-type]
