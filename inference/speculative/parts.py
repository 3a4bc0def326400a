"""How a step falls into parts, each of which reads the whole model. Pure.

With a KV stream for each slot, llama.cpp computes rows of several slots together only where these follow each other,
and as many of each as all of them have: three rows of one slot and one of the next are a part of two and another of
two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def parts(rows: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Slots, in their order, and how many rows each has -> rows of each part."""
    left = dict(rows)
    while left:
        together = [next(iter(left))]
        while together[-1] + 1 in left:
            together.append(together[-1] + 1)
        each = min(left[slot] for slot in together)
        yield each * len(together)
        for slot in together:
            left[slot] -= each
        left = {slot: count for slot, count in left.items() if count}
