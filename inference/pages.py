"""Memory for what is kept long and in any size: saved states."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

# For less, the unused rest of the last page would matter, and a process may have only 65,530 mappings.
MAPPED_BYTES_MIN = 128 * 1024


def pages(size: int) -> NDArray[np.uint8]:
    """An array of so many bytes in pages of its own, for long-lived data: they return to the system as soon as it is
    freed. Parked states differ in size and are freed in another order than they were allocated. In malloc's heap the
    holes between them stay with the process: after five minutes with a small cache, two thirds of the states' own size.

    The first touch of a page costs about 1 µs, so short-lived data is better allocated on the heap.
    """
    if size >= MAPPED_BYTES_MIN:
        with suppress(OSError):  # out of mappings: fall back to the heap
            mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            _use_huge_pages(mapping)
            return np.frombuffer(mapping, np.uint8)
    return np.empty(size, np.uint8)


def _use_huge_pages(mapping: mmap.mmap) -> None:
    """Where the kernel has them, copying a state of 4 MiB takes a third of the time: two first touches, not 1,024."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            mapping.madvise(mmap.MADV_HUGEPAGE)
