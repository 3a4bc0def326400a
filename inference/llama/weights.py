"""Weights and vocabulary of a GGUF file."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias

from inference.attention import AUTO
from inference.errors import EngineStopped, InferenceError, ModelNotLoaded, OutOfDeviceMemory, UnknownToken
from inference.llama.library import complaints, end_compute_threads, has_gpu, lib, no_memory, tokenize_short
from inference.tokenizer import significant_tokens
from inference.weight_placement import LAYER, NONE, ROW, Split

_QUANTISATION = re.compile(r"[-.](i?q\d\w*|b?f16|f32)$", re.IGNORECASE)
_METADATA_BYTES_MAX = 4096  # per value; chat templates are read by a function of their own
_HEADS = ("cls.weight", "cls.output.weight")  # of rank models; either is enough
_SPLIT_MODES = {NONE: lib.LLAMA_SPLIT_MODE_NONE, LAYER: lib.LLAMA_SPLIT_MODE_LAYER, ROW: lib.LLAMA_SPLIT_MODE_ROW}
_LOAD_MODES = {
    AUTO: lib.LLAMA_LOAD_MODE_AUTO,
    "mmap": lib.LLAMA_LOAD_MODE_MMAP,
    "mlock": lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
    "read": lib.LLAMA_LOAD_MODE_NONE,
}
_NO_ROWS = "does not support split buffers"  # part of llama.cpp's message
_NO_DEVICES = (ctypes.c_void_p * 1)()  # a null-terminated list
ONE_WAY = Split()
TOKEN_BYTES_MAX = 512  # the longest text that a single token may represent
# Shorter texts, such as most questions, are tokenised without giving up the GIL: they take at most 0.15 ms, and the
# engine's thread would often keep the GIL for longer.
SHORT_BYTES = 256


Progress: TypeAlias = Callable[[float], bool | None]  # False: the weights are not wanted any more
FileVersion: TypeAlias = tuple[Path, int, int, int]  # without symbolic links; bytes, time of change in ns, inode


def model_name(path: Path) -> str:
    """The name of the model in the API: the file name without extension and quantisation."""
    return _QUANTISATION.sub("", path.stem)


def version_of(path: Path) -> FileVersion:
    """Which content of a file is read: one that was replaced since is another, even where images keep no times."""
    facts = path.stat()
    return path.resolve(), facts.st_size, facts.st_mtime_ns, facts.st_ino


class LlamaModel:
    """Weights and vocabulary. Tokenising is thread-safe; contexts are created from it."""

    def __init__(
        self,
        handle: Any,
        path: Path,
        file_version: FileVersion,
        *,
        weights: bool = True,
        on_gpu: bool = False,
        free: Callable[[Any], None] = lib.llama_model_free,
    ) -> None:
        self.handle = handle
        self._free = free
        self.path = path
        self.file_version = file_version
        self.has_weights = weights
        self.on_gpu = on_gpu  # whether at least some of its layers are
        self._vocabulary_handle = lib.llama_model_get_vocab(handle)
        self.vocabulary_size: int = lib.llama_vocab_n_tokens(self._vocabulary)
        self.context_length: int = lib.llama_model_n_ctx_train(handle)
        self.dimensions: int = lib.llama_model_n_embd(handle)
        self.input_dimensions: int = lib.llama_model_n_embd_inp(handle)
        self._reads_by_expressions = lib.llama_vocab_type(self._vocabulary) == lib.LLAMA_VOCAB_TYPE_BPE

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        gpu_layers: int = 0,
        split: Split = ONE_WAY,
        load_mode: str = AUTO,
        weights: bool = True,
        progress: Progress | None = None,
    ) -> LlamaModel:
        """Without `weights`, metadata and vocabulary load in milliseconds, and no context can be created. `progress` is
        called with the share that is loaded, from 0 to 1, on this thread; what it returns may end the load.

        Raises ModelNotLoaded with a reason that the user can act on; OutOfDeviceMemory if a GPU has too little memory.
        """
        if not path.is_file():
            raise ModelNotLoaded(f"no model file at {path}")
        try:
            with path.open("rb") as file:
                if file.read(4) != b"GGUF":
                    raise ModelNotLoaded(f"{path} is not a GGUF file")
        except OSError as error:
            raise ModelNotLoaded(f"{path} cannot be read: {error.strerror}") from error
        file_version = version_of(path)
        parameters = lib.llama_model_default_params()
        offloaded = gpu_layers if has_gpu() else 0
        parameters.n_gpu_layers = offloaded
        if not offloaded:  # else a GPU would get the results of steps and copies of large matrices
            parameters.devices = ctypes.addressof(_NO_DEVICES)
        parameters.split_mode = _SPLIT_MODES[split.mode]
        shares = (ctypes.c_float * lib.llama_max_devices())(*split.shares)
        if split.shares:
            parameters.tensor_split = shares
        parameters.load_mode = _LOAD_MODES[load_mode]
        unwanted = Event()
        tell = lib.llama_progress_callback(partial(_progressed, progress, unwanted))
        parameters.progress_callback = tell
        if not weights:
            parameters.no_alloc, parameters.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
        with complaints() as said:
            handle = lib.llama_model_load_from_file(str(path).encode(), parameters)
        end_compute_threads()  # some CPUs need the weights in another order, into which loading puts them in parallel
        if not handle:
            if unwanted.is_set():
                raise ModelNotLoaded(f"the load of {path} was given up")
            if offloaded and (reason := no_memory(said)):
                raise OutOfDeviceMemory(f"the GPU has no room for {path.name}: {reason}")
            if any(_NO_ROWS in line for line in said):
                raise ModelNotLoaded("this GPU cannot share the rows of a matrix: use --gpu-split layer")
            raise ModelNotLoaded(f"llama.cpp could not load {path}: truncated, or an architecture it does not know")
        return cls(handle, path, file_version, weights=weights, on_gpu=bool(offloaded))

    @property
    def is_current(self) -> bool:
        """Whether its path still leads to what was read."""
        return self.path.is_file() and version_of(self.path) == self.file_version

    def close(self) -> None:
        if self.handle:
            self._free(self.handle)
            self.handle = None

    @property
    def _vocabulary(self) -> Any:
        """Raises EngineStopped where the model is closed, as for a request that arrives during shutdown: what it points
        to is gone then, and may still look whole."""
        if not self.handle:
            raise EngineStopped("the model is closed")
        return self._vocabulary_handle

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
        """Layers, attention heads and KV heads."""
        facts = (lib.llama_model_n_layer, lib.llama_model_n_head, lib.llama_model_n_head_kv)
        layers, heads, kv_heads = (int(fact(self.handle)) for fact in facts)
        return layers, heads, kv_heads

    @property
    def cells_worth(self) -> float:
        """A row attends to so many cells in about the time in which a few rows read the weights: it multiplies keys and
        values of each cell, in each layer, by as many numbers as the model has dimensions."""
        layers, _, _ = self.kv_shape
        return (self.parameters - self.vocabulary_size * self.dimensions) / (layers * self.dimensions)

    @property
    def window(self) -> int:
        """The tokens that layers with a sliding window attend to; 0 without such layers."""
        return int(lib.llama_model_n_swa(self.handle))

    @property
    def recurs(self) -> bool:
        """Whether it has recurrent layers, perhaps beside layers with attention."""
        return bool(lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle))

    def metadata(self) -> dict[str, str]:
        """The scalar values of the file's header; arrays (such as the vocabulary) are left out."""
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
        """Raises ModelNotLoaded if it is damaged."""
        template = lib.llama_model_chat_template(self.handle, None)
        try:
            return template.decode() if template else None
        except UnicodeDecodeError:
            raise ModelNotLoaded(f"{self.path} has a damaged chat template: download it again") from None

    @property
    def name(self) -> str:
        return model_name(self.path)

    @property
    def architecture(self) -> str:
        return self.metadata().get("general.architecture", "")

    @property
    def pooling(self) -> int | None:
        """How a text's vector is pooled from its tokens, one of lib.LLAMA_POOLING_TYPE_*; None if the file does not
        say."""
        pooling = self.metadata().get(f"{self.architecture}.pooling_type")
        return int(pooling) if pooling is not None and pooling.isdigit() else None

    @property
    def scores(self) -> int:
        """Number of outputs of a rank head, if the file declares one and contains it; else 0."""
        if self.pooling != lib.LLAMA_POOLING_TYPE_RANK:
            return 0
        has_head = any(self._holds(name) for name in _HEADS)
        return int(lib.llama_model_n_cls_out(self.handle)) if has_head else 0

    @property
    def between_texts(self) -> int:
        """Number of end markers between the two texts of a pair: XLM-R's models were trained with two."""
        return 2 if lib.llama_vocab_type(self._vocabulary) == lib.LLAMA_VOCAB_TYPE_UGM else 1

    @property
    def keeps_text(self) -> bool:
        """Whether a text's tokens spell all of it: some vocabularies drop blanks, accents or unknown characters."""
        return lib.llama_vocab_type(self._vocabulary) in (lib.LLAMA_VOCAB_TYPE_SPM, lib.LLAMA_VOCAB_TYPE_BPE)

    @property
    def bos(self) -> int | None:
        """The token at the start of every prompt, if the model needs one."""
        return int(lib.llama_vocab_bos(self._vocabulary)) if lib.llama_vocab_get_add_bos(self._vocabulary) else None

    @property
    def infill(self) -> tuple[int, int, int] | None:
        """The infill tokens before the prefix, before the suffix and before the middle; None if the vocabulary lacks
        one."""
        readers = (lib.llama_vocab_fim_pre, lib.llama_vocab_fim_suf, lib.llama_vocab_fim_mid)
        before, behind, between = (int(read(self._vocabulary)) for read in readers)
        return (before, behind, between) if min(before, behind, between) >= 0 else None

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
        vocabulary = self._vocabulary
        return frozenset(t for t in range(self.vocabulary_size) if lib.llama_vocab_is_eog(vocabulary, t))

    def vocabulary(self) -> list[bytes]:
        """The text of every token as stored in the file, whatever an answer shows of it."""
        vocabulary = self._vocabulary
        return [lib.llama_vocab_get_text(vocabulary, token) for token in range(self.vocabulary_size)]

    def pieces(self) -> list[bytes]:
        """The bytes of every token. Control tokens are empty except those of calls and reasoning; user-defined ones
        (tool markers) have their text.
        """
        heard = significant_tokens(self.chat_template or "")
        buffer = ctypes.create_string_buffer(TOKEN_BYTES_MAX)
        pieces, vocabulary = [], self._vocabulary
        for token in range(self.vocabulary_size):
            control = lib.llama_vocab_is_control(vocabulary, token)
            silent = control and self.token_text(token) not in heard
            length = 0 if silent else lib.llama_token_to_piece(vocabulary, token, buffer, len(buffer), 0, True)
            pieces.append(buffer.raw[: max(0, length)])
        return pieces

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Text to ids. Text becomes special tokens only with `parse_special`; `add_special` adds BOS/EOS/CLS/SEP."""
        found = self._cuts(text, parse_special)
        if not found:
            return self._tokenize(text, add_special, parse_special)
        begin, end = self.ends if add_special else ([], [])
        pieces = (text[a:b] for a, b in pairwise([0, *found, len(text)]))
        return [*begin, *chain.from_iterable(self._tokenize(piece, False, parse_special) for piece in pieces), *end]

    @property
    def ends(self) -> tuple[list[int], list[int]]:
        """The tokens that the model needs before and after a text."""
        bare, marked = self._tokenize("a", False, False), self._tokenize("a", True, False)
        before = next(at for at in range(len(marked)) if marked[at : at + len(bare)] == bare)
        return marked[:before], marked[before + len(bare) :]

    def _cuts(self, text: str, parse_special: bool) -> list[int]:
        """Where to cut a text before it is tokenised."""
        long_runs = cuts(text) if self._reads_by_expressions else []
        if parse_special:
            return [self._behind_mark(text, cut) for cut in long_runs]
        # llama.cpp recognises user-defined tokens (tool markers) even if special tokens are off. Cutting after the
        # first character turns them into ordinary text.
        _, markup = self._marks
        return sorted({*long_runs, *(match.start() + 1 for match in markup.finditer(text))})

    def _behind_mark(self, text: str, cut: int) -> int:
        """The cut, moved out of the text of a special token."""
        special, _ = self._marks
        near = special.finditer(text, max(0, cut - TOKEN_BYTES_MAX), cut + TOKEN_BYTES_MAX)
        return next((match.end() for match in near if match.start() < cut < match.end()), cut)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids, without special tokens. Raises UnknownToken."""
        for token in ids:
            if not 0 <= token < self.vocabulary_size:
                raise UnknownToken(f"the model has no token {token}")
        tokens = (lib.llama_token * len(ids))(*ids)
        room = TOKEN_BYTES_MAX * (len(ids) + 1)
        buffer = ctypes.create_string_buffer(room)
        length = lib.llama_detokenize(self._vocabulary, tokens, len(ids), buffer, room, False, False)
        return buffer.raw[: max(0, length)].decode("utf-8", "replace")

    def _holds(self, tensor: str) -> bool:
        """Whether the file names this tensor. llama.cpp does not report it, and would return arbitrary scores without
        it."""
        name = tensor.encode()
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(len(name).to_bytes(8, "little") + name) >= 0

    @cached_property  # many models are opened for their numbers alone
    def _marks(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """Patterns for the texts of special tokens, and for the starts of user-defined ones except words and blanks."""
        control, user_defined = lib.LLAMA_TOKEN_ATTR_CONTROL, lib.LLAMA_TOKEN_ATTR_USER_DEFINED
        texts: dict[str, int] = {}
        vocabulary = self._vocabulary
        for token in range(self.vocabulary_size):
            kind = lib.llama_vocab_get_attr(vocabulary, token) & (control | user_defined)
            if kind and len(text := self.token_text(token)) > 1:
                texts[text] = kind
        markup = [text for text in texts if texts[text] & user_defined and not text.isspace() and not text.isalnum()]
        return _any_of(texts), _any_of(markup, "(?={})")

    def _tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode("utf-8", "surrogatepass" if parse_special else "replace")
        room = len(raw) + 2
        tokenize = tokenize_short if len(raw) < SHORT_BYTES else lib.llama_tokenize
        while True:
            buffer = (lib.llama_token * room)()
            count = tokenize(self._vocabulary, raw, len(raw), buffer, room, add_special, parse_special)
            if count >= 0:
                return list(buffer[:count])
            room = -count


def _any_of(texts: Iterable[str], behind_first: str = "(?:{})") -> re.Pattern[str]:
    """Matches any of the texts, the longest at each position. The search holds the GIL. A pattern that starts with a
    character instead of a lookahead is 40 times as fast."""
    groups = groupby(sorted(texts, reverse=True), itemgetter(0))
    found = "|".join(
        re.escape(first) + behind_first.format("|".join(re.escape(text[1:]) for text in group))
        for first, group in groups
    )
    return re.compile(found or r"(?!)")


def _progressed(progress: Progress | None, unwanted: Event, share: float, _user_data: object) -> bool:
    """Returns whether to continue. An exception must not propagate into llama.cpp."""
    with suppress(Exception):
        if progress is not None and progress(share) is False:
            unwanted.set()
    return not unwanted.is_set()


# Those in common use, in order of increasing loss; llama.cpp's others are only good with an importance matrix.
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
    """Write `target` with weights of another type; a quantised file may be quantised again.

    Blocks for minutes with a large model and aborts the process on some broken files. Raises InferenceError.
    """
    parameters = lib.llama_model_quantize_default_params()
    parameters.nthread, parameters.ftype, parameters.allow_requantize = threads, QUANTISATIONS[kind], True
    code = lib.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters))
    if code:
        raise InferenceError(f"llama.cpp could not quantise {source} to {kind}")


