"""Who gives way when something is full: whoever holds the most of it, by address, and of his the idlest first.

Pure. So one address that takes all there is costs itself, and nobody who holds little is touched while somebody holds
more. Among equals it is the idlest: so too behind a proxy that is trusted, where each connection is somebody's own.
Behind one that is not, every caller has the proxy's address, and again it is the idlest of all.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar


class Holder(Protocol):
    """Something that takes up room."""

    @property
    def address(self) -> str:
        """Of the one who holds it."""

    @property
    def since(self) -> float:
        """When it last was of use: the smaller, the idler."""


H = TypeVar("H", bound=Holder)


def shed(holders: Iterable[H], excess: int, weight: Callable[[H], int]) -> list[H]:
    """Who gives way so that at least `excess` comes free; all of them, where that is not enough."""
    by_address: defaultdict[str, list[H]] = defaultdict(list)
    totals: defaultdict[str, int] = defaultdict(int)
    for holder in holders:
        by_address[holder.address].append(holder)
        totals[holder.address] += weight(holder)
    for held in by_address.values():
        held.sort(key=lambda holder: holder.since, reverse=True)
    # Among those who hold as much now, who held more before; and then the idlest.
    largest = [(-total, -total, by_address[address][-1].since, address) for address, total in totals.items()]
    heapq.heapify(largest)
    chosen: list[H] = []
    while excess > 0 and largest:
        left, before, _, address = heapq.heappop(largest)
        holder = by_address[address].pop()
        chosen.append(holder)
        freed = weight(holder)
        excess -= freed
        if by_address[address]:
            heapq.heappush(largest, (left + freed, before, by_address[address][-1].since, address))
    return chosen
