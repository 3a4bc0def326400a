"""The memory that a configuration needs, computed before anything is loaded. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from inference.attention import F16, Q4_0, Q8_0, Attention
from inference.config import EngineConfig
from inference.llama import LlamaModel
from inference.provisioning.gguf_head import numbers
from inference.speculative.draft_model import CATCH_UP_TOKENS_MAX
from inference.weight_placement import HOST

KV_BYTES = {F16: 2.0, Q8_0: 34 / 32, Q4_0: 18 / 32}  # per number; quantised types add two bytes of scale per 32 numbers
ACTIVATION_BYTES, MASK_BYTES = 4, 2
# A layer's intermediate results, in model widths; without flash attention most of them share memory with the scores.
HIDDEN_WIDTHS, HIDDEN_WIDTHS_BESIDE_SCORES = 10, 4
BLOCK = 32  # numbers that share a scale: the size of a head must be a multiple of it
# Of so many layers, one attends to all tokens and the others to a sliding window: what llama.cpp assumes of files that
# do not say it.
PERIODS = {"cohere2": 4, "exaone4": 4, "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "olmo2": 4}
WINDOW_CELLS = 256  # the cells of windows are a multiple of this


@dataclass(frozen=True, slots=True)
class Proportions:
    """The dimensions of a model that determine its memory: read from its file, or from the catalogue.

    `width` is the size of a layer's output; `key` and `value` are the numbers that a head stores per token.
    """

    weight_bytes: int
    context: int  # tokens it was trained on
    layers: int
    width: int
    heads: int
    kv_heads: int
    key: int
    value: int
    window: int = 0  # tokens that some layers attend to at most
    windowed: int = 0  # layers with such a window, as far as it is known
    recurrent: int = 0  # layers that keep a state of `state_bytes` instead of keys and values
    state_bytes: int = 0

    @property
    def kv_layers(self) -> int:
        return self.layers - self.recurrent

    @property
    def kv_numbers(self) -> int:
        """Numbers per token in all layers that keep keys and values."""
        return self.kv_layers * self.kv_heads * (self.key + self.value)

    @property
    def takes_quantised(self) -> bool:
        return self.key % BLOCK == 0 and self.value % BLOCK == 0

    @classmethod
    def of(cls, model: LlamaModel) -> Proportions:
        layers, heads, kv_heads = model.kv_shape
        metadata = model.metadata()
        architecture = metadata.get("general.architecture", "")
        prefix, usual = f"{architecture}.attention", model.dimensions // max(1, heads)
        key, value = (int(metadata.get(f"{prefix}.{part}_length", usual)) for part in ("key", "value"))
        of_layers = partial(numbers, model.path)
        heads_of = of_layers(f"{prefix}.head_count_kv") if model.recurs else ()
        every = int(metadata.get(f"{architecture}.full_attention_interval", 1))
        recurrent = sum(not each for each in heads_of) if heads_of else layers - layers // every
        return cls(
            weight_bytes=model.weight_bytes,
            context=model.context_length,
            layers=layers,
            width=model.dimensions,
            heads=heads,
            kv_heads=max(heads_of, default=kv_heads),
            key=key,
            value=value,
            window=model.window,
            windowed=_windowed(layers, architecture, metadata, of_layers) if model.window else 0,
            recurrent=recurrent if model.recurs else 0,
            state_bytes=_state_bytes(model.dimensions, architecture, metadata) if model.recurs else 0,
        )


def _windowed(
    layers: int, architecture: str, metadata: Mapping[str, str], of_layers: Callable[[str], Sequence[int]]
) -> int:
    """How many layers have a sliding window; 0 if the file does not say it, and llama.cpp's own rule is not known."""
    key = f"{architecture}.attention.sliding_window_pattern"
    if flags := of_layers(key):
        return sum(map(bool, flags))
    period = int(metadata.get(key, PERIODS.get(architecture, 0)))
    return layers - layers // period if period else 0


