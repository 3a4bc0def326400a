"""The state that llama.cpp saves for a sequence: where the keys and values of tokens lie in it, and which contexts can
restore it.

As written by llama.cpp's `llama_kv_cache::state_write`, after a header of 8 bytes, once per kind of cache (models with
sliding windows have two; the states of recurrent layers follow): the number of streams; per stream the number of cells
and, unless that is 0: position, number of sequences and sequence of each (with positions in several dimensions, three
numbers more); whether values are transposed; the number of layers; the keys of each layer, then the values. Keys are
rows, one per cell, after their type and the bytes per row. So are values, unless transposed: then there is one row per
dimension, after their type, the bytes per number and the number of dimensions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.adapter import Adapter
from inference.backend import Region
from inference.llama.device import build_features
from inference.llama.library import lib

FORMAT = 2  # format 1 could save a slot's old content right after a fork
MARK_BYTES = 8
LAYERS_MAX, ROWS_MAX = 10_000, 2**20  # more than any model has: a larger number means another kind of state
_CELLS = [
    np.dtype([("position", "<i4"), ("sequences", "<u4"), *more, ("sequence", "<i4")])
    for more in ([], [("column", "<i4"), ("row", "<i4"), ("token", "<i4")])
]
# Weights are gigabytes, so the fingerprint covers their size, their mtime and this many samples.
SAMPLES, SAMPLE_BYTES = 64, 16_384


def regions(state: NDArray[np.uint8], tokens: int, *, first_only: bool = False) -> tuple[Region, ...]:
    """The regions of the first cells, in order; empty for another kind of state, or one with fewer cells. `first_only`:
    of the first cache, because the others do not hold a cell for each token."""
    try:
        return tuple(_Reader(state, tokens, first_only).regions())
    except (struct.error, ValueError):
        return ()


class _Reader:
    """Reads from start to end. Raises struct.error, ValueError if it is not such a state."""

    def __init__(self, state: NDArray[np.uint8], tokens: int, first_only: bool) -> None:
        self._state, self._tokens, self._first_only = state, tokens, first_only
        self._at = MARK_BYTES

    def regions(self) -> Iterator[Region]:
        while self._at < self._state.size:
            (streams,) = self._numbers("<I")
            if streams > ROWS_MAX:
                raise ValueError("too many streams")
            for _ in range(streams):
                (cells,) = self._numbers("<I")
                if cells:
                    yield from self._stream(cells)
            if self._first_only:
                return

    def _stream(self, cells: int) -> Iterator[Region]:
        if cells < self._tokens:
            raise ValueError("fewer cells")
        kinds = (np.frombuffer(self._state.data, kind, cells, self._at) for kind in _CELLS)
        held = next((held for held in kinds if (held["sequences"] == 1).all()), None)
        if held is None:
            raise ValueError("cells of another kind")
        self._at += held.nbytes
        transposed, layers = self._numbers("<II")
        if transposed > 1 or layers > LAYERS_MAX:
            raise ValueError("no layers")
        yield from (self._cells(cells) for _ in range(layers))
        yield from (self._dimensions(cells) if transposed else self._cells(cells) for _ in range(layers))

    def _cells(self, cells: int) -> Region:
        _, row_bytes = self._numbers("<iQ")
        return self._take(1, cells, row_bytes)

    def _dimensions(self, cells: int) -> Region:
        _, number_bytes, rows = self._numbers("<iII")
        return self._take(rows, cells, number_bytes)

    def _take(self, rows: int, cells: int, cell_bytes: int) -> Region:
        if rows > ROWS_MAX or self._at + rows * cells * cell_bytes > self._state.size:
            raise ValueError("longer than the state")
        region = Region(self._at, rows, cells * cell_bytes, self._tokens * cell_bytes)
        self._at = region.end
        return region

    def _numbers(self, layout: str) -> tuple[int, ...]:
        numbers: tuple[int, ...] = struct.unpack_from(layout, self._state.data, self._at)
        self._at += struct.calcsize(layout)
        return numbers


def fingerprint(model: Path, parameters: Any, adapters: Sequence[Adapter] = ()) -> bytes:
    """32 bytes for this model with its adapters, this cache layout (`parameters` of the context) and this build, whose
    kernels determine the last bits. A state may only be restored into a context with the same fingerprint."""
    streams = 1 if parameters.kv_unified else parameters.n_seq_max
    layout = (streams, parameters.flash_attn_type, parameters.type_k, parameters.type_v)
    library = Path(lib._lib._name).stat()
    build = (library.st_size, library.st_mtime_ns, sorted(build_features().items()))
    changes = [(digest_of_weights(adapter.path), adapter.scale) for adapter in adapters]
    facts = (FORMAT, layout, build, *([changes] if changes else []), *(() if parameters.swa_full else ("windowed",)))
    return sha256(digest_of_weights(model) + repr(facts).encode()).digest()


def digest_of_weights(model: Path) -> bytes:
    """32 bytes that tell files of weights apart."""
    facts = model.stat()
    digest = sha256(repr((facts.st_size, facts.st_mtime_ns)).encode())
    with model.open("rb") as file:
        for sample in range(SAMPLES):
            file.seek(sample * facts.st_size // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
