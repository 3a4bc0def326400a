"""Where a CPU keeps tensors: at whole cache lines, which vector instructions load, and in pages of 2 MiB."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference.llama.library import CACHE_LINE, _buffer_start, _cdll, _repacked_buffers, _typed
from inference.pages import HUGE_PAGE, pages

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


def asks_for_huge_pages(address: int) -> bool:
    """What the kernel noted of the mapping that holds the address, whether or not it has such pages to give."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first:
            low, high = (int(bound, 16) for bound in first.split("-"))
            inside = low <= address < high
        elif inside and first == "VmFlags:":
            return "hg" in rest
    raise AssertionError("no such mapping")


@pytest.fixture
def kernel_has_huge_pages() -> bool:
    return Path("/sys/kernel/mm/transparent_hugepage").is_dir()


def test_weights_and_caches_are_asked_for_in_huge_pages(kernel_has_huge_pages: bool) -> None:
    usual = _typed(_cdll.ggml_backend_cpu_buffer_type, handle)()
    for kind in (usual, *_repacked_buffers()):
        buffer = _typed(_cdll.ggml_backend_buft_alloc_buffer, handle, handle, size)(kind, 4 * HUGE_PAGE)
        assert asks_for_huge_pages(_buffer_start(buffer) + 2 * HUGE_PAGE) == kernel_has_huge_pages
        _typed(_cdll.ggml_backend_buffer_free, None, handle)(buffer)


def test_parked_states_are_asked_for_in_huge_pages(kernel_has_huge_pages: bool) -> None:
    state = pages(4 * HUGE_PAGE)
    assert asks_for_huge_pages(state.ctypes.data) == kernel_has_huge_pages
