"""Memory in pages of its own, which go back to the system as soon as nobody uses it.

Parked states are of all sizes, and leave in another order than they came. In malloc's heap the holes between them stay
with the process: two thirds as much again as the states themselves, after five minutes with a small cache.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

# Below, the rest of the last page would be felt, and a process may have 65,530 mappings.
MAPPED_BYTES_MIN = 128 * 1024


def pages(size: int) -> NDArray[np.uint8]:
    """Room for so many bytes, to be kept for a while. The first touch of a page costs some 1 µs: what is let go at once
    is better taken from the heap."""
    if size >= MAPPED_BYTES_MIN:
        with suppress(OSError):  # no mapping is left: the heap has another way
            return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    return np.empty(size, np.uint8)
