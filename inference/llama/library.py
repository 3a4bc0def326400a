"""The gateway to llama.cpp: the only file that imports its bindings. The rest of the package builds on these names.

Three rules keep the process alive:
- The library aborts instead of failing on a batch that is too large, on outputs beyond the limit and on sequence ids
  out of range. This package checks every such value before the call.
- ctypes.CDLL releases the GIL in each call; after a call of a microsecond, getting it back from a busy thread costs
  hundreds. Short calls are therefore bound a second time through PyDLL, which keeps it. Decode, encode, load and the
  tokenising of long texts release it. So does `synchronize`: a GPU still computes after decode has returned, and
  reading its logits would otherwise wait for it while holding the GIL.
- A context belongs to one thread, the engine's or the embedder's. Nothing here locks.
"""

from __future__ import annotations

import ctypes
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from itertools import count, takewhile
from typing import Any

from inference.errors import InferenceError, ModelNotLoaded
from inference.pages import use_huge_pages


def _bindings(name: str) -> Any:
    """A module of llama_cpp without what the package itself imports: an interface in Python that nothing here uses, and
    that takes a third of the processor time of this import."""
    if "llama_cpp" not in sys.modules and (found := find_spec("llama_cpp")):
        sys.modules["llama_cpp"] = module_from_spec(found)
    return import_module(f"llama_cpp.{name}")


lib = _bindings("llama_cpp")
log = logging.getLogger("firsttoken.llama")

_ERROR = 4
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, _ERROR: logging.ERROR}
_NO_MEMORY = re.compile(r"alloc|memory", re.IGNORECASE)
# Told of each matrix of an adapter on a CPU that has weights in another order; the adapter stays as it is.
_HARMLESS = "cannot use buft"
_complaint = ""
_hearing: list[list[str]] = []


class DecodeFailed(InferenceError):
    """llama.cpp refused or failed a batch."""


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _forward_log(level: int, text: bytes, _user_data: object) -> None:
    global _complaint
    said = text.decode("utf-8", "replace").rstrip()
    if level == _ERROR and said:
        _complaint = said
        for heard in _hearing:
            heard.append(said)
    log.log(logging.DEBUG if _HARMLESS in said else _LEVELS.get(level, logging.DEBUG), "%s", said)


def last_complaint() -> str:
    """The last error that the library logged, on any thread: most of its functions return no reason."""
    return _complaint


def _short_call(name: str, result: Any, *arguments: Any) -> Any:
    return _typed(_pydll[name], result, *arguments)


