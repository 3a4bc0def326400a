"""The garbage collector of a worker: it stops everything for as long as it looks at what is there."""

from __future__ import annotations

import gc

# Nearly all that a request leaves behind goes by its reference counts, so a look at young objects finds little: at the
# usual 700 it takes a tenth of a busy event loop. At this many a look stays under about two milliseconds.
YOUNG_MAX = 10_000
YOUNG_LOOKS, MIDDLE_LOOKS = 10, 10  # of each generation, before the next older one is looked at; Python's own


def freeze() -> None:
    """Call when everything is loaded. It stays for good, so it is not looked at again: half a million objects would
    hold up every stream for a tenth of a second, again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, YOUNG_LOOKS, MIDDLE_LOOKS)
