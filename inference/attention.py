"""How the KV cache is laid out and attention is computed: the fastest choice differs by machine. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

AUTO = "auto"
ALL_TOKENS, WINDOW = "all", "window"  # what layers with a sliding window keep
LAYOUTS = {"streams": False, "unified": True}
FLASH = {"off": False, "on": True}
F16, Q8_0, Q4_0 = "f16", "q8_0", "q4_0"
KV_TYPES = (F16, Q8_0, Q4_0)  # of keys and values
QUANTISED = frozenset({Q8_0, Q4_0})  # llama.cpp reads quantised values only with flash attention
# With a stream per slot, all rows that are computed together read a multiple of so many cells, and mask those that they
# must not see.
CELLS_READ = 256


@dataclass(frozen=True, slots=True)
class Attention:
    """`unified`: all slots share one pool of cells, and a shared prefix is stored once. Otherwise each slot has a
    stream of its own, and its rows attend to no other slot's cells."""

    unified: bool
    flash: bool

    @property
    def exact(self) -> bool:
        """Whether a row's result does not depend on the rest of the batch; measured on CPUs, with every layout. Only
        builds for x86 that have AVX but no FMA differ: they compute several rows differently than one.
        """
        return not self.unified and not self.flash

    @property
    def flags(self) -> str:
        return f"--kv-layout {_name(LAYOUTS, self.unified)} --flash-attention {_name(FLASH, self.flash)}"

    def __str__(self) -> str:
        return f"{_name(LAYOUTS, self.unified)}, flash attention {_name(FLASH, self.flash)}"


ALL = [Attention(unified, flash) for unified, flash in product(LAYOUTS.values(), FLASH.values())]


def attention(layout: str, flash: str, *, gpu: bool, measured: Attention | None = None) -> Attention:
    """The requested attention; for `auto` the fastest that was measured, or the usual: streams, with flash on a GPU.
    In a unified cache the answers of several streams interleave, so a state is read in as many pieces as the answer has
    tokens: parking one took a GPU 90 ms instead of 4. A measurement applies only if both are `auto`.
    """
    if measured is not None and layout == flash == AUTO:
        return measured
    return Attention(LAYOUTS.get(layout, False), FLASH.get(flash, gpu))


def cells_read(tokens: int) -> int:
    """Cells that a row reads to attend to so many tokens, the row's own included."""
    return -(-tokens // CELLS_READ) * CELLS_READ


def step_parts(rows: Iterable[tuple[int, int]]) -> Iterator[tuple[list[int], int]]:
    """The parts into which a step is divided, each of which reads the whole model: slots in order, with the number of
    rows of each -> the slots of each part, and how many rows it has of each.

    With one KV stream per slot, llama.cpp computes the rows of several slots together only if the slots are
    consecutive, and only as many rows of each as all of them have: three rows of one slot and one of the next are two
    parts of two rows.
    """
    left = dict(rows)
    while left:
        together = [next(iter(left))]
        while together[-1] + 1 in left:
            together.append(together[-1] + 1)
        each = min(left[slot] for slot in together)
        yield together, each
        for slot in together:
            left[slot] -= each
        left = {slot: count for slot, count in left.items() if count}


def _name(names: dict[str, bool], value: bool) -> str:
    return next(name for name, means in names.items() if means is value)
