"""A bounded queue whose sources take turns, so that a flood from one does not starve the others.

Pure data: no waiting, no clock. Within a source it is first come, first served.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

LOOK_AHEAD = 4


class FairQueue(Generic[T]):
    """Items of several sources; `take` goes round the sources, one item each."""

    def __init__(self, capacity: int, capacity_per_source: int) -> None:
        """Both bounds count items that wait here, not those already taken."""
        self._capacity = capacity
        self._capacity_per_source = capacity_per_source
        self._sources: dict[Hashable, deque[T]] = {}
        # Whose turn is next. Every source with items stands here exactly once.
        self._turns: deque[Hashable] = deque()
        self._size = 0

    def __len__(self) -> int:
        """How many items wait."""
        return self._size

    def put(self, source: Hashable, item: T) -> bool:
        """False: there is no room, and nothing changed."""
        line = self._sources.get(source)
        if self._size >= self._capacity or (line is not None and len(line) >= self._capacity_per_source):
            return False
        (self._line(source) if line is None else line).append(item)
        self._size += 1
        return True

    def put_back(self, source: Hashable, item: T) -> None:
        """To the end, an item that was taken before. It had its room already, so the bounds do not apply."""
        self._line(source).append(item)
        self._size += 1

    def drop(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Take out of the head of every line what is no longer wanted there."""
        dropped: list[T] = []
        for source in list(self._turns):
            line = self._sources[source]
            while line and unwanted(line[0]):
                dropped.append(line.popleft())
            if not line:
                del self._sources[source]
                self._turns.remove(source)
        self._size -= len(dropped)
        return dropped

    def take(self, most: int, *, admits: Callable[[T], bool] | None = None) -> list[T]:
        """Up to `most` items, the sources in turn. Those `admits` refuses keep their place."""
        if admits is None and len(self._turns) == 1:
            return self._take_of_one(most)
        taken: list[T] = []
        passed: dict[Hashable, list[T]] = {}
        # Looking further than this would cost more than an idle lane gains.
        looks = LOOK_AHEAD * most
        while self._turns and len(taken) < most and looks > 0:
            looks -= 1
            source = self._turns.popleft()
            line = self._sources[source]
            item = line.popleft()
            if admits is None or admits(item):
                taken.append(item)
            else:
                passed.setdefault(source, []).append(item)
            if line:
                self._turns.append(source)
            elif source not in passed:
                del self._sources[source]
        for source, items in passed.items():
            line = self._sources[source]
            if not line:
                self._turns.append(source)
            line.extendleft(reversed(items))
        self._size -= len(taken)
        return taken

    def _take_of_one(self, most: int) -> list[T]:
        """What `take` comes to where nobody takes turns, without asking for each item whose turn it is."""
        source = self._turns[0]
        line = self._sources[source]
        taken = [line.popleft() for _ in range(min(most, len(line)))]
        if not line:
            del self._sources[source]
            self._turns.clear()
        self._size -= len(taken)
        return taken

    def _line(self, source: Hashable) -> deque[T]:
        line = self._sources.get(source)
        if line is None:
            line = self._sources[source] = deque()
            self._turns.append(source)
        return line
