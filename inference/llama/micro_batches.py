"""Which rows of a step are computed together, where each slot has a KV stream of its own. Pure.

llama.cpp computes the rows of consecutive slots in one micro-batch, as far as all of them have rows left. Each
micro-batch reads the whole model, and each of its rows as many cells as the fullest of its slots: beside a conversation
of 4,000 tokens, attention costs the row of a short one ten times as much as alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import inf

from inference.attention import cells_read, step_parts
from inference.backend import Chunk

# Longest gap of idle slots that is filled with a row each: a further part of a step costs as much as about eight rows.
GAP_MAX = 2


def micro_batches(
    chunks: Sequence[Chunk], length: Callable[[int], int], *, context: int, model_cells: float
) -> Sequence[Chunk]:
    """The chunks, which are sorted by slot, in the order in which llama.cpp computes them fastest, with a row for each
    idle slot in short gaps, so that the step has fewer parts. These rows have no outputs, and are to be dropped.

    `length`: the tokens in a slot. `model_cells`: the cells that a row reads in the time in which the model is read.
    """
    if _are_alike(chunks):
        return chunks
    runs = list(_runs(chunks, length, context, inf))
    if model_cells < inf and sum(map(_masked, runs)) > model_cells:
        candidates = [runs, *(list(_runs(chunks, length, context, limit)) for limit in _limits(chunks))]
        runs = min(candidates, key=lambda some: sum(_cost(run, model_cells) for run in some))
        if any(low[-1].slot + 1 == high[0].slot for low, high in pairwise(runs)):
            runs.reverse()  # slots that precede those of the micro-batch before begin another
    return [chunk for run in runs for chunk in run]


def _are_alike(chunks: Sequence[Chunk]) -> bool:
    """Whether their slots are consecutive and their rows read the same number of cells, as in most steps."""
    ends = [chunk.position + len(chunk.tokens) for chunk in chunks]
    consecutive = chunks[-1].slot - chunks[0].slot == len(chunks) - 1
    return consecutive and cells_read(min(ends)) == cells_read(max(ends))


def _limits(chunks: Sequence[Chunk]) -> Iterator[int]:
    """Where runs may part: at what the fullest slot holds, its half, a quarter..."""
    cells = [_cells(chunk) for chunk in chunks]
    limit, fewest = max(cells), min(cells)
    while limit >= fewest:
        yield limit
        limit //= 2


def _runs(chunks: Sequence[Chunk], length: Callable[[int], int], context: int, limit: float) -> Iterator[list[Chunk]]:
    """Runs of consecutive slots, of which either all chunks read more than `limit` cells or none."""
    run = [chunks[0]]
    for low, high in pairwise(chunks):
        idle = range(low.slot + 1, high.slot)
        fits = len(idle) <= GAP_MAX and (_cells(low) > limit) == (_cells(high) > limit)
        gap = [Chunk(slot, length(slot), [0], outputs=0) for slot in idle] if fits else ()
        most = context if _cells(low) > limit else min(limit, context)
        if not fits or any(_end(row) > most for row in gap):
            yield run
            run = []
            gap = ()
        run += [*gap, high]
    yield run


def _masked(run: Sequence[Chunk]) -> int:
    """Cells that its rows read and must not see, because another of its slots holds more."""
    most = max(map(_cells, run))
    return sum([(most - _cells(chunk)) * len(chunk.tokens) for chunk in run])


def _cost(run: Sequence[Chunk], model_cells: float) -> float:
    """In cells that are read, of which the model counts as many as take as long to read."""
    cells = {chunk.slot: _cells(chunk) for chunk in run}
    parts = step_parts((chunk.slot, len(chunk.tokens)) for chunk in run)
    return sum([model_cells + each * len(slots) * max(map(cells.__getitem__, slots)) for slots, each in parts])


def _cells(chunk: Chunk) -> int:
    return cells_read(_end(chunk))


def _end(chunk: Chunk) -> int:
    return chunk.position + len(chunk.tokens)
