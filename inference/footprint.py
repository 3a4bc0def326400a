"""The memory that a configuration takes, told before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from inference.config import CONTEXT_DEFAULT, EngineConfig
from inference.llama import LlamaModel

KV_BYTES = 2  # f16 keys and values
ACTIVATION_BYTES = 4
HIDDEN_PER_WIDTH = 4  # a layer's widest intermediate result, in widths of the model


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes. For models that keep keys and values in some layers only it is an upper bound."""

    weights: int
    kv_cache: int
    working: int  # intermediate results of the largest step
    parked_max: int  # conversations in host memory, once there are any

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.working

    @classmethod
    def of(cls, model: LlamaModel, config: EngineConfig) -> Footprint:
        layers, heads, kv_heads = model.kv_shape
        context = config.context or min(model.context_length, CONTEXT_DEFAULT)
        cells = context * config.slots
        rows = config.rows_max
        # Without flash attention the scores of all heads exist at once, and the mask twice: checked to within 3 %.
        scores = rows * context * (heads + 2)
        hidden = rows * model.dimensions * HIDDEN_PER_WIDTH
        return cls(
            weights=model.weight_bytes,
            kv_cache=layers * kv_heads * _key_value_length(model, heads) * KV_BYTES * cells,
            working=(scores + hidden) * ACTIVATION_BYTES,
            parked_max=config.parked_bytes_max,
        )


def _key_value_length(model: LlamaModel, heads: int) -> int:
    """Numbers that a head keeps per token."""
    metadata = model.metadata()
    prefix = f"{metadata.get('general.architecture', '')}.attention"
    usual = model.dimensions // max(1, heads)
    return sum(int(metadata.get(f"{prefix}.{part}_length", usual)) for part in ("key", "value"))
