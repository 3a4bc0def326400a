"""Small models with random weights that mix attention with recurrent layers or sliding windows, in the architectures
that people run.

They say nothing of sense; what they say depends on every token before, through attention and through the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from inference.bundled import CHAT_MODEL
from tests.inference.encoders import copy_vocabulary
from tests.inference.variants import opened

ATTENTION_EVERY = 4  # layers
KV_HEADS, HEAD = 2, 32
STATE, GROUPS, CONVOLVED = 32, 2, 4
SHORT = 3  # tokens that a short convolution sees
WINDOW = 32  # tokens

Tensors = Iterator[tuple[str, NDArray[np.float32]]]


class _Writer:
    def __init__(self, path: Path, architecture: str, context: int, scale: int) -> None:
        self.layers, self.width, self.heads = 4 * scale, 64 * scale, 4 * scale
        self.hidden = self.inner = 2 * self.width
        self.gguf = gguf.GGUFWriter(path, architecture)
        self._random = np.random.default_rng(0)
        self.gguf.add_block_count(self.layers)
        self.gguf.add_context_length(context)
        self.gguf.add_embedding_length(self.width)
        if architecture != "nemotron_h":  # which has it by layer
            self.gguf.add_feed_forward_length(self.hidden)
        self.gguf.add_head_count(self.heads)
        self.gguf.add_layer_norm_rms_eps(1e-6)
        self.gguf.add_rope_freq_base(10_000.0)
        self.words = copy_vocabulary(opened(CHAT_MODEL), self.gguf)
        self.gguf.add_vocab_size(self.words)

    def matrix(self, name: str, *shape: int) -> None:
        """Random, scaled so that it keeps the size of what it multiplies."""
        values = self._random.standard_normal(shape, np.float32) / np.sqrt(shape[-1])
        self.gguf.add_tensor(f"{name}.weight", values.astype(np.float32))

    def ones(self, name: str, *shape: int) -> None:
        self.gguf.add_tensor(f"{name}.weight", np.ones(shape, np.float32))

    def values(self, name: str, shape: tuple[int, ...], low: float, high: float) -> None:
        self.gguf.add_tensor(name, self._random.uniform(low, high, shape).astype(np.float32))

    def feed_forward(self, layer: str) -> None:
        self.matrix(f"{layer}.ffn_gate", self.hidden, self.width)
        self.matrix(f"{layer}.ffn_up", self.hidden, self.width)
        self.matrix(f"{layer}.ffn_down", self.width, self.hidden)

    def attention(self, layer: str, head: int = HEAD, *, gated: bool = False) -> None:
        """`gated`: with a gate for each query."""
        self.matrix(f"{layer}.attn_q", (1 + gated) * self.heads * head, self.width)
        self.matrix(f"{layer}.attn_k", KV_HEADS * head, self.width)
        self.matrix(f"{layer}.attn_v", KV_HEADS * head, self.width)
        self.matrix(f"{layer}.attn_output", self.width, self.heads * head)

    def close(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def _is_attention(layer: int) -> bool:
    return (layer + 1) % ATTENTION_EVERY == 0


def _qwen(writer: _Writer) -> None:
    """Qwen3.5: gated delta nets, with gated attention in every fourth layer."""
    facts, heads = writer.gguf, writer.inner // STATE
    facts.add_head_count_kv(KV_HEADS)
    facts.add_key_length(HEAD)
    facts.add_value_length(HEAD)
    facts.add_rope_dimension_count(HEAD)
    facts.add_rope_dimension_sections([HEAD // 4, HEAD // 8, HEAD // 8, 0])
    _add_state(writer, heads)
    facts.add_full_attention_interval(ATTENTION_EVERY)
    writer.ones("output_norm", writer.width)
    for number in range(writer.layers):
        layer = f"blk.{number}"
        writer.ones(f"{layer}.attn_norm", writer.width)
        writer.ones(f"{layer}.post_attention_norm", writer.width)
        writer.feed_forward(layer)
        if _is_attention(number):
            writer.attention(layer, gated=True)
            writer.ones(f"{layer}.attn_q_norm", HEAD)
            writer.ones(f"{layer}.attn_k_norm", HEAD)
            continue
        mixed = 2 * GROUPS * STATE + writer.inner
        writer.matrix(f"{layer}.attn_qkv", mixed, writer.width)
        writer.matrix(f"{layer}.attn_gate", writer.inner, writer.width)
        writer.matrix(f"{layer}.ssm_conv1d", mixed, CONVOLVED)
        writer.values(f"{layer}.ssm_dt.bias", (heads,), -1, 1)
        writer.values(f"{layer}.ssm_a", (heads,), -0.2, -0.01)
        writer.matrix(f"{layer}.ssm_beta", heads, writer.width)
        writer.matrix(f"{layer}.ssm_alpha", heads, writer.width)
        writer.ones(f"{layer}.ssm_norm", STATE)
        writer.matrix(f"{layer}.ssm_out", writer.width, writer.inner)


def _granite(writer: _Writer) -> None:
    """Granite 4 H: Mamba 2 with attention in every fourth layer; no positions but those that the state has."""
    facts, heads = writer.gguf, writer.inner // STATE
    facts.add_head_count_kv([KV_HEADS if _is_attention(number) else 0 for number in range(writer.layers)])
    facts.add_key_length(HEAD)
    facts.add_value_length(HEAD)
    facts.add_rope_dimension_count(HEAD)
    facts.add_rope_scaling_finetuned(False)
    _add_state(writer, heads)
    writer.ones("output_norm", writer.width)
    for number in range(writer.layers):
        layer = f"blk.{number}"
        writer.ones(f"{layer}.attn_norm", writer.width)
        writer.ones(f"{layer}.ffn_norm", writer.width)
        writer.feed_forward(layer)
        if _is_attention(number):
            writer.attention(layer)
            continue
        _mamba(writer, layer, heads)


def _mamba(writer: _Writer, layer: str, heads: int) -> None:
    mixed = 2 * GROUPS * STATE + writer.inner
    writer.matrix(f"{layer}.ssm_in", mixed + writer.inner + heads, writer.width)
    writer.matrix(f"{layer}.ssm_conv1d", mixed, CONVOLVED)
    writer.values(f"{layer}.ssm_conv1d.bias", (mixed,), -0.1, 0.1)
    writer.values(f"{layer}.ssm_dt.bias", (heads,), -1, 1)
    writer.values(f"{layer}.ssm_a", (heads, 1), -0.2, -0.01)
    writer.values(f"{layer}.ssm_d", (heads, 1), 0.5, 1)
    writer.ones(f"{layer}.ssm_norm", GROUPS, writer.inner // GROUPS)
    writer.matrix(f"{layer}.ssm_out", writer.width, writer.inner)


def _nemotron(writer: _Writer) -> None:
    """Nemotron H: each layer is Mamba 2, attention, or feed-forward."""
    facts, heads = writer.gguf, writer.inner // STATE
    feeds = [number % ATTENTION_EVERY == 1 for number in range(writer.layers)]
    facts.add_head_count_kv([KV_HEADS if _is_attention(number) else 0 for number in range(writer.layers)])
    facts.add_feed_forward_length([writer.hidden if feeds_forward else 0 for feeds_forward in feeds])
    facts.add_key_length(HEAD)
    facts.add_value_length(HEAD)
    facts.add_layer_norm_eps(1e-6)
    _add_state(writer, heads)
    writer.ones("output_norm", writer.width)
    for number, feeds_forward in enumerate(feeds):
        layer = f"blk.{number}"
        writer.ones(f"{layer}.attn_norm", writer.width)
        if _is_attention(number):
            writer.attention(layer)
        elif feeds_forward:
            writer.matrix(f"{layer}.ffn_up", writer.hidden, writer.width)
            writer.matrix(f"{layer}.ffn_down", writer.width, writer.hidden)
        else:
            _mamba(writer, layer, heads)


def _lfm(writer: _Writer) -> None:
    """LFM2: short convolutions, with attention in every fourth layer."""
    facts = writer.gguf
    facts.add_head_count_kv([KV_HEADS if _is_attention(number) else 0 for number in range(writer.layers)])
    facts.add_shortconv_l_cache(SHORT)
    writer.ones("token_embd_norm", writer.width)
    for number in range(writer.layers):
        layer = f"blk.{number}"
        writer.ones(f"{layer}.attn_norm", writer.width)
        writer.ones(f"{layer}.ffn_norm", writer.width)
        writer.feed_forward(layer)
        if _is_attention(number):
            writer.attention(layer, head := writer.width // writer.heads)
            writer.ones(f"{layer}.attn_q_norm", head)
            writer.ones(f"{layer}.attn_k_norm", head)
            continue
        writer.matrix(f"{layer}.shortconv.conv", writer.width, SHORT)
        writer.matrix(f"{layer}.shortconv.in_proj", 3 * writer.width, writer.width)
        writer.matrix(f"{layer}.shortconv.out_proj", writer.width, writer.width)


def _gemma(writer: _Writer) -> None:
    """Gemma 3: sliding windows, with attention to all tokens in every fourth layer."""
    facts = writer.gguf
    facts.add_head_count_kv(KV_HEADS)
    facts.add_key_length(HEAD)
    facts.add_value_length(HEAD)
    facts.add_sliding_window(WINDOW)
    facts.add_sliding_window_pattern(ATTENTION_EVERY)
    writer.ones("output_norm", writer.width)
    for number in range(writer.layers):
        layer = f"blk.{number}"
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            writer.ones(f"{layer}.{norm}", writer.width)
        writer.feed_forward(layer)
        writer.attention(layer)
        writer.ones(f"{layer}.attn_q_norm", HEAD)
        writer.ones(f"{layer}.attn_k_norm", HEAD)


def _add_state(writer: _Writer, heads: int) -> None:
    writer.gguf.add_ssm_conv_kernel(CONVOLVED)
    writer.gguf.add_ssm_inner_size(writer.inner)
    writer.gguf.add_ssm_state_size(STATE)
    writer.gguf.add_ssm_time_step_rank(heads)
    writer.gguf.add_ssm_group_count(GROUPS)


ARCHITECTURES: dict[str, Callable[[_Writer], None]] = {
    "qwen35": _qwen,
    "granitehybrid": _granite,
    "nemotron_h": _nemotron,
    "lfm2": _lfm,
    "gemma3": _gemma,
}


def write_hybrid(path: Path, architecture: str, *, context: int = 2048, scale: int = 1) -> Path:
    """A model of an architecture, with the vocabulary and the chat template of the bundled one. `scale` multiplies its
    width and its layers."""
    writer = _Writer(path, architecture, context, scale)
    writer.matrix("token_embd", writer.words, writer.width)
    ARCHITECTURES[architecture](writer)
    writer.close()
    return path
