"""Vector instructions load whole cache lines, so tensors begin at them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from inference.llama.library import CACHE_LINE, _cdll, _typed

F32, BYTES = 0, 4
handle, size = ctypes.c_void_p, ctypes.c_size_t


class Init(ctypes.Structure):
    _fields_ = [("mem_size", size), ("mem_buffer", handle), ("no_alloc", ctypes.c_bool)]


@pytest.fixture
def tensors() -> Iterator[Any]:
    made = _typed(_cdll.ggml_init, handle, Init)(Init(4096, None, True))
    yield made
    _typed(_cdll.ggml_free, None, handle)(made)


def test_a_tensor_behind_a_small_one_begins_at_a_cache_line(tensors: Any) -> None:
    new = _typed(_cdll.ggml_new_tensor_1d, handle, handle, ctypes.c_int, ctypes.c_int64)
    both = [new(tensors, F32, count) for count in (1, CACHE_LINE // BYTES)]
    buffers = _typed(_cdll.ggml_backend_cpu_buffer_type, handle)()
    memory = _typed(_cdll.ggml_backend_alloc_ctx_tensors_from_buft, handle, handle, handle)(tensors, buffers)
    data = _typed(_cdll.ggml_get_data, handle, handle)
    assert [data(each) % CACHE_LINE for each in both] == [0, 0]
    _typed(_cdll.ggml_backend_buffer_free, None, handle)(memory)