def _typed(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


lib.llama_log_set(_forward_log, ctypes.c_void_p(0))
lib.llama_backend_init()
_pydll = ctypes.PyDLL(lib._lib._name)
_i32, _handle, _bool = ctypes.c_int32, ctypes.c_void_p, ctypes.c_bool
memory_remove = _short_call("llama_memory_seq_rm", _bool, _handle, _i32, _i32, _i32)
memory_copy = _short_call("llama_memory_seq_cp", None, _handle, _i32, _i32, _i32, _i32)
memory_last = _short_call("llama_memory_seq_pos_max", _i32, _handle, _i32)
get_logits = _short_call("llama_get_logits", _handle, _handle)
set_threads = _short_call("llama_set_n_threads", None, _handle, _i32, _i32)
get_embeddings = _short_call("llama_get_embeddings", _handle, _handle)
tokenize_short = _short_call(
    "llama_tokenize", *[_i32, _handle, ctypes.c_char_p, _i32, _handle, _i32], *[ctypes.c_bool] * 2
)


@contextmanager
def complaints() -> Iterator[list[str]]:
    """Errors that the library logs within the block, on any thread."""
    heard: list[str] = []
    _hearing.append(heard)
    try:
        yield heard
    finally:
        _hearing.remove(heard)


def no_memory(said: Sequence[str]) -> str | None:
    """The first error that reports a failed allocation."""
    return next((line for line in said if _NO_MEMORY.search(line)), None)


synchronize = lib.llama_synchronize
_cdll = ctypes.CDLL(lib._lib._name)
set_abort_callback = _typed(_cdll.ggml_set_abort_callback, _handle, _handle)
_attach_pool = _typed(_cdll.llama_attach_threadpool, None, _handle, _handle, _handle)
detach_pool = _typed(_cdll.llama_detach_threadpool, None, _handle)
_end_team = getattr(_cdll, "omp_pause_resource_all", None)  # absent where llama.cpp is built without OpenMP
_SOFT_PAUSE = 1
_say_encoding = getattr(_pydll, "firsttoken_encoding", lambda _: None)  # absent without `deploy/ggml_products.h`
_CPU = 0  # of ggml's types of devices
CACHE_LINE = 64  # bytes: loads of that many take twice as long where they straddle two lines
_buffer_types = ctypes.POINTER(ctypes.POINTER(_handle))
_ALLOCATE, _ALIGNMENT = 1, 2  # places among the functions of a type of buffers, after get_name, in this version
_Allocate = ctypes.CFUNCTYPE(_handle, _handle, ctypes.c_size_t)
_cache_line = ctypes.CFUNCTYPE(ctypes.c_size_t, _handle)(lambda _: CACHE_LINE)
_allocators: list[Any] = []  # called by the library, which does not keep them alive
_buffer_start = _typed(_cdll.ggml_backend_buffer_get_base, _handle, _handle)


def _align_tensors(buffers: Any) -> None:
    """Begin every tensor in a CPU's caches and intermediate results at a cache line. llama.cpp aligns to 32 bytes, as
    files of weights do: behind an odd number of tensors that small, such as the list of a step's recurrent states, all
    others straddle lines, and a prompt takes 1.3 times as long."""
    buffers[_ALIGNMENT] = ctypes.cast(_cache_line, _handle).value


def _use_huge_pages(buffers: Any) -> None:
    """Ask the kernel for pages of 2 MiB where a CPU keeps weights, caches and intermediate results. A step reads all
    weights; with pages of 4 KiB their addresses take a tenth to a sixth of its time."""
    allocate = _Allocate(buffers[_ALLOCATE])

    def allocate_huge(kind: int, size: int) -> int | None:
        buffer: int | None = allocate(kind, size)
        if buffer:
            use_huge_pages(_buffer_start(buffer), size)
        return buffer

    _allocators.append(_Allocate(allocate_huge))
    buffers[_ALLOCATE] = ctypes.cast(_allocators[-1], _handle).value


def _repacked_buffers() -> Iterator[Any]:
    """The types of buffers in which a CPU has weights in another order, for AMX or for its vectors."""
    device = _typed(_cdll.ggml_backend_dev_by_type, _handle, ctypes.c_int)(_CPU)
    registry = _typed(_cdll.ggml_backend_dev_backend_reg, _handle, _handle)(device)
    find = _typed(_cdll.ggml_backend_reg_get_proc_address, _handle, _handle, ctypes.c_char_p)
    if function := find(registry, b"ggml_backend_dev_get_extra_bufts"):
        types = ctypes.CFUNCTYPE(_buffer_types, _handle)(function)(device)
        yield from takewhile(bool, (types[index] for index in count()))


def _tune_buffers() -> None:
    usual = _typed(_cdll.ggml_backend_cpu_buffer_type, ctypes.POINTER(_handle))()
    _align_tensors(usual)
    for buffers in (usual, *_repacked_buffers()):
        _use_huge_pages(buffers)


_tune_buffers()


@cache
def mtmd() -> Any:
    """The bindings of llama.cpp's multimodal library. Raises ModelNotLoaded where this build was made without it."""
    try:
        library = _bindings("mtmd_cpp")
    except (FileNotFoundError, RuntimeError) as error:
        raise ModelNotLoaded(
            f"this build of llama.cpp cannot see: `make setup` compiles one that can ({error})"
        ) from None
    library.mtmd_log_set(_forward_log, ctypes.c_void_p(0))
    return library


class _PoolParameters(ctypes.Structure):
    """`ggml_threadpool_params`, which the bindings do not have."""

    _fields_ = (
        ("processors", ctypes.c_bool * 512),  # a mask
        ("threads", ctypes.c_int),
        ("priority", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("is_strict", ctypes.c_bool),  # one processor for each thread
        ("is_paused", ctypes.c_bool),
    )


def new_pool(processors: Sequence[int]) -> Any:
    """Keeps each of OpenMP's threads on one of these processors; for `attach_pool`, `detach_pool` and `free_pool`. None
    without OpenMP, where a pool has threads of its own, or if llama.cpp knows fewer processors."""
    if _end_team is None or max(processors) >= _PoolParameters.processors.size:
        return None
    parameters = _typed(_cdll.ggml_threadpool_params_default, _PoolParameters, ctypes.c_int)(len(processors))
    for processor in processors:
        parameters.processors[processor] = True
    parameters.is_strict = True
    return _typed(_cdll.ggml_threadpool_new, _handle, ctypes.POINTER(_PoolParameters))(ctypes.byref(parameters))


def free_pool(pool: Any) -> None:
    _typed(_cdll.ggml_threadpool_free, None, _handle)(pool)


def attach_pool(context: Any, pool: Any) -> None:
    _attach_pool(context, pool, pool)


@contextmanager
def encoding() -> Iterator[None]:
    """Within the block, what this thread computes is an encoder, whose rounding may depend on the size of a batch."""
    _say_encoding(True)
    try:
        yield
    finally:
        _say_encoding(False)


def end_compute_threads() -> None:
    """End the threads that OpenMP keeps for computations of the calling thread.

    Every thread that has computed in parallel has a team of its own, for as long as it lives. With more threads in all
    teams than cores, OpenMP no longer lets them spin at barriers: they sleep at each of some hundred barriers per step,
    and a small model takes five times as long. The next computation starts new threads, at some 50 µs each.
    """
    if _end_team is not None:
        _end_team(_SOFT_PAUSE)


def has_gpu() -> bool:
    """Whether this build of llama.cpp can offload to a GPU that is present."""
    return bool(lib.llama_supports_gpu_offload())
