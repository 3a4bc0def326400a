"""The KV cache of a model, and the step that computes tokens into it, row by row: the engine's device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.adapter import Adapter
from inference.attention import AUTO, F16, Q4_0, Q8_0, Attention
from inference.attention import attention as usual
from inference.backend import Chunk, Region
from inference.core_meter import CoreMeter
from inference.cores import affinity, physical_cores, usable_cores
from inference.errors import ModelNotLoaded, OutOfDeviceMemory
from inference.llama.abort_handler import aborts_reported_to
from inference.llama.library import (
    DecodeFailed,
    complaints,
    get_logits,
    lib,
    memory_copy,
    memory_last,
    memory_remove,
    no_memory,
    set_threads,
    synchronize,
)
from inference.llama.lora import LoadedAdapters
from inference.llama.micro_batches import micro_batches
from inference.llama.pinned_threads import PinnedThreads
from inference.llama.state import fingerprint, regions
from inference.llama.threads import ThreadChooser, thread_options
from inference.llama.weights import LlamaModel
from inference.pages import pages
from inference.picture import PictureEmbeddings

# Copying a token through its saved state costs as much as copying this many cells with their stream; measured.
STATE_COST = 4
# llama.cpp aligns tensors to 32 bytes, one after the other, and the first ones hold a number of four bytes per row or
# output. With a multiple of so many, all others begin with a cache line; otherwise matrices cross them everywhere.
ALIGNMENT = 16
_KV_TYPES = {F16: lib.GGML_TYPE_F16, Q8_0: lib.GGML_TYPE_Q8_0, Q4_0: lib.GGML_TYPE_Q4_0}


class Batch:
    """A llama_batch over numpy arrays: filling it takes slice assignments instead of one ctypes call per field."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.tokens, self.positions, self.slots = (np.zeros(rows, np.int32) for _ in range(3))
        self.outputs = np.zeros(rows, np.int8)
        self._one_slot = np.ones(rows, np.int32)
        self._slot_pointers = (self.slots.ctypes.data + 4 * np.arange(rows, dtype=np.uint64)).astype(np.uint64)
        i32 = ctypes.POINTER(ctypes.c_int32)
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
        """The filled llama_batch with embeddings [tokens, dimensions] instead of its tokens: it can have only one of
        the two. `rows` must outlive it."""
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


