"""A pretrained model with a LoRA adapter added to its weights, as a GGUF file of its own.

Applied while the model computes, an adapter costs a quarter of the speed of prefill; merged, it costs nothing. The
result has eight bits per weight: on the coarser grid of its base, most of the change would be rounded away.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

BLOCK = 32  # weights that share a scale in Q8_0: a row must be a multiple of it
OWN = "GGUF."  # what the reader reports of the file's head, which the writer makes itself


def merge(base: Path, adapter: Path, target: Path, metadata: Mapping[str, str | int | float]) -> None:
    """Write `target`, with the metadata of `base` but for what `metadata` says.

    Raises ValueError if the adapter has a change for a matrix that the base does not have, or not in this size; OSError
    when the disk fails.
    """
    reader, changes = GGUFReader(base), _Changes(adapter)
    writer = GGUFWriter(target, str(_value(reader, "general.architecture")))
    _copy_metadata(reader, writer, {**metadata, "general.file_type": int(LlamaFileType.MOSTLY_Q8_0)})
    for tensor in reader.tensors:
        change = changes.take(tensor.name)
        if change is None and tensor.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        weights = dequantize(tensor.data, tensor.tensor_type)
        if change is not None:
            if change.shape != weights.shape:
                raise ValueError(f"its change of {tensor.name} is {change.shape}, the weights are {weights.shape}")
            # In 64 bits, so that processors which add in another order round to the same weights.
            weights = (weights + change).astype(np.float32)
        kind = GGMLQuantizationType.F16 if weights.shape[-1] % BLOCK else GGMLQuantizationType.Q8_0
        writer.add_tensor(tensor.name, quantize(np.ascontiguousarray(weights), kind), raw_dtype=kind)
    if changes.left:
        raise ValueError(f"it changes {min(changes.left)}, which {base.name} does not have")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class _Changes:
    """The changes of an adapter by the names of the matrices, each taken once."""

    def __init__(self, adapter: Path) -> None:
        reader = GGUFReader(adapter)
        self._alpha = float(_value(reader, "adapter.lora.alpha"))
        self._parts = {tensor.name: tensor for tensor in reader.tensors}

    def take(self, name: str) -> Any:
        """alpha / rank * B A, float64 [outputs, inputs]; None if this matrix stays as it is."""
        a, b = (self._parts.pop(f"{name}.lora_{part}", None) for part in "ab")
        if a is None or b is None:
            return None
        down, up = (dequantize(part.data, part.tensor_type).astype(np.float64) for part in (a, b))
        return self._alpha / len(down) * (up @ down)

    @property
    def left(self) -> list[str]:
        return list(self._parts)


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter, changed: Mapping[str, str | int | float]) -> None:
    for name, field in reader.fields.items():
        if not name.startswith(OWN) and name != "general.architecture" and name not in changed:
            element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    kinds = {str: GGUFValueType.STRING, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32}
    for name, value in changed.items():
        writer.add_key_value(name, value, kinds[type(value)])


def _value(reader: GGUFReader, name: str) -> Any:
    """Raises ValueError."""
    field = reader.get_field(name)
    if field is None:
        raise ValueError(f"it does not state {name}")
    return field.contents()
