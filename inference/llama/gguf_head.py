"""What llama.cpp's functions for models do not tell of the head of a GGUF file: its arrays, and what tensors it names.

For files that llama.cpp has opened. Raises ModelNotLoaded if one is gone since.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inference.errors import ModelNotLoaded
from inference.llama.library import call

_ARRAY = 9  # of `gguf_type`
_NUMBERS = {
    0: ctypes.c_uint8,
    1: ctypes.c_int8,
    2: ctypes.c_uint16,
    3: ctypes.c_int16,
    4: ctypes.c_uint32,
    5: ctypes.c_int32,
    7: ctypes.c_bool,
    10: ctypes.c_uint64,
    11: ctypes.c_int64,
}


class _Parameters(ctypes.Structure):
    """`gguf_init_params`: without a context, no tensors are made."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


@contextmanager
def _head(path: Path) -> Iterator[ctypes.c_void_p]:
    head = ctypes.c_void_p(call("gguf_init_from_file", ctypes.c_void_p, str(path).encode(), _Parameters(True, None)))
    if not head:
        raise ModelNotLoaded(f"{path} cannot be read any more")
    try:
        yield head
    finally:
        call("gguf_free", None, head)


def numbers(path: Path, key: str) -> list[int]:
    """The array of whole numbers under a key; empty without one."""
    with _head(path) as head:
        at = call("gguf_find_key", ctypes.c_int64, head, key.encode())
        if at < 0 or call("gguf_get_kv_type", ctypes.c_int, head, at) != _ARRAY:
            return []
        kind = _NUMBERS.get(call("gguf_get_arr_type", ctypes.c_int, head, at))
        if kind is None:
            return []
        count = call("gguf_get_arr_n", ctypes.c_size_t, head, at)
        return list((kind * count).from_address(call("gguf_get_arr_data", ctypes.c_void_p, head, at)))


def names_tensor(path: Path, name: str) -> bool:
    with _head(path) as head:
        return bool(call("gguf_find_tensor", ctypes.c_int64, head, name.encode()) >= 0)
