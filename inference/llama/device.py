"""What this build of llama.cpp is and can compute on."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any

from inference.llama.library import lib

_GPU_KINDS = (1, 2)  # of ggml_backend_dev_type: discrete and integrated


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
    return [
        _device(_ggml("ggml_backend_dev_get", ctypes.c_void_p, i))
        for i in range(_ggml("ggml_backend_dev_count", ctypes.c_size_t))
    ]


def _device(handle: int) -> Device:
    device, free, total = ctypes.c_void_p(handle), ctypes.c_size_t(), ctypes.c_size_t()
    _ggml("ggml_backend_dev_memory", None, device, ctypes.byref(free), ctypes.byref(total))
    texts = (_ggml(f"ggml_backend_dev_{what}", ctypes.c_char_p, device) for what in ("name", "description"))
    name, description = (text.decode("utf-8", "replace") for text in texts)
    kind = _ggml("ggml_backend_dev_type", ctypes.c_int, device)
    return Device(name, description, kind in _GPU_KINDS, total.value, free.value)


def _ggml(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the library below llama.cpp, for which the bindings have no names."""
    function = lib._lib[name]  # a fresh object at each look-up, so that the types are ours alone
    function.restype = result
    return function(*(ctypes.c_size_t(argument) if isinstance(argument, int) else argument for argument in arguments))


def build_features() -> dict[str, str]:
    """What the library was compiled with, as it says itself: {"AVX2": "1", "OPENMP": "1", ...}."""
    return dict(re.findall(r"(\w+) = (\S+)", lib.llama_print_system_info().decode()))
