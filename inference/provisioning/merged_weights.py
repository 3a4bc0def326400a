"""A pretrained model with a LoRA adapter added to its weights, as a GGUF file of its own.

Applied while the model computes, an adapter costs a quarter of the speed of prefill; merged, it costs nothing. The
result has eight bits per weight: on the coarser grid of its base, most of the change would be rounded away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from inference.cores import usable_cores
from inference.provisioning.gguf_head import Head, Tensor, number, read_only, stated

BLOCK = 32  # weights that share a scale in Q8_0: a row must be a multiple of it
AT_ONCE = 2**15  # weights: in a core's own cache; of whole matrices, the library computes 16 rows at a time
KEPT = (GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0)  # where the adapter changes nothing


def merge(base: Path, adapter: Path, target: Path, metadata: Mapping[str, str | int | float]) -> None:
    """Write `target`, with the metadata of `base` but for what `metadata` says.

    Raises ValueError if a file is damaged, or the adapter has a change for a matrix that the base does not have, or not
    in this size; OSError when the disk fails.
    """
    before, changes = _Weights(base), _Changes(adapter)
    changes.check(before)
    told = {**metadata, "general.file_type": int(LlamaFileType.MOSTLY_Q8_0)}
    values = {**before.head.values, **{name: stated(value) for name, value in told.items()}}
    place, tensors = 0, list[Tensor]()
    for tensor in before.head.tensors:
        tensors.append(replace(tensor, kind=_kind(tensor, changed=tensor.name in changes), offset=place))
        place = before.head.aligned(place + _bytes(tensors[-1]))
    head = Head(values, tensors)

    def made(tensor: Tensor, wanted: Tensor) -> list[memoryview]:
        return list(_made(before.raw(tensor), tensor, wanted, changes.of(tensor)))

    with target.open("wb") as file:
        file.write(head.packed())
        start = file.tell()
        with ThreadPoolExecutor(usable_cores()) as threads:
            for tensor, parts in zip(tensors, threads.map(made, before.head.tensors, tensors), strict=True):
                file.write(bytes(start + tensor.offset - file.tell()))
                file.writelines(parts)
        file.write(bytes(start + place - file.tell()))


class _Weights:
    """The tensors of a file, as its bytes."""

    def __init__(self, path: Path) -> None:
        self.name, self._file = path.name, read_only(path)
        self.head, self._start = Head.read(self._file)
        self.by_name = {tensor.name: tensor for tensor in self.head.tensors}
        for tensor in self.head.tensors:  # a part of a tensor would pass for all of it
            if not tensor.shape or self._start + tensor.offset + _bytes(tensor) > len(self._file):
                raise ValueError(f"{self.name} does not have all of {tensor.name}")

    def raw(self, tensor: Tensor) -> memoryview:
        begin = self._start + tensor.offset
        return self._file[begin : begin + _bytes(tensor)]

    def numbers(self, tensor: Tensor) -> NDArray[np.float32]:
        """[outputs, inputs]"""
        return _numbers(self.raw(tensor), tensor).reshape(tensor.shape[::-1])


class _Changes:
    """The changes of an adapter by the names of the matrices."""

    def __init__(self, adapter: Path) -> None:
        self._weights = _Weights(adapter)
        alpha = self._weights.head.values.get("adapter.lora.alpha")
        if alpha is None:
            raise ValueError("it does not state adapter.lora.alpha")
        self._alpha = number(alpha)

    def __contains__(self, name: str) -> bool:
        return f"{name}.lora_a" in self._weights.by_name

    def check(self, base: _Weights) -> None:
        """Raises ValueError."""
        for name in sorted({part.rpartition(".lora_")[0] for part in self._weights.by_name}):
            if name not in base.by_name:
                raise ValueError(f"it changes {name}, which {base.name} does not have")
            parts = [each for part in "ab" if (each := self._weights.by_name.get(f"{name}.lora_{part}"))]
            if len(parts) != 2:
                raise ValueError(f"it has one half of its change of {name}")
            (inputs, _), (_, outputs) = (part.shape for part in parts)
            if (inputs, outputs) != (shape := base.by_name[name].shape):
                raise ValueError(f"its change of {name} is {(outputs, inputs)}, the weights are {shape[::-1]}")

    def of(self, tensor: Tensor) -> NDArray[np.float64] | None:
        """alpha / rank * B A, flat; None if this matrix stays as it is."""
        if tensor.name not in self:
            return None
        parts = (self._weights.by_name[f"{tensor.name}.lora_{part}"] for part in "ab")
        down, up = (self._weights.numbers(part).astype(np.float64) for part in parts)
        return (up @ (self._alpha / len(down) * down)).reshape(-1)


def _kind(tensor: Tensor, *, changed: bool) -> int:
    if tensor.kind in KEPT and not changed:
        return tensor.kind
    return int(GGMLQuantizationType.F16 if tensor.shape[0] % BLOCK else GGMLQuantizationType.Q8_0)


def _bytes(tensor: Tensor, weights: int | None = None) -> int:
    """Of the whole tensor, or of so many weights."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
    return (tensor.weights if weights is None else weights) // block * size


def _made(raw: memoryview, tensor: Tensor, wanted: Tensor, change: NDArray[np.float64] | None) -> Iterator[memoryview]:
    if change is None and wanted.kind == tensor.kind:
        yield raw
        return
    for first in range(0, tensor.weights, AT_ONCE):
        some = raw[_bytes(tensor, first) : _bytes(tensor, first + AT_ONCE)]
        weights = _numbers(some, tensor)
        if change is not None:
            # In 64 bits, so that processors which add in another order round to the same weights.
            weights = (weights + change[first : first + AT_ONCE]).astype(np.float32)
        yield quantize(weights, GGMLQuantizationType(wanted.kind)).data


def _numbers(raw: memoryview, tensor: Tensor) -> NDArray[np.float32]:
    """Flat: some of its weights, or all."""
    numbers: NDArray[np.float32] = dequantize(np.frombuffer(raw, np.uint8), GGMLQuantizationType(tensor.kind))
    return numbers
