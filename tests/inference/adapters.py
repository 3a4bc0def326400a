"""LoRA adapters for a bundled model, and the same change merged into its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.inference.variants import opened

RANK, ALPHA = 4, 8.0
Change = tuple[NDArray[np.float32], NDArray[np.float32]]  # A [rank, inputs] and B [outputs, rank]


def random_changes(base: Path, *, seed: int = 0, size: float = 0.2) -> dict[str, Change]:
    """Of all attention and feed-forward matrices, large enough to change what the model says."""
    random = np.random.default_rng(seed)

    def part(*shape: int) -> NDArray[np.float32]:
        return (size * random.standard_normal(shape)).astype(np.float32)

    matrices = [t for t in opened(base).tensors if t.name.startswith("blk.") and len(t.shape) == 2]
    return {t.name: (part(RANK, int(t.shape[0])), part(int(t.shape[1]), RANK)) for t in matrices}


def write_adapter(
    target: Path,
    changes: Mapping[str, Change],
    *,
    architecture: str = "llama",
    kind: str = "lora",
    more: Callable[[gguf.GGUFWriter], None] = lambda _: None,
) -> Path:
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", ALPHA)
    more(writer)
    for name, (a, b) in changes.items():
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    _write(writer)
    return target


def write_merged(base: Path, target: Path, changes: Mapping[str, Change], *, scale: float = 1.0) -> Path:
    """The base in 32 bits, with the changes added to its weights."""
    reader = opened(base)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    for tensor in reader.tensors:
        weights = gguf.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in changes:
            a, b = changes[tensor.name]
            weights = weights + scale * ALPHA / RANK * (b @ a)
        writer.add_tensor(tensor.name, np.ascontiguousarray(weights, np.float32))
    _write(writer)
    return target


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
