"""How the engine runs. The edge checks the values and passes them down; nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from inference.adapter import Adapter
from inference.attention import AUTO, F16, QUANTISED, Attention, attention
from inference.bundled import CHAT_MODEL
from inference.cores import usable_cores
from inference.picture import BIDIRECTIONAL_TOKENS_MAX
from inference.weight_placement import GPU, LAYER

# KV memory is allocated for every slot up front, so the default context is what chat needs, not the model's maximum.
CONTEXT_DEFAULT = 8192
# Fields of EngineConfig that inference.provisioning.fit may lower.
ADJUSTABLE = frozenset({"resident", "windowed", "context", "parallel", "parked_bytes_max", "kv_type"})
# Prompt tokens per step without active streams. On a CPU, 512 are no faster: more of their attention is masked. For a
# GPU it is llama.cpp's own default: fewer leave the GPU idle between two steps.
PREFILL_TOKENS_CPU, PREFILL_TOKENS_GPU = 256, 512
# Tokens of the longest draft: the last ones of a longer one are hardly ever reached, and each takes memory for logits.
DRAFT_TOKENS_MAX = 16
# Forced tokens of all streams of a step: with a vocabulary of 150,000, the logits of as many rows take 20 MB.
FORCED_TOKENS_MAX = 32


def default_threads() -> int:
    """The most threads that compute a step. How many pay off is measured: see inference.llama.threads."""
    return usable_cores()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    model_path: Path = CHAT_MODEL
    adapters: tuple[Adapter, ...] = ()  # LoRA, of the model; a draft model drafts without
    projector_path: Path | None = None  # lets the model see; of this model
    draft_path: Path | None = None  # a small model with the same vocabulary; None: no draft model
    lookup: bool = False  # prompt lookup decoding if there is no draft model
    predictions: bool = True  # if there is neither: drafts from the texts that requests predict
    draft_max: int = 8  # most tokens per draft; how many pay off is measured, and it may be none
    draft_min: int = 0  # fewest tokens per draft, whether they pay off or not
    parallel: int = 8  # sequences that generate at the same time
    resident: int = 8  # further slots that keep conversations' KV between turns
    context: int = 0  # tokens per sequence; 0: the model's own, at most CONTEXT_DEFAULT
    kv_type: str = F16  # of keys and values; q8_0 takes half the memory, q4_0 a quarter; both need flash attention
    # Layers with a sliding window keep little but the tokens in it, which may take a fraction of the memory. Then a
    # prompt goes on from a checkpoint, as with recurrent layers, instead of from any token.
    windowed: bool = False
    threads: int = 0  # 0: default_threads()
    kv_layout: str = AUTO  # see inference.attention
    flash_attention: str = AUTO
    measured: Attention | None = None  # what auto means on this machine; None: what is usually fastest
    measured_prefill: int | None = None  # best number of prompt tokens per step on the GPU; None: PREFILL_TOKENS_GPU
    gpu_layers: int = -1  # layers to offload if the build supports a GPU; -1: all
    kv_place: str = GPU  # KV of the layers on a GPU: there, or on the host, where the CPU then computes attention
    gpu_split: str = LAYER  # between several GPUs, see inference.weight_placement
    load_mode: str = AUTO  # how the file is read into memory
    queue_max: int = 64  # most requests that may wait; further ones are refused
    queue_tokens_max: int = 131_072  # tokens of their prompts: minutes of prefill on a CPU, longer than clients wait
    parked_bytes_max: int = 512 * 2**20  # host memory for conversations that left their slot; 0: none
    disk_folder: Path | None = None  # for conversations evicted from host memory; survives restarts
    disk_bytes_max: int = 2 * 2**30  # capacity on disk; 0: none
    adjustable: frozenset[str] = frozenset()  # which of ADJUSTABLE may be reduced if memory is short
    memory_bytes_max: int = 0  # for models and conversations; 0: what is free
    beside_bytes: int = 0  # memory that other models of this process will take
    # A step beside running streams may take this long: at a token per 100 ms, readers do not notice the pace.
    inter_token_target_s: float = 0.1
    # Prompt tokens per step: without active streams, and beside streams before the cost of a step is known.
    prefill_tokens_alone: int = PREFILL_TOKENS_CPU
    prefill_tokens_first: int = 64

    @property
    def is_quantised(self) -> bool:
        """Whether keys and values are quantised."""
        return self.kv_type in QUANTISED

    @property
    def slots(self) -> int:
        return self.parallel + self.resident

    @property
    def guests(self) -> int:
        """Requests that may run beyond `parallel`, in slots of resident conversations: those of tenants below their
        share, where a running request is not preempted for them. A quarter: enough for a few clients that think
        between two questions, and all of them together slow the others by no more."""
        return min(self.resident, max(1, self.parallel // 4))

    def context_of(self, trained: int) -> int:
        """Tokens per sequence for a model with this training context."""
        return self.context or min(trained, CONTEXT_DEFAULT)

    def attention(self, *, gpu: bool) -> Attention:
        """A quantised cache needs flash attention, and measurements only apply to an f16 cache."""
        if self.is_quantised:
            return attention(self.kv_layout, "on", gpu=gpu)
        return attention(self.kv_layout, self.flash_attention, gpu=gpu, measured=self.measured)

    def attention_of_draft(self, *, gpu: bool) -> Attention:
        return attention(AUTO, "on" if self.is_quantised else AUTO, gpu=gpu)

    def with_measured(self, measured: Attention | None, prefill: int | None = None) -> EngineConfig:
        return replace(self, measured=measured, measured_prefill=prefill)

    @property
    def is_calibrated(self) -> bool:
        """Whether measuring the fastest attention would change nothing."""
        chosen = self.is_quantised or (self.kv_layout, self.flash_attention) != (AUTO, AUTO)
        return chosen or self.measured is not None

    @property
    def offloaded(self) -> EngineConfig:
        """The configuration if a GPU computes all layers."""
        liked = self.measured_prefill or max(self.prefill_tokens_alone, PREFILL_TOKENS_GPU)
        return replace(self, prefill_tokens_alone=liked)

    @property
    def rows_max(self) -> int:
        """Tokens in the largest step: a row with its draft for every stream, and either a prefill chunk or the tokens
        forced by grammars."""
        seen = BIDIRECTIONAL_TOKENS_MAX if self.projector_path else 0
        return self._drafted_rows + max(self.prefill_tokens_alone, FORCED_TOKENS_MAX, seen)

    @property
    def outputs_max(self) -> int:
        """Most rows of a step whose logits are needed: those of every stream with its draft, and of tokens forced by
        grammars."""
        return self._drafted_rows + FORCED_TOKENS_MAX

    @property
    def _drafted_rows(self) -> int:
        return (self.parallel + self.guests) * (1 + (self.draft_max if self.drafts_for_all else 0))

    @property
    def drafts_for_all(self) -> bool:
        """Whether any request may get a draft, and each stream has rows for one."""
        return self.draft_path is not None or self.lookup
