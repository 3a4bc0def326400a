"""Encoders: from texts to a vector per token, or to one score."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inference.errors import ModelNotLoaded
from inference.llama.context import Batch
from inference.llama.library import DecodeFailed, encoding, get_embeddings, lib
from inference.llama.weights import LlamaModel


class _Encoder:
    """Runs whole texts through an encoder, as many per batch as fit. `flash`: with flash attention."""

    _pooling: ClassVar[int]

    def __init__(
        self, model: LlamaModel, *, rows_max: int, sequences_max: int, threads: int, flash: bool = True
    ) -> None:
        parameters = lib.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = rows_max
        parameters.n_seq_max = sequences_max
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.embeddings = True
        parameters.pooling_type = self._pooling
        parameters.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO if flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.kv_unified = True
        parameters.no_perf = True
        self._context = lib.llama_init_from_model(model.handle, parameters)
        if not self._context:
            raise ModelNotLoaded(f"{model.path.name} cannot be used as an encoder")
        self._batch = Batch(rows_max)
        self._batch.outputs[:] = 1
        self._rows_max = rows_max
        self._sequences_max = sequences_max
        self._dimensions = model.dimensions

    def close(self) -> None:
        if self._context:
            lib.llama_free(self._context)
            self._context = None

    def _groups(self, sequences: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
        group: list[Sequence[int]] = []
        rows = 0
        for sequence in sequences:
            if not 0 < len(sequence) <= self._rows_max:
                raise DecodeFailed(f"a text of {len(sequence)} tokens; 1 to {self._rows_max} are possible")
            if group and (rows + len(sequence) > self._rows_max or len(group) == self._sequences_max):
                yield group
                group, rows = [], 0
            group.append(sequence)
            rows += len(sequence)
        if group:
            yield group

    def _run(self, group: list[Sequence[int]]) -> NDArray[np.int64]:
        """Compute one batch, each text in its own slot; returns the bounds of the texts' rows."""
        if not self._context:
            raise DecodeFailed("the context is closed")
        bounds = np.cumsum([0, *map(len, group)])
        batch = self._batch
        for slot, sequence in enumerate(group):
            rows = slice(bounds[slot], bounds[slot + 1])
            batch.tokens[rows] = sequence
            batch.positions[rows] = np.arange(len(sequence))
            batch.slots[rows] = slot
        batch.raw.n_tokens = int(bounds[-1])
        with encoding():
            code = lib.llama_encode(self._context, batch.raw)
        if code:
            raise DecodeFailed(f"llama_encode returned {code}")
        return bounds


class EmbeddingContext(_Encoder):
    """The vector of every token (no pooling)."""

    _pooling = lib.LLAMA_POOLING_TYPE_NONE

    def encode(self, sequences: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Token ids of each text -> its vectors [tokens, dimensions]. Each text must fit a batch.

        Raises DecodeFailed.
        """
        vectors: list[NDArray[np.float32]] = []
        for group in self._groups(sequences):
            bounds = self._run(group)
            size = int(bounds[-1]) * self._dimensions
            array = np.ctypeslib.as_array((ctypes.c_float * size).from_address(get_embeddings(self._context)))
            vectors += [part.copy() for part in np.split(array.reshape(-1, self._dimensions), bounds[1:-1])]
        return vectors


class RankContext(_Encoder):
    """The score of each text from the model's head (rank pooling). The head must have one output."""

    _pooling = lib.LLAMA_POOLING_TYPE_RANK

    def rank(self, sequences: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """Token ids of each text -> its logit. Raises DecodeFailed."""
        scores: list[float] = []
        for group in self._groups(sequences):
            self._run(group)
            scores += [float(lib.llama_get_embeddings_seq(self._context, slot)[0]) for slot in range(len(group))]
        return np.array(scores, np.float64)