class LlamaContext:
    """The `Backend` of llama.cpp: KV cells for `slots` sequences of `context` tokens each, and the step that computes
    them. Its errors are DecodeFailed.

    The default `attention` is the usually fastest one; a quantised `kv_type` needs one with flash attention. If
    `kv_on_gpu` is false, the CPU keeps the cells and computes attention, also for layers on a GPU. In a unified cache
    forking a prefix only marks cells; between streams it copies what the source holds (about a thousandth of the cost
    of computing it).

    If `windowed`, layers with a sliding window hold little more than the tokens in it. A slot then drops nothing but
    tokens of its last step, or goes back to a checkpoint: the cells before them may have been taken for others.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        slots: int,
        context: int,
        rows_max: int,
        threads: int,
        threads_min: int = 1,
        outputs_max: int = 0,
        attention: Attention | None = None,
        kv_type: str = F16,
        kv_on_gpu: bool = True,
        windowed: bool = False,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        if not model.has_weights:  # llama.cpp would compute with unallocated memory
            raise ModelNotLoaded(f"{model.path.name} was opened without its weights")
        self.outputs_max = max(outputs_max, slots)  # with fewer than slots, llama.cpp aborts
        self._on_gpu = gpu = model.on_gpu
        mode = attention or usual(AUTO, AUTO, gpu=gpu)
        parameters = lib.llama_context_default_params()
        parameters.n_ctx = slots * context
        parameters.n_batch = parameters.n_ubatch = _aligned(rows_max)
        parameters.n_seq_max = slots
        parameters.n_outputs_max = _aligned(self.outputs_max)
        parameters.kv_unified = mode.unified
        parameters.flash_attn_type = (
            lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if mode.flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        parameters.type_k = parameters.type_v = _KV_TYPES[kv_type]
        parameters.offload_kqv = kv_on_gpu  # only affects layers that are on a GPU
        self._windowed = windowed and model.window > 0
        parameters.swa_full = not self._windowed
        parameters.no_perf = True
        self._adapters = LoadedAdapters(model, adapters)
        with complaints() as said:
            self._context = lib.llama_init_from_model(model.handle, parameters)
        if not self._context:
            self._adapters.close()
            text = f"not enough memory for {slots} sequences of {context} tokens with {model.path.name}"
            raise OutOfDeviceMemory(text) if gpu and no_memory(said) else ModelNotLoaded(text)
        self._pinned = PinnedThreads(self._context, set() if gpu else affinity())
        self._memory = lib.llama_get_memory(self._context)
        if not self._memory:  # decoding would abort
            self.close()
            raise ModelNotLoaded(f"{model.path.name} is an encoder: it can embed texts but not generate them")
        try:
            self._adapters.apply(self._context)
        except ModelNotLoaded:
            self.close()
            raise
        self._batch = Batch(rows_max)
        self._threads = _chooser(threads_min if not gpu else threads, threads)
        self._threads_now = 0
        self._cores = usable_cores()
        self._meter = CoreMeter()
        self.streams = not mode.unified
        # Elsewhere attention to cells that a row must not see costs little.
        self._model_cells = inf if gpu or mode.flash or self._windowed else model.cells_worth
        self.exact = mode.exact and not gpu
        self.slots = slots
        self.context = context
        self._copies: dict[int, int] = {}  # target: source; stream copies that llama.cpp defers to its next step
        self.rows_max = rows_max
        self._steps_from = [0] * slots  # the length of each slot before its last step
        self.drops = not model.recurs
        self.rewinds = self.drops and not self._windowed
        self.vocabulary_size = model.vocabulary_size
        self._input_dimensions = model.input_dimensions
        self.fingerprint = fingerprint(model.path, parameters, adapters)

    @property
    def crowded(self) -> bool:
        return not self._on_gpu and self._threads_now >= self._cores

    def surviving(self, tell: Callable[[str], None]) -> AbstractContextManager[None]:
        return aborts_reported_to(tell)

    def rest(self) -> None:
        self._pinned.rest()

    def close(self) -> None:
        if self._context:
            lib.llama_free(self._context)
            self._pinned.close()
            self._adapters.close()
            self._context = None

    def decode(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        if not self._context:
            raise DecodeFailed("the context is closed")
        together = [chunk for chunk in chunks if not chunk.apart]
        if len(together) == len(chunks) or len(chunks) == 1:
            return self._compute(chunks)
        parts = [[chunk] for chunk in chunks if chunk.apart] + ([together] if together else [])
        logits: dict[int, NDArray[np.float32]] = {}
        for part in parts:
            logits |= _by_slot(part, self._compute(part).copy())
        return np.concatenate([logits[chunk.slot] for chunk in chunks])

    def _compute(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        """Chunks computed in one batch."""
        if not (chunks and self.streams and self.drops):
            return self._step(chunks)
        rows = micro_batches(chunks, self.length, context=self.context, model_cells=self._model_cells)
        if rows is chunks:  # as in most steps
            return self._step(chunks)
        slots = {chunk.slot for chunk in chunks}
        fillers = [row for row in rows if row.slot not in slots]
        if sum([len(row.tokens) for row in rows]) > self.rows_max:
            rows, fillers = chunks, []
        try:
            logits = self._step(rows)
        finally:
            for row in fillers:
                self.truncate(row.slot, row.position)
        if rows[0].slot <= rows[-1].slot:
            return logits
        by_slot = _by_slot(rows, logits)
        return np.concatenate([by_slot[chunk.slot] for chunk in chunks])

    def _step(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        outputs = self._batch.fill(chunks, self.slots, self.context)
        if outputs > self.outputs_max:
            raise DecodeFailed(f"{outputs} outputs; {self.outputs_max} are possible")
        for chunk in chunks:
            self._steps_from[chunk.slot] = chunk.position
        rows = self._batch.raw.n_tokens
        started = perf_counter()
        if not self._on_gpu and (cores := self._meter.left(started)) is not None:
            self._threads.notice(cores, started)
        if (threads := self._threads.choose(rows, started)) != self._threads_now:
            self._threads_now = threads
            set_threads(self._context, threads, threads)
            self._pinned.set(threads)
        embeddings = chunks[0].embeddings if len(chunks) == 1 else None
        code = self._decode_embeddings(embeddings) if embeddings else lib.llama_decode(self._context, self._batch.raw)
        if self._on_gpu:  # even if nothing is read: the requests of a step have to pay for its time
            synchronize(self._context)
        self._threads.observe(rows, threads, perf_counter() - started)
        if code:
            raise DecodeFailed(f"llama_decode returned {code}")
        self._copies.clear()
        shape = (outputs, self.vocabulary_size)
        if not outputs:
            return np.empty(shape, np.float32)
        pointer = get_logits(self._context)  # may move between steps
        return np.ctypeslib.as_array((ctypes.c_float * (outputs * shape[1])).from_address(pointer)).reshape(shape)

    def _decode_embeddings(self, embeddings: PictureEmbeddings) -> int:
        """Compute embeddings in place of the tokens of the filled batch."""
        rows = np.ascontiguousarray(embeddings.rows, np.float32)
        if rows.shape != (self._batch.raw.n_tokens, self._input_dimensions):
            raise DecodeFailed(f"embeddings of the shape {rows.shape} for {self._batch.raw.n_tokens} tokens")
        if embeddings.bidirectional:
            lib.llama_set_causal_attn(self._context, False)
        try:
            return int(lib.llama_decode(self._context, self._batch.in_place_of_tokens(rows)))
        finally:
            if embeddings.bidirectional:
                lib.llama_set_causal_attn(self._context, True)

    def fork(self, source: int, target: int, length: int, checkpoint: NDArray[np.uint8] | None = None) -> None:
        if source == target or not 0 <= length <= self.length(source):
            raise DecodeFailed(f"slot {target} cannot take {length} tokens of slot {source}")
        self.truncate(target, 0)
        if not self.streams:
            memory_copy(self._memory, source, target, -1, -1)
            self._steps_from[target] = self.length(source)
            self.truncate(target, length, checkpoint)
            return
        # A stream cannot be copied in part, and copying it takes all of its cells, however few are in use.
        if STATE_COST * self.length(source) < self.context or not self.rewinds:  # `_copy` truncates
            self.restore(target, self.save(source))
        else:
            memory_copy(self._memory, source, target, -1, -1)
            self._copies[target] = source
        self.truncate(target, length, checkpoint)

    def truncate(self, slot: int, length: int, checkpoint: NDArray[np.uint8] | None = None) -> None:
        """Drop the content of a slot from token `length` on. A model with recurrent layers goes back only to nothing,
        or to the `checkpoint` of these tokens, one with sliding windows also within its last step. Raises DecodeFailed;
        with a checkpoint, the content is then undefined.
        """
        self._check(slot)
        if checkpoint is not None:
            self._go_back(slot, length, checkpoint)
        elif self._windowed and 0 < length < self._steps_from[slot]:
            raise DecodeFailed(f"slot {slot} cannot go back to {length} tokens")
        if length < 0 or not memory_remove(self._memory, slot, length or -1, -1):
            raise DecodeFailed(f"slot {slot} cannot go back to {length} tokens")
        if checkpoint is not None or not length:
            self._steps_from[slot] = length

    def _go_back(self, slot: int, length: int, checkpoint: NDArray[np.uint8]) -> None:
        """Restore what `truncate` cannot bring back, if it belongs to a beginning of so many tokens."""
        partial = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        fits = length <= self.length(slot) and lib.llama_state_seq_set_data_ext(
            self._context, _bytes(checkpoint), checkpoint.nbytes, slot, partial
        )
        if not fits or self.length(slot) != length:
            raise DecodeFailed(f"slot {slot} has a checkpoint of other than its first {length} tokens")

    def checkpoint(self, slot: int) -> NDArray[np.uint8]:
        self._check(slot)
        partial = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        state = pages(lib.llama_state_seq_get_size_ext(self._context, slot, partial))
        written = lib.llama_state_seq_get_data_ext(self._context, _bytes(state), state.nbytes, slot, partial)
        if written != state.nbytes:
            raise DecodeFailed(f"a checkpoint of slot {slot} could not be saved")
        return state

    def save(self, slot: int) -> NDArray[np.uint8]:
        """Only a context of the same model and settings can restore it."""
        self._check(slot)
        if slot in self._copies:
            self._copy()
        state = np.empty(lib.llama_state_seq_get_size(self._context, slot), np.uint8)
        written = lib.llama_state_seq_get_data(self._context, _bytes(state), state.nbytes, slot)
        if written != state.nbytes:
            raise DecodeFailed(f"the state of slot {slot} could not be saved")
        return state

    def restore(self, slot: int, state: NDArray[np.uint8]) -> None:
        self.truncate(slot, 0)
        if slot in self._copies or slot in self._copies.values():
            self._copy()
        fits = lib.llama_state_seq_set_data(self._context, _bytes(state), state.nbytes, slot)
        if not fits or self.length(slot) > self.context:  # a unified cache may have more free cells than a slot's limit
            self.truncate(slot, 0)
            raise DecodeFailed(f"a state of {state.nbytes} bytes does not fit slot {slot}")
        self._steps_from[slot] = self.length(slot)

    def regions(self, state: NDArray[np.uint8], tokens: int) -> Sequence[Region]:
        return regions(state, tokens, first_only=not self.rewinds)

    def length(self, slot: int) -> int:
        """Number of tokens in a slot. Raises DecodeFailed."""
        self._check(slot)
        return int(memory_last(self._memory, slot)) + 1

    def _copy(self) -> None:
        """Make the copies that forks deferred to the next step. Otherwise, saving a target would read its old content,
        and restoring could overwrite a pending source or be overwritten itself. Only a step makes them, so an idle slot
        computes a dummy token. Raises DecodeFailed."""
        idle = min(range(self.slots), key=self.length)
        position = self.length(idle)
        self._compute([Chunk(idle, position, [0], outputs=0)])
        self.truncate(idle, position)

    def _check(self, slot: int) -> None:
        """Raises DecodeFailed where llama.cpp would abort or access freed memory."""
        if not self._context or not 0 <= slot < self.slots:
            raise DecodeFailed(f"no slot {slot}" if self._context else "the context is closed")


def _by_slot(chunks: Sequence[Chunk], logits: NDArray[np.float32]) -> dict[int, NDArray[np.float32]]:
    each = np.split(logits, np.cumsum([chunk.outputs for chunk in chunks])[:-1])
    return dict(zip([chunk.slot for chunk in chunks], each, strict=True))


def _aligned(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def _chooser(fewest: int, most: int) -> ThreadChooser:
    physical = physical_cores()
    return ThreadChooser(thread_options(fewest, most, physical), physical)


def _bytes(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
