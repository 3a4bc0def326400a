"""Pages of memory: of their own for what is kept long and in any size, and large ones for what is read as a whole."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

# For less, the unused rest of the last page would matter, and a process may have only 65,530 mappings.
MAPPED_BYTES_MIN = 128 * 1024
HUGE_PAGE = 2 << 20  # bytes: what one entry of an x86 or ARM CPU's address cache covers instead of 4 KiB


def pages(size: int) -> NDArray[np.uint8]:
    """An array of so many bytes in pages of its own, for long-lived data: they return to the system as soon as it is
    freed. Parked states differ in size and are freed in another order than they were allocated. In malloc's heap the
    holes between them stay with the process: after five minutes with a small cache, two thirds of the states' own size.

    The first touch of a page costs about 1 µs, so short-lived data is better allocated on the heap.
    """
    if size >= MAPPED_BYTES_MIN:
        with suppress(OSError):  # out of mappings: fall back to the heap
            mapped = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
            use_huge_pages(mapped.ctypes.data, size)  # copying a state of 4 MiB then takes a third of the time
            return mapped
    return np.empty(size, np.uint8)


def use_huge_pages(start: int, size: int) -> None:
    """Ask the kernel for pages of 2 MiB in so many bytes from an address on; one that has none refuses, which does not
    matter."""
    if size >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        _madvise()(first, start + size - first, mmap.MADV_HUGEPAGE)


@cache
def _madvise() -> Any:
    advise = ctypes.CDLL(None).madvise
    advise.restype, advise.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise
