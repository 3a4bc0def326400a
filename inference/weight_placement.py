"""The placement of a model's weights: how they are split between GPUs, and how the file is loaded. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from inference.attention import AUTO

LAYER, ROW, NONE = "layer", "row", "none"
SPLITS = (LAYER, ROW, NONE)
GPU, HOST = "gpu", "host"
KV_PLACES = (GPU, HOST)  # where the keys and values of layers on a GPU are stored
DEVICES_MAX = 16  # llama.cpp's limit
# mmap: pages are read from the file on use and may be evicted. mlock: the same, but they stay. read: a copy in memory.
LOAD_MODES = (AUTO, "mmap", "mlock", "read")


@dataclass(frozen=True, slots=True)
class Split:
    """How a model is split between several GPUs: by whole layers, by the rows of each matrix (if the backend supports
    it, as CUDA does), or not at all: the first GPU gets everything. `shares` are proportions, one per GPU; without any,
    free memory decides."""

    mode: str = LAYER
    shares: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Split:
        """`layer`, `row`, `none`, or with shares: `layer:3,1`. Raises ValueError."""
        mode, colon, listed = text.partition(":")
        if mode not in SPLITS:
            raise ValueError(f"must be {', '.join(SPLITS)}, or with shares as in layer:3,1, not {text!r}")
        try:
            shares = tuple(float(share) for share in listed.split(",")) if colon else ()
        except ValueError:
            raise ValueError(f"has shares that are no numbers: {listed!r}") from None
        if colon and not (0 < len(shares) <= DEVICES_MAX and all(0 <= s < 1e6 for s in shares) and sum(shares) > 0):
            raise ValueError(f"takes 1 to {DEVICES_MAX} shares, not negative and not all zero, not {listed!r}")
        if shares and mode == NONE:
            raise ValueError(f"takes no shares with {NONE}: one GPU gets everything")
        return cls(mode, shares)
