"""A bounded mapping that drops the least recently used: the caches of the house differ in keys, values and sizes only.

Not thread-safe: whoever shares one between threads holds a lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    def __init__(
        self,
        size_max: int,
        size: Callable[[K, V], int] = lambda key, value: 1,
        dropped: Callable[[K, V], object] = lambda key, value: None,
    ) -> None:
        """`size_max` limits the sum of the sizes: by default, of one each. `dropped` gets every entry that leaves,
        whether evicted, replaced or popped."""
        self.size_max = size_max
        self.size = 0
        self._size, self._dropped = size, dropped
        self._kept: OrderedDict[K, V] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[K]:
        """The keys, least recently used first."""
        return iter(self._kept)

    def items(self) -> list[tuple[K, V]]:
        """Least recently used first; none of them counts as used."""
        return list(self._kept.items())

    def get(self, key: K) -> V | None:
        """The value, which counts as used now; None if there is none."""
        value = self._kept.get(key)
        if value is not None:
            self._kept.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value, in place of an older one; one that is larger than the cache is not kept."""
        self.pop(key)
        size = self._size(key, value)
        if size > self.size_max:
            return
        self._kept[key] = value
        self.size += size
        while self.size > self.size_max:
            self.pop(next(iter(self._kept)))

    def pop(self, key: K) -> V | None:
        """Remove a value and return it; None if there is none."""
        value = self._kept.pop(key, None)
        if value is not None:
            self.size -= self._size(key, value)
            self._dropped(key, value)
        return value
