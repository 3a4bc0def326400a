"""The rows of a step, in llama.cpp's format."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.llama.library import DecodeFailed, lib

_i32 = ctypes.c_int32
# Longest gap of idle slots that is filled with a row each: a further part of a step costs as much as about eight rows.
GAP_MAX = 2


def between(slots: Sequence[int]) -> list[int]:
    """The idle slots in short gaps between these slots, which are in ascending order. With a row for each of them, a
    step is a single part: with streams, llama.cpp computes rows together only for runs of consecutive slots, and each
    part of a step reads the whole model."""
    return [idle for low, high in pairwise(slots) if high - low <= GAP_MAX + 1 for idle in range(low + 1, high)]


class Batch:
    """A llama_batch over numpy arrays: filling it takes slice assignments instead of one ctypes call per field."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tokens, self.positions, self.slots = (np.zeros(rows, np.int32) for _ in range(3))
        self.outputs = np.zeros(rows, np.int8)
        self._one_slot = np.ones(rows, np.int32)
        self._slot_pointers = (self.slots.ctypes.data + 4 * np.arange(rows, dtype=np.uint64)).astype(np.uint64)
        i32 = ctypes.POINTER(_i32)
        self.raw = lib.llama_batch()
        self.raw.token = self.tokens.ctypes.data_as(i32)
        self.raw.pos = self.positions.ctypes.data_as(i32)
        self.raw.n_seq_id = self._one_slot.ctypes.data_as(i32)
        self.raw.seq_id = self._slot_pointers.ctypes.data_as(ctypes.POINTER(i32))
        self.raw.logits = self.outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self.raw.embd = None

    def fill(self, chunks: Sequence[Chunk], slots: int, context: int) -> int:
        """Returns the number of outputs. Raises DecodeFailed for values that would make llama.cpp abort."""
        lengths = [len(chunk.tokens) for chunk in chunks]
        rows = sum(lengths)
        if not 0 < rows <= self.rows:
            raise DecodeFailed(f"a batch of {rows} rows; 1 to {self.rows} are possible")
        if max(lengths) == min(lengths) == 1:
            return self._fill_single(chunks, slots, context)
        row = 0
        self.outputs[:rows] = 0
        for chunk in chunks:
            end, last = row + len(chunk.tokens), chunk.position + len(chunk.tokens)
            if not (0 <= chunk.slot < slots and 0 <= chunk.position < last <= context):
                raise DecodeFailed(f"slot {chunk.slot}, positions {chunk.position} to {last} are out of range")
            self.tokens[row:end] = chunk.tokens
            self.positions[row:end] = np.arange(chunk.position, last)
            self.slots[row:end] = chunk.slot
            if not 0 <= chunk.outputs <= len(chunk.tokens):
                raise DecodeFailed(f"{chunk.outputs} outputs of {len(chunk.tokens)} tokens")
            self.outputs[end - chunk.outputs : end] = 1
            row = end
        self.raw.n_tokens = rows
        return sum(chunk.outputs for chunk in chunks)

    def in_place_of_tokens(self, rows: NDArray[np.float32]) -> Any:
        """The filled llama_batch with vectors [tokens, dimensions] instead of its tokens: it can have only the one or
        the other. `rows` must outlive it."""
        raw = type(self.raw).from_buffer_copy(self.raw)
        raw.token = None
        raw.embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        return raw

    def _fill_single(self, chunks: Sequence[Chunk], slots: int, context: int) -> int:
        """One token per chunk, as in nearly every step: one list per field takes a tenth of four slices per chunk."""
        rows = len(chunks)
        numbers, positions = [chunk.slot for chunk in chunks], [chunk.position for chunk in chunks]
        outputs = [chunk.outputs for chunk in chunks]
        if min(numbers) < 0 or max(numbers) >= slots or min(positions) < 0 or max(positions) >= context:
            raise DecodeFailed(f"slots {numbers}, positions {positions}: one is out of range")
        if min(outputs) < 0 or max(outputs) > 1:
            raise DecodeFailed(f"{outputs} outputs of one token each")
        self.tokens[:rows] = [chunk.tokens[0] for chunk in chunks]
        self.positions[:rows], self.slots[:rows], self.outputs[:rows] = positions, numbers, outputs
        self.raw.n_tokens = rows
        return sum(outputs)