def _state_bytes(width: int, architecture: str, metadata: Mapping[str, str]) -> int:
    """Of a recurrent layer and one slot: the end of what was convolved, and what all tokens add up to."""

    def stated(name: str) -> int:
        return int(metadata.get(f"{architecture}.{name}", 0))

    if short := stated("shortconv.l_cache"):
        return 4 * width * (short - 1)
    state, inner = stated("ssm.state_size"), stated("ssm.inner_size")
    return 4 * (state * inner + max(0, stated("ssm.conv_kernel") - 1) * (inner + 2 * stated("ssm.group_count") * state))


def in_words(size: int) -> str:
    """Bytes for messages to the user: decimal units, as used by disks and model hubs."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes."""

    weights: int
    kv_cache: int
    working: int  # intermediate results of the largest step
    draft: int  # everything that the draft model needs
    parked_max: int  # conversations in host memory, once there are any
    kv_on_host: int = 0  # part of the KV cache that stays on the host even if a GPU computes its layers
    adapters: int = 0

    @property
    def total(self) -> int:
        """Everything that is allocated at start."""
        return self.weights + self.adapters + self.kv_cache + self.working + self.draft

    @property
    def divided(self) -> int:
        """What is placed on a GPU layer by layer."""
        return self.weights + self.adapters + self.kv_cache - self.kv_on_host

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "adapters": self.adapters,
            "KV cache": self.kv_cache,
            "steps": self.working,
            "draft": self.draft,
        }
        listed = ", ".join(f"{name} {in_words(size)}" for name, size in parts.items() if size)
        parked = f", and up to {in_words(self.parked_max)} for parked conversations" if self.parked_max else ""
        return f"{in_words(self.total)} ({listed}){parked}"

    @classmethod
    def of(
        cls, model: Proportions, config: EngineConfig, draft: Proportions | None = None, *, gpu: bool = False
    ) -> Footprint:
        """`gpu`: whether steps are computed on a GPU."""
        context, attention = config.context_of(model.context), config.attention(gpu=gpu)
        kv_cache = _kv_cache(model, context * config.slots, config.kv_type)
        kv_cache += model.recurrent * model.state_bytes * config.slots
        if config.windowed:
            kv_cache -= _outside_windows(model, context, config, unified=attention.unified)
        return cls(
            weights=model.weight_bytes,
            kv_cache=kv_cache,
            working=_working(model, config.rows_max, context, config.slots, attention),
            draft=0 if draft is None else _of_draft(draft, config, context, config.attention_of_draft(gpu=gpu)),
            parked_max=config.parked_bytes_max,
            kv_on_host=kv_cache if config.kv_place == HOST else 0,
            adapters=sum(adapter.file_bytes for adapter in config.adapters),
        )


def _of_draft(draft: Proportions, config: EngineConfig, context: int, attention: Attention) -> int:
    """The draft model has a slot for each of the model's, and smaller steps."""
    rows = max(CATCH_UP_TOKENS_MAX, config.slots)
    kv_cache = _kv_cache(draft, context * config.slots, config.kv_type)
    return draft.weight_bytes + kv_cache + _working(draft, rows, context, config.slots, attention)


def _kv_cache(model: Proportions, cells: int, kv_type: str) -> int:
    return int(model.kv_numbers * KV_BYTES[kv_type] * cells)


def _outside_windows(model: Proportions, context: int, config: EngineConfig, *, unified: bool) -> int:
    """What layers with a sliding window do not hold if they hold little more than the tokens in it."""
    together = config.slots if unified else 1
    held = -(-(model.window * together + config.rows_max) // WINDOW_CELLS) * WINDOW_CELLS
    spared = max(0, context * together - held) * (config.slots // together)
    return _kv_cache(model, spared, config.kv_type) * model.windowed // model.kv_layers


def _working(model: Proportions, rows: int, context: int, slots: int, attention: Attention) -> int:
    """Compared with what llama.cpp reserves in each mode: 0 to 40 % more. Without flash attention the scores of all
    heads exist at once, and the mask twice. In a unified cache a row attends to the cells of all slots."""
    cells = context * slots if attention.unified else context
    if attention.flash:
        return rows * (cells * MASK_BYTES + model.width * HIDDEN_WIDTHS * ACTIVATION_BYTES)
    return rows * (cells * (model.heads + 2) + model.width * HIDDEN_WIDTHS_BESIDE_SCORES) * ACTIVATION_BYTES
