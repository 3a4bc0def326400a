"""The door to llama.cpp: the only file that touches its C interface.

Three rules keep the process alive:
- The library aborts instead of failing on a batch that is too large, on outputs beyond the limit and on sequence ids
  out of range. Every such value is checked here before the call.
- ctypes.CDLL drops the GIL in each call; after a call of a microsecond, getting it back from a busy thread costs
  hundreds. Short calls are therefore bound a second time through PyDLL, which keeps it. Decode, encode, tokenise and
  load let go.
- A context belongs to one thread. Nothing here locks; the owner of the thread is the engine (or the embedder).
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
from numpy.typing import NDArray

from inference.backend import Chunk
from inference.errors import EngineStopped, InferenceError, InvalidSchema, ModelNotLoaded, UnknownToken
from inference.markup import spoken
from inference.threads import ThreadChooser

log = logging.getLogger("firsttoken.llama")

_QUANTISATION = re.compile(r"[-.](i?q\d\w*|b?f16|f32)$", re.IGNORECASE)
_GPU_KINDS = (1, 2)  # of ggml_backend_dev_type: discrete and integrated
_METADATA_BYTES_MAX = 4096  # of one value; chat templates have a door of their own
TOKEN_BYTES_MAX = 512  # the longest piece of text a single token may stand for
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _forward_log(level: int, text: bytes, _user_data: object) -> None:
    log.log(_LEVELS.get(level, logging.DEBUG), "%s", text.decode("utf-8", "replace").rstrip())


def _short_call(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_pydll, name)
    function.restype, function.argtypes = result, arguments
    return function


lib.llama_log_set(_forward_log, ctypes.c_void_p(0))
lib.llama_backend_init()
_pydll = ctypes.PyDLL(lib._lib._name)
_i32, _size, _handle = ctypes.c_int32, ctypes.c_size_t, ctypes.c_void_p
_memory_remove = _short_call("llama_memory_seq_rm", ctypes.c_bool, _handle, _i32, _i32, _i32)
_memory_copy = _short_call("llama_memory_seq_cp", None, _handle, _i32, _i32, _i32, _i32)
_memory_last = _short_call("llama_memory_seq_pos_max", _i32, _handle, _i32)
_logits = _short_call("llama_get_logits", _handle, _handle)
_set_threads = _short_call("llama_set_n_threads", None, _handle, _i32, _i32)
_grammar_apply = _short_call("llama_sampler_apply", None, _handle, ctypes.POINTER(lib.llama_token_data_array))
_grammar_accept = _short_call("llama_sampler_accept", None, _handle, _i32)
_grammar_clone = _short_call("llama_sampler_clone", _handle, _handle)
_grammar_free = _short_call("llama_sampler_free", None, _handle)
_embeddings = _short_call("llama_get_embeddings", _handle, _handle)


def has_gpu() -> bool:
    """Whether this build of llama.cpp can offload to a GPU that is present."""
    return bool(lib.llama_supports_gpu_offload())


@dataclass(frozen=True, slots=True)
class Device:
    """What this build of llama.cpp can compute on."""

    name: str
    description: str
    is_gpu: bool
    memory_bytes: int
    free_bytes: int


def devices() -> list[Device]:
    """All devices, GPUs first as llama.cpp orders them."""
    return [_device(_ggml("ggml_backend_dev_get", _handle, i)) for i in range(_ggml("ggml_backend_dev_count", _size))]


def _device(handle: int) -> Device:
    device, free, total = _handle(handle), ctypes.c_size_t(), ctypes.c_size_t()
    _ggml("ggml_backend_dev_memory", None, device, ctypes.byref(free), ctypes.byref(total))
    texts = (_ggml(f"ggml_backend_dev_{what}", ctypes.c_char_p, device) for what in ("name", "description"))
    name, description = (text.decode("utf-8", "replace") for text in texts)
    kind = _ggml("ggml_backend_dev_type", ctypes.c_int, device)
    return Device(name, description, kind in _GPU_KINDS, total.value, free.value)


def _ggml(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the library below llama.cpp, for which the bindings have no names."""
    function = lib._lib[name]  # a fresh object at each look-up, so that the types are ours alone
    function.restype = result
    return function(*(_size(argument) if isinstance(argument, int) else argument for argument in arguments))


def build_features() -> dict[str, str]:
    """What the library was compiled with, as it says itself: {"AVX2": "1", "OPENMP": "1", ...}."""
    return dict(re.findall(r"(\w+) = (\S+)", lib.llama_print_system_info().decode()))


