"""The devices that this build of llama.cpp can compute on, and what it was compiled for."""

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
_KNOWN_AS = {"MTL": _METAL}  # common names of backends that llama.cpp abbreviates


@dataclass(frozen=True, slots=True)
class Device:
    """A device that this build of llama.cpp can compute on."""

    name: str
    description: str
    is_gpu: bool
    memory_bytes: int
    free_bytes: int
    is_integrated: bool = False  # a GPU in the CPU's package, as reported by llama.cpp

    @property
    def backend(self) -> str:
        """The backend that llama.cpp uses for it: Vulkan, CUDA, Metal, CPU."""
        return _known_as(self.name.rstrip("0123456789"))

    @property
    def uses_host_memory(self) -> bool:
        """Whether its memory is part of the CPU's. llama.cpp reports every GPU as discrete with Metal."""
        return self.is_integrated or (self.is_gpu and self.backend == _METAL)


def devices() -> list[Device]:
    """All devices, GPUs first, in llama.cpp's order."""
    return [
        _device(_ggml("ggml_backend_dev_get", ctypes.c_void_p, i))
        for i in range(_ggml("ggml_backend_dev_count", ctypes.c_size_t))
    ]


def computing(found: Sequence[Device], split: Split) -> list[Device]:
    """The devices that llama.cpp offloads to: integrated GPUs only without discrete ones; one if there is no split."""
    gpus = [device for device in found if device.is_gpu]
    discrete = [gpu for gpu in gpus if not gpu.is_integrated]
    used = discrete or gpus
    if split.mode == NONE:
        return used[:1]
    shares = split.shares or (1.0,) * len(used)
    return [gpu for gpu, share in zip(used, shares, strict=False) if share]


def backends() -> list[str]:
    """The backends of this build, in llama.cpp's names: ["CUDA", "CPU"]. There may be no device for one."""
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
    """Call a function of the library below llama.cpp, which the bindings do not cover."""
    function = lib._lib[name]  # a new object at each look-up, so its types are not shared
    function.restype = result
    return function(*(ctypes.c_size_t(argument) if isinstance(argument, int) else argument for argument in arguments))


def build_features() -> dict[str, str]:
    """Compile-time features, as the library reports them: {"AVX2": "1", "OPENMP": "1", ...}."""
    return dict(re.findall(r"(\w+) = (\S+)", lib.llama_print_system_info().decode()))
