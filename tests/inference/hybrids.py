"""Small models with random weights that mix attention with recurrent layers, in the architectures that people run.

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

LAYERS, ATTENTION_EVERY, WIDTH, HIDDEN = 4, 4, 64, 128
HEADS, KV_HEADS, HEAD = 4, 2, 32
STATE, GROUPS, CONVOLVED, INNER = 32, 2, 4, 128
SHORT = 3  # tokens that a short convolution sees

Tensors = Iterator[tuple[str, NDArray[np.float32]]]


class _Writer:
    def __init__(self, path: Path, architecture: str, context: int, seed: int) -> None:
        self.gguf = gguf.GGUFWriter(path, architecture)
        self._random = np.random.default_rng(seed)
        self.gguf.add_block_count(LAYERS)
        self.gguf.add_context_length(context)
        self.gguf.add_embedding_length(WIDTH)
        self.gguf.add_feed_forward_length(HIDDEN)
        self.gguf.add_head_count(HEADS)
        self.gguf.add_layer_norm_rms_eps(1e-6)
        self.gguf.add_rope_freq_base(10_000.0)
        self.words = copy_vocabulary(gguf.GGUFReader(CHAT_MODEL), self.gguf)
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
        for name, shape in (("gate", (HIDDEN, WIDTH)), ("up", (HIDDEN, WIDTH)), ("down", (WIDTH, HIDDEN))):
            self.matrix(f"{layer}.ffn_{name}", *shape)

    def attention(self, layer: str, *, heads: int = HEADS) -> None:
        self.matrix(f"{layer}.attn_q", heads * HEAD, WIDTH)
        self.matrix(f"{layer}.attn_k", KV_HEADS * HEAD, WIDTH)
        self.matrix(f"{layer}.attn_v", KV_HEADS * HEAD, WIDTH)
        self.matrix(f"{layer}.attn_output", WIDTH, HEADS * HEAD)

    def close(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def _is_attention(layer: int) -> bool:
    return (layer + 1) % ATTENTION_EVERY == 0


def _qwen(writer: _Writer) -> None:
    """Qwen3.5: gated delta nets, with gated attention in every fourth layer."""
    facts, heads = writer.gguf, INNER // STATE
    facts.add_head_count_kv(KV_HEADS)
    facts.add_key_length(HEAD)
    facts.add_value_length(HEAD)
    facts.add_rope_dimension_count(HEAD)
    facts.add_rope_dimension_sections([HEAD // 4, HEAD // 8, HEAD // 8, 0])
    _add_state(writer, heads)
    facts.add_full_attention_interval(ATTENTION_EVERY)
    writer.ones("output_norm", WIDTH)
    for number in range(LAYERS):
        layer = f"blk.{number}"
        writer.ones(f"{layer}.attn_norm", WIDTH)
        writer.ones(f"{layer}.post_attention_norm", WIDTH)
        writer.feed_forward(layer)
        if _is_attention(number):
            writer.attention(layer, heads=2 * HEADS)  # a gate for each query
            writer.ones(f"{layer}.attn_q_norm", HEAD)
            writer.ones(f"{layer}.attn_k_norm", HEAD)
            continue
        mixed = 2 * GROUPS * STATE + INNER
        writer.matrix(f"{layer}.attn_qkv", mixed, WIDTH)
        writer.matrix(f"{layer}.attn_gate", INNER, WIDTH)
        writer.matrix(f"{layer}.ssm_conv1d", mixed, CONVOLVED)
        writer.values(f"{layer}.ssm_dt.bias", (heads,), -1, 1)
        writer.values(f"{layer}.ssm_a", (heads,), -0.2, -0.01)
        writer.matrix(f"{layer}.ssm_beta", heads, WIDTH)
        writer.matrix(f"{layer}.ssm_alpha", heads, WIDTH)
        writer.ones(f"{layer}.ssm_norm", STATE)
        writer.matrix(f"{layer}.ssm_out", WIDTH, INNER)


def _granite(writer: _Writer) -> None:
    """Granite 4 H: Mamba 2 with attention in every fourth layer; no positions but those that the state has."""
    facts, heads = writer.gguf, INNER // STATE
    facts.add_head_count_kv([KV_HEADS if _is_attention(number) else 0 for number in range(LAYERS)])
    facts.add_key_length(HEAD)
    facts.add_value_length(HEAD)
    facts.add_rope_dimension_count(HEAD)
    facts.add_rope_scaling_finetuned(False)
    _add_state(writer, heads)
    writer.ones("output_norm", WIDTH)
    for number in range(LAYERS):
        layer = f"blk.{number}"
        writer.ones(f"{layer}.attn_norm", WIDTH)
        writer.ones(f"{layer}.ffn_norm", WIDTH)
        writer.feed_forward(layer)
        if _is_attention(number):
            writer.attention(layer)
            continue
        mixed = 2 * GROUPS * STATE + INNER
        writer.matrix(f"{layer}.ssm_in", mixed + INNER + heads, WIDTH)
        writer.matrix(f"{layer}.ssm_conv1d", mixed, CONVOLVED)
        writer.values(f"{layer}.ssm_conv1d.bias", (mixed,), -0.1, 0.1)
        writer.values(f"{layer}.ssm_dt.bias", (heads,), -1, 1)
        writer.values(f"{layer}.ssm_a", (heads, 1), -0.2, -0.01)
        writer.values(f"{layer}.ssm_d", (heads, 1), 0.5, 1)
        writer.ones(f"{layer}.ssm_norm", GROUPS, INNER // GROUPS)
        writer.matrix(f"{layer}.ssm_out", WIDTH, INNER)


def _lfm(writer: _Writer) -> None:
    """LFM2: short convolutions, with attention in every fourth layer."""
    facts = writer.gguf
    facts.add_head_count_kv([KV_HEADS if _is_attention(number) else 0 for number in range(LAYERS)])
    facts.add_shortconv_l_cache(SHORT)
    writer.ones("token_embd_norm", WIDTH)
    for number in range(LAYERS):
        layer = f"blk.{number}"
        writer.ones(f"{layer}.attn_norm", WIDTH)
        writer.ones(f"{layer}.ffn_norm", WIDTH)
        writer.feed_forward(layer)
        if _is_attention(number):
            head = WIDTH // HEADS
            writer.matrix(f"{layer}.attn_q", WIDTH, WIDTH)
            writer.matrix(f"{layer}.attn_k", KV_HEADS * head, WIDTH)
            writer.matrix(f"{layer}.attn_v", KV_HEADS * head, WIDTH)
            writer.matrix(f"{layer}.attn_output", WIDTH, WIDTH)
            writer.ones(f"{layer}.attn_q_norm", head)
            writer.ones(f"{layer}.attn_k_norm", head)
            continue
        writer.matrix(f"{layer}.shortconv.conv", WIDTH, SHORT)
        writer.matrix(f"{layer}.shortconv.in_proj", 3 * WIDTH, WIDTH)
        writer.matrix(f"{layer}.shortconv.out_proj", WIDTH, WIDTH)


def _add_state(writer: _Writer, heads: int) -> None:
    writer.gguf.add_ssm_conv_kernel(CONVOLVED)
    writer.gguf.add_ssm_inner_size(INNER)
    writer.gguf.add_ssm_state_size(STATE)
    writer.gguf.add_ssm_time_step_rank(heads)
    writer.gguf.add_ssm_group_count(GROUPS)


ARCHITECTURES: dict[str, Callable[[_Writer], None]] = {"qwen35": _qwen, "granitehybrid": _granite, "lfm2": _lfm}


def write_hybrid(path: Path, architecture: str, *, context: int = 2048, seed: int = 0) -> Path:
    """A model of an architecture, with the vocabulary and the chat template of the bundled one."""
    writer = _Writer(path, architecture, context, seed)
    writer.matrix("token_embd", writer.words, WIDTH)
    ARCHITECTURES[architecture](writer)
    writer.close()
    return path
