"""The memory that a configuration takes, told before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from inference.config import CONTEXT_DEFAULT, EngineConfig
from inference.drafter import CATCH_UP_TOKENS_MAX
from inference.llama import LlamaModel
from inference.parked import usual_bytes

KV_BYTES = 2  # f16 keys and values
ACTIVATION_BYTES = 4
HIDDEN_PER_WIDTH = 4  # a layer's widest intermediate result, in widths of the model


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes. For models that keep keys and values in some layers only it is an upper bound."""

    weights: int
    kv_cache: int
    working: int  # intermediate results of the largest step
    draft: int  # all that the draft model takes
    parked_max: int  # conversations in host memory, once there are any

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.working + self.draft

    @classmethod
    def of(
        cls,
        model: LlamaModel,
        config: EngineConfig,
        draft: LlamaModel | None = None,
        *,
        available: int | None = None,
    ) -> Footprint:
        """On a machine with so much memory `available`, as far as that is known."""
        context = config.context or min(model.context_length, CONTEXT_DEFAULT)
        return cls(
            weights=model.weight_bytes,
            kv_cache=_kv_cache(model, context * config.slots),
            working=_working(model, config.rows_max, context),
            draft=0 if draft is None else _of_draft(draft, config, context),
            parked_max=_parked(model, config, available),
        )


def _parked(model: LlamaModel, config: EngineConfig, available: int | None) -> int:
    return config.parked_bytes_max if config.parked_bytes_max >= 0 else usual_bytes(_kv_cache(model, 1), available)


def _of_draft(draft: LlamaModel, config: EngineConfig, context: int) -> int:
    """It has a slot for each of the model's, and smaller steps."""
    rows = max(CATCH_UP_TOKENS_MAX, config.slots)
    return draft.weight_bytes + _kv_cache(draft, context * config.slots) + _working(draft, rows, context)


def _kv_cache(model: LlamaModel, cells: int) -> int:
    layers, heads, kv_heads = model.kv_shape
    return layers * kv_heads * _key_value_length(model, heads) * KV_BYTES * cells


def _working(model: LlamaModel, rows: int, context: int) -> int:
    """Without flash attention the scores of all heads exist at once, and the mask twice: checked to within 3 %."""
    _, heads, _ = model.kv_shape
    scores = rows * context * (heads + 2)
    hidden = rows * model.dimensions * HIDDEN_PER_WIDTH
    return (scores + hidden) * ACTIVATION_BYTES


def _key_value_length(model: LlamaModel, heads: int) -> int:
    """Numbers that a head keeps per token."""
    metadata = model.metadata()
    prefix = f"{metadata.get('general.architecture', '')}.attention"
    usual = model.dimensions // max(1, heads)
    return sum(int(metadata.get(f"{prefix}.{part}_length", usual)) for part in ("key", "value"))
