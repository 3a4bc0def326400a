"""Tunes the garbage collector of a worker, which blocks the event loop while it scans objects."""

from __future__ import annotations

import gc

# Reference counting frees nearly everything that a request leaves behind, so scans of young objects find little: at
# the default of 700 they take a tenth of a busy event loop. At this number a scan takes less than about 2 ms.
YOUNG_MAX = 10_000
YOUNG_LOOKS, MIDDLE_LOOKS = 10, 10  # scans of each generation before the next older one is scanned; Python's defaults


def freeze() -> None:
    """Call this when everything is loaded. Loaded objects live as long as the process, so they are excluded from scans:
    half a million objects would block every stream for a tenth of a second, again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, YOUNG_LOOKS, MIDDLE_LOOKS)