WINDOW_CHARS = 1024  # a match is less than twice as long: 700 KB of stack, where some systems give a thread 1 MiB


# llama.cpp splits a text into words by the vocabulary's regular expressions, mostly with std::regex, which recurses for
# every character of a match: about 340 bytes of stack each. A word of 25,000 letters overflows a thread's 8 MiB of
# stack and ends the process; so do as many blanks, slashes or, for some vocabularies, words without a comma. Text that
# runs too long without a point that no expression matches across is therefore cut, if possible at the end of a word,
# which changes no token with most vocabularies. Elsewhere the tokens beside a cut may differ. An attacker chooses the
# characters, so only those count that all expressions treat alike.
_UNCROSSED = re.compile(r"[!-.:-@\[-^`{-~] [^\W_]|[\r\n] *[^\W_]")
_WORD_END = re.compile(r"[^\W\d_](?=[!-&(-/:-@\[-^`{-~、。，！？；：])")


def cuts(text: str) -> list[int]:
    """Where to cut a text before it is tokenised: once in each window that a match might cross. Linear, and fast: in
    ordinary text, the first sentence or line ends the search."""
    windows = range(0, len(text) - WINDOW_CHARS + 1, WINDOW_CHARS)
    crossed = (start for start in windows if not _UNCROSSED.search(text, start, start + WINDOW_CHARS))
    return [_cut(text, start, start + WINDOW_CHARS) for start in crossed]


def _cut(text: str, start: int, end: int) -> int:
    """The last end of a word in the window, or the end of the window."""
    last = end
    for match in _WORD_END.finditer(text, start, end):
        last = match.end()
    return last
