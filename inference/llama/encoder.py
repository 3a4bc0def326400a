"""Encoders: from texts to a vector per token, or to one score."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.errors import ModelNotLoaded
from inference.llama.context import Batch
from inference.llama.library import DecodeFailed, encoding, get_embeddings, lib
from inference.llama.weights import LlamaModel


class _Encoder:
    """Runs whole texts through an encoder, a batch at a time: see `batches`. `flash`: with flash attention."""

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
        self._sequences_max = sequences_max
        self._dimensions = model.dimensions

    def close(self) -> None:
        if self._context:
            lib.llama_free(self._context)
            self._context = None

    def _run(self, texts: Sequence[Sequence[int]]) -> None:
        """Compute token ids of each text in a slot of its own. Raises DecodeFailed, also if they do not fit."""
        if not self._context:
            raise DecodeFailed("the context is closed")
        chunks = [Chunk(slot, 0, ids, outputs=len(ids)) for slot, ids in enumerate(texts)]
        self._batch.fill(chunks, self._sequences_max, self._batch.rows)
        with encoding():
            code = lib.llama_encode(self._context, self._batch.raw)
        if code:
            raise DecodeFailed(f"llama_encode returned {code}")


class EmbeddingContext(_Encoder):
    """The vector of every token (no pooling)."""

    _pooling = lib.LLAMA_POOLING_TYPE_NONE

    def encode(self, texts: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Token ids of each text -> its vectors [tokens, dimensions]. Raises DecodeFailed."""
        self._run(texts)
        ends = np.cumsum([*map(len, texts)])
        shape = (int(ends[-1]), self._dimensions)
        pointer = ctypes.cast(get_embeddings(self._context), ctypes.POINTER(ctypes.c_float))
        return np.split(np.ctypeslib.as_array(pointer, shape).copy(), ends[:-1])


class RankContext(_Encoder):
    """The score of each text from the model's head (rank pooling). The head must have one output."""

    _pooling = lib.LLAMA_POOLING_TYPE_RANK

    def rank(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """Token ids of each text -> its logit. Raises DecodeFailed."""
        self._run(texts)
        return [float(lib.llama_get_embeddings_seq(self._context, slot)[0]) for slot in range(len(texts))]


def batches(lengths: Sequence[int], rows_max: int, sequences_max: int) -> list[list[int]]:
    """Indices of texts with so many tokens, grouped so that each group fits a batch and has similar lengths."""
    groups: list[list[int]] = []
    rows = rows_max
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows + lengths[index] > rows_max or len(groups[-1]) == sequences_max:
            groups.append([])
            rows = 0
        groups[-1].append(index)
        rows += lengths[index]
    return groups
