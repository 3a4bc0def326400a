"""A pretrained model with a LoRA adapter added to its weights, as a GGUF file of its own.

Applied while the model computes, an adapter costs a quarter of the speed of prefill; merged, it costs nothing. The
result has eight bits per weight: on the coarser grid of its base, most of the change would be rounded away.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    ReaderTensor,
)
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from inference.cores import usable_cores

BLOCK = 32  # weights that share a scale in Q8_0: a row must be a multiple of it
AT_ONCE = 2**15  # weights: in a core's own cache; of whole matrices, the library computes 16 rows at a time
KEPT = (GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0)  # where the adapter changes nothing
ARCHITECTURE = "general.architecture"
KINDS = {str: GGUFValueType.STRING, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32}
# B [outputs, rank] and A [rank, inputs], of which alpha / rank * B A is added to the weights.
Change: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]


def merge(base: Path, adapter: Path, target: Path, metadata: Mapping[str, str | int | float]) -> None:
    """Write `target`, with the metadata of `base` but for what `metadata` says.

    Raises ValueError if a file is damaged, or the adapter has a change for a matrix that the base does not have, or not
    in this size; OSError when the disk fails.
    """
    before = _opened(base)
    changes = _changes(_opened(adapter), {tensor.name: _shape(tensor) for tensor in before.tensors}, base.name)
    kinds = [_kind(tensor, changed=tensor.name in changes) for tensor in before.tensors]
    stated = {name: field for name, field in before.fields.items() if not name.startswith("GGUF.")}
    values = {name: (field.contents(), field.types[0], field.types[-1]) for name, field in stated.items()}
    told = {**metadata, "general.file_type": int(LlamaFileType.MOSTLY_Q8_0)}
    values |= {name: (value, KINDS[type(value)], KINDS[type(value)]) for name, value in told.items()}
    writer = GGUFWriter(target, values.pop(ARCHITECTURE)[0])
    writer.data_alignment = before.alignment
    for name, (value, kind, element) in values.items():
        writer.add_key_value(name, value, kind, element if kind is GGUFValueType.ARRAY else None)
    for tensor, wanted in zip(before.tensors, kinds, strict=True):
        bytes_ = _bytes(int(tensor.n_elements), wanted)
        writer.add_tensor_info(tensor.name, _shape(tensor), np.dtype(np.float32), bytes_, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()

    def made(tensor: ReaderTensor, wanted: GGMLQuantizationType) -> NDArray[np.generic]:
        return _made(tensor, wanted, changes.get(tensor.name))

    with ThreadPoolExecutor(usable_cores()) as threads:
        for weights in threads.map(made, before.tensors, kinds):
            writer.write_tensor_data(weights)
    writer.close()


def _opened(path: Path) -> GGUFReader:
    try:
        return GGUFReader(path)
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged or incomplete ({error})") from error


def _changes(adapter: GGUFReader, shapes: Mapping[str, tuple[int, ...]], base: str) -> dict[str, Change]:
    """By the names of the matrices. `shapes`: [outputs, inputs] of those that `base` has. Raises ValueError."""
    alpha = adapter.fields.get("adapter.lora.alpha")
    if alpha is None:
        raise ValueError("it does not state adapter.lora.alpha")
    parts = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in adapter.tensors}
    changes = dict[str, Change]()
    for name in sorted({part.rpartition(".lora_")[0] for part in parts}):
        if name not in shapes:
            raise ValueError(f"it changes {name}, which {base} does not have")
        down, up = (parts.get(f"{name}.lora_{part}") for part in "ab")
        if down is None or up is None:
            raise ValueError(f"it has one half of its change of {name}")
        if (changed := (len(up), down.shape[1])) != shapes[name]:
            raise ValueError(f"its change of {name} is {changed}, the weights are {shapes[name]}")
        changes[name] = up.astype(np.float64), alpha.contents() / len(down) * down.astype(np.float64)
    return changes


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    return tuple(map(int, reversed(tensor.shape)))


def _kind(tensor: ReaderTensor, *, changed: bool) -> GGMLQuantizationType:
    if tensor.tensor_type in KEPT and not changed:
        return tensor.tensor_type
    return GGMLQuantizationType.F16 if tensor.shape[0] % BLOCK else GGMLQuantizationType.Q8_0


def _bytes(weights: int, kind: GGMLQuantizationType) -> int:
    block, size = GGML_QUANT_SIZES[kind]
    return weights // block * size


def _made(tensor: ReaderTensor, wanted: GGMLQuantizationType, change: Change | None) -> NDArray[np.generic]:
    kind = tensor.tensor_type
    if change is None and wanted == kind:
        return tensor.data
    raw, added = tensor.data.reshape(-1).view(np.uint8), None if change is None else (change[0] @ change[1]).reshape(-1)
    parts = []
    for first in range(0, int(tensor.n_elements), AT_ONCE):
        weights = dequantize(raw[_bytes(first, kind) : _bytes(first + AT_ONCE, kind)], kind)
        if added is not None:
            # In 64 bits, so that processors which add in another order round to the same weights.
            weights = (weights + added[first : first + AT_ONCE]).astype(np.float32)
        parts.append(quantize(weights, wanted))
    return np.concatenate(parts)