# Those that people use, smallest loss first; llama.cpp has more, which need a matrix of importances to be any good.
QUANTISATIONS = {
    "bf16": lib.LLAMA_FTYPE_MOSTLY_BF16,
    "f16": lib.LLAMA_FTYPE_MOSTLY_F16,
    "q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q6_k": lib.LLAMA_FTYPE_MOSTLY_Q6_K,
    "q5_k_m": lib.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "q4_k_m": lib.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q3_k_m": lib.LLAMA_FTYPE_MOSTLY_Q3_K_M,
    "q2_k": lib.LLAMA_FTYPE_MOSTLY_Q2_K,
}


def quantize(source: Path, target: Path, kind: str, *, threads: int) -> None:
    """Write `target` with weights of another kind; what is quantised already may be quantised again.

    Blocks for minutes with a large model and aborts the process on some broken files. Raises InferenceError.
    """
    parameters = lib.llama_model_quantize_default_params()
    parameters.nthread, parameters.ftype, parameters.allow_requantize = threads, QUANTISATIONS[kind], True
    code = lib.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters))
    if code:
        raise InferenceError(f"llama.cpp could not quantise {source} to {kind}")


class DecodeFailed(InferenceError):
    """llama.cpp refused or aborted a batch."""


class LlamaModel:
    """Weights and vocabulary. Tokenising is thread-safe; contexts are made from it."""

    def __init__(self, handle: Any, path: Path, *, weights: bool = True) -> None:
        self.handle = handle
        self.path = path
        self.has_weights = weights
        self._vocabulary = lib.llama_model_get_vocab(handle)
        self.vocabulary_size: int = lib.llama_vocab_n_tokens(self._vocabulary)
        self.context_length: int = lib.llama_model_n_ctx_train(handle)
        self.dimensions: int = lib.llama_model_n_embd(handle)
        self._markup = self._markup_pattern()

    @classmethod
    def load(cls, path: Path, *, gpu_layers: int = 0, weights: bool = True) -> LlamaModel:
        """Without `weights` the facts and the vocabulary come in milliseconds, and no context can be made.

        Raises ModelNotLoaded with a reason a person can act on.
        """
        if not path.is_file():
            raise ModelNotLoaded(f"no model file at {path}")
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelNotLoaded(f"{path} is not a GGUF file")
        parameters = lib.llama_model_default_params()
        parameters.n_gpu_layers = gpu_layers if has_gpu() else 0
        if not weights:
            parameters.no_alloc, parameters.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
        handle = lib.llama_model_load_from_file(str(path).encode(), parameters)
        if not handle:
            raise ModelNotLoaded(f"llama.cpp could not load {path}: truncated, or an architecture it does not know")
        return cls(handle, path, weights=weights)

    def close(self) -> None:
        if self.handle:
            lib.llama_model_free(self.handle)
            self.handle = None

    @property
    def parameters(self) -> int:
        return int(lib.llama_model_n_params(self.handle))

    @property
    def weight_bytes(self) -> int:
        return int(lib.llama_model_size(self.handle))

    @property
    def quantisation(self) -> str:
        name = lib.llama_ftype_name(lib.llama_model_ftype(self.handle))
        return name.decode() if name else "unknown"

    @property
    def kv_shape(self) -> tuple[int, int, int]:
        """Layers, attention heads and heads with keys and values of their own."""
        facts = (lib.llama_model_n_layer, lib.llama_model_n_head, lib.llama_model_n_head_kv)
        layers, heads, kv_heads = (int(fact(self.handle)) for fact in facts)
        return layers, heads, kv_heads

    def metadata(self) -> dict[str, str]:
        """The single values of the file's header; lists (such as the vocabulary) are left out."""
        buffer = ctypes.create_string_buffer(_METADATA_BYTES_MAX)

        def text(read: Any, index: int) -> str:
            read(self.handle, index, buffer, len(buffer))
            return buffer.value.decode("utf-8", "replace")

        return {
            text(lib.llama_model_meta_key_by_index, i): text(lib.llama_model_meta_val_str_by_index, i)
            for i in range(lib.llama_model_meta_count(self.handle))
        }

    @property
    def chat_template(self) -> str | None:
        template = lib.llama_model_chat_template(self.handle, None)
        return template.decode() if template else None

    @property
    def name(self) -> str:
        """What the API calls the model: the file's name without its format."""
        return _QUANTISATION.sub("", self.path.stem)

    @property
    def bos(self) -> int | None:
        """The token to put in front of every prompt, where the model wants one."""
        return int(lib.llama_vocab_bos(self._vocabulary)) if lib.llama_vocab_get_add_bos(self._vocabulary) else None

    def token_text(self, token: int) -> str:
        """Raises UnknownToken."""
        if not 0 <= token < self.vocabulary_size:
            raise UnknownToken(f"the model has no token {token}")
        return str(lib.llama_vocab_get_text(self._vocabulary, token).decode("utf-8", "replace"))

    @property
    def bos_text(self) -> str:
        token = lib.llama_vocab_bos(self._vocabulary)
        return self.token_text(token) if token >= 0 else ""

    @property
    def eos_text(self) -> str:
        token = lib.llama_vocab_eos(self._vocabulary)
        return self.token_text(token) if token >= 0 else ""

    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a turn."""
        return frozenset(t for t in range(self.vocabulary_size) if lib.llama_vocab_is_eog(self._vocabulary, t))

    def pieces(self) -> list[bytes]:
        """The bytes of every token. Control tokens are empty but for those of calls and thoughts; user-defined ones
        (tool markers) have their text.
        """
        heard = spoken(self.chat_template or "")
        buffer = ctypes.create_string_buffer(TOKEN_BYTES_MAX)
        pieces = []
        for token in range(self.vocabulary_size):
            control = lib.llama_vocab_is_control(self._vocabulary, token)
            silent = control and self.token_text(token) not in heard
            length = 0 if silent else lib.llama_token_to_piece(self._vocabulary, token, buffer, len(buffer), 0, True)
            pieces.append(buffer.raw[: max(0, length)])
        return pieces

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Text to ids. Only with `parse_special` may text become special tokens; `add_special` adds BOS/EOS/CLS/SEP."""
        if parse_special or not (found := list(self._markup.finditer(text))):
            return self._tokenize(text, add_special, parse_special)
        # llama.cpp recognises user-defined tokens (tool markers) even where special tokens are off. Cut behind their
        # first character and they are ordinary text.
        cuts = [0, *(match.start() + 1 for match in found), len(text)]
        return [t for a, b in pairwise(cuts) for t in self._tokenize(text[a:b], add_special and a == 0, False)]

    def grammar(self, text: str) -> GrammarMask:
        """Compile a GBNF grammar. Thread-safe. Raises InvalidSchema for one that llama.cpp refuses, EngineStopped."""
        if not self.handle:  # a request that comes while the worker stops
            raise EngineStopped("the model is closed")
        sampler = lib.llama_sampler_init_grammar(self._vocabulary, text.encode(), b"root")
        if not sampler:  # the null pointer is an object: only its truth tells
            raise InvalidSchema("no grammar can be made of this schema")
        return GrammarMask(ctypes.cast(sampler, _handle).value)

    def _markup_pattern(self) -> re.Pattern[str]:
        """Finds where the text of a user-defined token begins. Those of words or blanks are no markup."""
        user_defined = lib.LLAMA_TOKEN_ATTR_USER_DEFINED
        texts = {
            self.token_text(token)
            for token in range(self.vocabulary_size)
            if lib.llama_vocab_get_attr(self._vocabulary, token) & user_defined
        }
        markup = sorted(text for text in texts if len(text) > 1 and not text.isspace() and not text.isalnum())
        return re.compile("(?=" + "|".join(map(re.escape, markup)) + ")" if markup else r"(?!)")

    def _tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        if not self.handle:  # a request that comes while the worker stops
            raise EngineStopped("the model is closed")
        raw = text.encode("utf-8", "surrogatepass" if parse_special else "replace")
        room = len(raw) + 2
        while True:
            buffer = (lib.llama_token * room)()
            count = lib.llama_tokenize(self._vocabulary, raw, len(raw), buffer, room, add_special, parse_special)
            if count >= 0:
                return list(buffer[:count])
            room = -count


