"""What the memory that a model takes follows from: read from its file, or known to the catalogue."""

from __future__ import annotations

from dataclasses import dataclass

from inference.llama import LlamaModel

Q8_0_BLOCK = 32  # numbers that q8_0 scales together: it stores a head only where they divide its length


@dataclass(frozen=True, slots=True)
class Proportions:
    """`width` is that of a layer's result; `key` and `value` are the numbers that a head keeps of a token."""

    weight_bytes: int
    context: int  # tokens it was trained on
    layers: int
    width: int
    heads: int
    kv_heads: int
    key: int
    value: int

    @property
    def kv_numbers(self) -> int:
        """Of one token in all layers. For models that keep keys and values in some layers only it is an upper bound."""
        return self.layers * self.kv_heads * (self.key + self.value)

    @property
    def takes_q8_0(self) -> bool:
        return self.key % Q8_0_BLOCK == 0 and self.value % Q8_0_BLOCK == 0

    @classmethod
    def of(cls, model: LlamaModel) -> Proportions:
        layers, heads, kv_heads = model.kv_shape
        metadata = model.metadata()
        prefix, usual = f"{metadata.get('general.architecture', '')}.attention", model.dimensions // max(1, heads)
        key, value = (int(metadata.get(f"{prefix}.{part}_length", usual)) for part in ("key", "value"))
        return cls(
            weight_bytes=model.weight_bytes,
            context=model.context_length,
            layers=layers,
            width=model.dimensions,
            heads=heads,
            kv_heads=kv_heads,
            key=key,
            value=value,
        )
