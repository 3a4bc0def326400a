"""What this build of llama.cpp is and can compute on."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.llama.library import lib
from inference.weight_placement import NONE, Split

_DISCRETE, _INTEGRATED = 1, 2  # of ggml_backend_dev_type
_METAL = "Metal"
_KNOWN_AS = {"MTL": _METAL}  # what people call a backend that llama.cpp abbreviates


@dataclass(frozen=True, slots=True)
class Device:
    """What this build of llama.cpp can compute on."""

    name: str
    description: str
    is_gpu: bool
    memory_bytes: int
    free_bytes: int
    is_integrated: bool = False  # a GPU in the CPU's package, as llama.cpp tells it

    @property
    def backend(self) -> str:
        """What llama.cpp computes on it with: Vulkan, CUDA, Metal, CPU."""
        return _known_as(self.name.rstrip("0123456789"))

    @property
    def uses_host_memory(self) -> bool:
        """Whether what it holds is taken from the memory of the CPU. Metal counts each GPU as a discrete one."""
        return self.is_integrated or (self.is_gpu and self.backend == _METAL)


def devices() -> list[Device]:
    """All devices, GPUs first as llama.cpp orders them."""
    return [
        _device(_ggml("ggml_backend_dev_get", ctypes.c_void_p, i))
        for i in range(_ggml("ggml_backend_dev_count", ctypes.c_size_t))
    ]


def computing(found: Sequence[Device], split: Split) -> list[Device]:
    """Which of them llama.cpp offloads to: integrated GPUs where there is no other, and one without a split."""
    gpus = [device for device in found if device.is_gpu]
    discrete = [gpu for gpu in gpus if not gpu.is_integrated]
    used = discrete or gpus
    if split.mode == NONE:
        return used[:1]
    shares = split.shares or (1.0,) * len(used)
    return [gpu for gpu, share in zip(used, shares, strict=False) if share]


def backends() -> list[str]:
    """What this build can compute on, as llama.cpp names it: ["CUDA", "CPU"]. There may be no device of it."""
    names = []
    for i in range(_ggml("ggml_backend_reg_count", ctypes.c_size_t)):
        handle = ctypes.c_void_p(_ggml("ggml_backend_reg_get", ctypes.c_void_p, i))
        names.append(_known_as(_ggml("ggml_backend_reg_name", ctypes.c_char_p, handle).decode()))
    return names


def _known_as(name: str) -> str:
    return _KNOWN_AS.get(name, name)


def _device(handle: int) -> Device:
    device, free, total = ctypes.c_void_p(handle), ctypes.c_size_t(), ctypes.c_size_t()
    _ggml("ggml_backend_dev_memory", None, device, ctypes.byref(free), ctypes.byref(total))
    texts = (_ggml(f"ggml_backend_dev_{what}", ctypes.c_char_p, device) for what in ("name", "description"))
    name, description = (text.decode("utf-8", "replace") for text in texts)
    kind = _ggml("ggml_backend_dev_type", ctypes.c_int, device)
    is_gpu = kind in (_DISCRETE, _INTEGRATED)
    return Device(name, description, is_gpu, total.value, free.value, kind == _INTEGRATED)


def _ggml(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the library below llama.cpp, for which the bindings have no names."""
    function = lib._lib[name]  # a fresh object at each look-up, so that the types are ours alone
    function.restype = result
    return function(*(ctypes.c_size_t(argument) if isinstance(argument, int) else argument for argument in arguments))


def build_features() -> dict[str, str]:
    """What the library was compiled with, as it says itself: {"AVX2": "1", "OPENMP": "1", ...}."""
    return dict(re.findall(r"(\w+) = (\S+)", lib.llama_print_system_info().decode()))