_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class GrammarMask:
    """Where one text stands in a grammar, and which tokens may follow. For one thread at a time.

    llama.cpp aborts the process when it is told of a token that the grammar forbids, so none is without being checked.
    """

    def __init__(self, handle: int | None) -> None:
        self._handle = handle
        self._checked: int | None = None  # the token that may come next, when one was asked about

    def __del__(self) -> None:
        _grammar_free(self._handle)

    def clone(self) -> GrammarMask:
        """The same place, from where another text goes its own way: much cheaper than compiling."""
        return GrammarMask(_grammar_clone(self._handle))

    def allows(self, token: int) -> bool:
        """Whether the token may come next; one that ends the turn may when the text is complete."""
        allowed = bool(self.allowed(np.array([token]))[0])
        self._checked = token if allowed else None
        return allowed

    def allowed(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """The same for many tokens at once."""
        candidates = np.zeros(len(tokens), _CANDIDATE)
        candidates["id"] = tokens
        pointer = candidates.ctypes.data_as(lib.llama_token_data_p)
        _grammar_apply(self._handle, ctypes.byref(lib.llama_token_data_array(pointer, len(candidates), -1, False)))
        kept: NDArray[np.bool_] = candidates["logit"] == 0
        return kept

    def accept(self, token: int) -> None:
        """The text goes on with this token. Raises ValueError for one that may not come next."""
        if token != self._checked and not self.allows(token):
            raise ValueError(f"token {token} does not fit the grammar")
        _grammar_accept(self._handle, token)
        self._checked = None


class _Batch:
    """A llama_batch over numpy arrays: filling it is slice assignment instead of one ctypes call a field."""

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
        """Returns the number of outputs. Raises DecodeFailed for what would make llama.cpp abort."""
        rows = sum(len(chunk.tokens) for chunk in chunks)
        if not 0 < rows <= self.rows:
            raise DecodeFailed(f"a batch of {rows} rows; 1 to {self.rows} are possible")
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


class LlamaContext:
    """KV cells for `slots` sequences of `context` tokens each, and the step that computes them.

    On a CPU each slot is a stream of its own and flash attention is off, which is the fastest there; a GPU gets one
    unified cache with flash attention. Forking a prefix copies a stream (about a thousandth of computing it) in the
    first case and only marks cells in the second.
    """

    def __init__(
        self, model: LlamaModel, *, slots: int, context: int, rows_max: int, threads: int, outputs_max: int = 0
    ) -> None:
        if not model.has_weights:  # llama.cpp would compute with memory that is not there
            raise ModelNotLoaded(f"{model.path.name} was opened without its weights")
        self.outputs_max = max(outputs_max, slots)  # with fewer than slots, llama.cpp aborts
        gpu = has_gpu()
        parameters = lib.llama_context_default_params()
        parameters.n_ctx = slots * context
        parameters.n_batch = parameters.n_ubatch = rows_max
        parameters.n_seq_max = slots
        parameters.n_outputs_max = self.outputs_max
        parameters.kv_unified = gpu
        parameters.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if gpu else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.swa_full = True  # without it a sliding-window model cannot go back to a shared prefix
        parameters.no_perf = True
        self._context = lib.llama_init_from_model(model.handle, parameters)
        if not self._context:
            raise ModelNotLoaded(f"not enough memory for {slots} sequences of {context} tokens with {model.path.name}")
        self._memory = lib.llama_get_memory(self._context)
        if not self._memory:  # its decode aborts
            self.close()
            raise ModelNotLoaded(f"{model.path.name} is an encoder: it can embed texts and not write any")
        self._batch = _Batch(rows_max)
        self._threads = ThreadChooser([1, threads] if not gpu else [threads])
        self._unified = gpu
        self.exact = not gpu  # measured: separate streams without flash attention
        self.slots = slots
        self.context = context
        self.rows_max = rows_max
        self.rewinds = not (lib.llama_model_is_recurrent(model.handle) or lib.llama_model_is_hybrid(model.handle))
        self.vocabulary_size = model.vocabulary_size

    def close(self) -> None:
        if self._context:
            lib.llama_free(self._context)
            self._context = None

    def decode(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        """Compute the chunks; returns logits [outputs, vocabulary], valid until the next call, in chunk order.

        A slot may appear once, and chunks must be sorted by slot: with separate streams llama.cpp starts a new
        micro-batch wherever the order breaks. Raises DecodeFailed.
        """
        if not self._context:
            raise DecodeFailed("the context is closed")
        outputs = self._batch.fill(chunks, self.slots, self.context)
        if outputs > self.outputs_max:
            raise DecodeFailed(f"{outputs} outputs; {self.outputs_max} are possible")
        rows = self._batch.raw.n_tokens
        threads = self._threads.choose(rows)
        _set_threads(self._context, threads, threads)
        started = perf_counter()
        code = lib.llama_decode(self._context, self._batch.raw)
        self._threads.observe(rows, threads, perf_counter() - started)
        if code:
            raise DecodeFailed(f"llama_decode returned {code}")
        shape = (outputs, self.vocabulary_size)
        if not outputs:
            return np.empty(shape, np.float32)
        pointer = _logits(self._context)  # may move between steps
        return np.ctypeslib.as_array((ctypes.c_float * (outputs * shape[1])).from_address(pointer)).reshape(shape)

    def fork(self, source: int, target: int, length: int) -> None:
        """Make `target` hold the first `length` tokens of `source`. Raises DecodeFailed."""
        if source == target or not 0 <= length <= self.length(source):
            raise DecodeFailed(f"slot {target} cannot take {length} tokens of slot {source}")
        self.truncate(target, 0)
        if self._unified:
            _memory_copy(self._memory, source, target, 0, length)
        else:
            _memory_copy(self._memory, source, target, -1, -1)  # a part of a stream cannot be copied
            self.truncate(target, length)

    def truncate(self, slot: int, length: int) -> None:
        """Forget what a slot holds from token `length` on. Raises DecodeFailed."""
        self._check(slot)
        if length < 0 or not _memory_remove(self._memory, slot, length or -1, -1):
            raise DecodeFailed(f"slot {slot} cannot go back to {length} tokens")

    def save(self, slot: int) -> NDArray[np.uint8]:
        """The state of a slot as bytes. Only a context of the same model and settings can take it back.

        Raises DecodeFailed.
        """
        self._check(slot)
        state = np.empty(lib.llama_state_seq_get_size(self._context, slot), np.uint8)
        written = lib.llama_state_seq_get_data(self._context, _bytes(state), state.nbytes, slot)
        if written != state.nbytes:
            raise DecodeFailed(f"the state of slot {slot} could not be saved")
        return state

    def restore(self, slot: int, state: NDArray[np.uint8]) -> None:
        """Make a slot hold what was saved. Raises DecodeFailed, and the slot is empty then."""
        self.truncate(slot, 0)
        if not lib.llama_state_seq_set_data(self._context, _bytes(state), state.nbytes, slot):
            raise DecodeFailed(f"a state of {state.nbytes} bytes does not fit slot {slot}")

    def length(self, slot: int) -> int:
        """Tokens that a slot holds. Raises DecodeFailed."""
        self._check(slot)
        return int(_memory_last(self._memory, slot)) + 1

    def _check(self, slot: int) -> None:
        """Raises DecodeFailed where llama.cpp would abort or read memory that was given back."""
        if not self._context or not 0 <= slot < self.slots:
            raise DecodeFailed(f"no slot {slot}" if self._context else "the context is closed")


def _bytes(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


class EmbeddingContext:
    """Runs an encoder over whole texts and returns the vector of every token (no pooling)."""

    def __init__(self, model: LlamaModel, *, rows_max: int, sequences_max: int, threads: int) -> None:
        parameters = lib.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = rows_max
        parameters.n_seq_max = sequences_max
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.embeddings = True
        parameters.pooling_type = lib.LLAMA_POOLING_TYPE_NONE
        parameters.kv_unified = True
        parameters.no_perf = True
        self._context = lib.llama_init_from_model(model.handle, parameters)
        if not self._context:
            raise ModelNotLoaded(f"{model.path.name} cannot be used as an embedder")
        self._batch = _Batch(rows_max)
        self._batch.outputs[:] = 1
        self._rows_max = rows_max
        self._sequences_max = sequences_max
        self._dimensions = model.dimensions

    def close(self) -> None:
        if self._context:
            lib.llama_free(self._context)
            self._context = None

    def encode(self, sequences: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """Token ids of each text -> vectors [tokens, dimensions] of each. A text must fit a batch.

        Raises DecodeFailed.
        """
        if not self._context:
            raise DecodeFailed("the context is closed")
        vectors: list[NDArray[np.float32]] = []
        for group in self._groups(sequences):
            vectors += self._encode_group(group)
        return vectors

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

    def _encode_group(self, group: list[Sequence[int]]) -> list[NDArray[np.float32]]:
        bounds = np.cumsum([0, *map(len, group)])
        batch = self._batch
        for slot, sequence in enumerate(group):
            rows = slice(bounds[slot], bounds[slot + 1])
            batch.tokens[rows] = sequence
            batch.positions[rows] = np.arange(len(sequence))
            batch.slots[rows] = slot
        batch.raw.n_tokens = int(bounds[-1])
        code = lib.llama_encode(self._context, batch.raw)
        if code:
            raise DecodeFailed(f"llama_encode returned {code}")
        size = int(bounds[-1]) * self._dimensions
        array = np.ctypeslib.as_array((ctypes.c_float * size).from_address(_embeddings(self._context)))
        return [part.copy() for part in np.split(array.reshape(-1, self._dimensions), bounds[1:-1])]
