"""An embedding model of any width that needs no training: it knows words and nothing of their sense or order."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from inference.bundled import EMBEDDER
from tests.inference.variants import opened

EPSILON = 1e-12
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")


def write_encoder(
    path: Path,
    dimensions: int,
    *,
    context: int = 512,
    pooling: gguf.PoolingType = gguf.PoolingType.MEAN,
    seed: int = 0,
) -> Path:
    """BERT with the bundled embedder's vocabulary, a random vector for each word, and a layer that changes nothing.

    So a text's vector is about the mean of its words' vectors: texts of the same words are near each other.
    """
    bundled = opened(EMBEDDER)
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(1)
    writer.add_context_length(context)
    writer.add_embedding_length(dimensions)
    writer.add_feed_forward_length(dimensions)
    writer.add_head_count(1)
    writer.add_layer_norm_eps(EPSILON)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    words = copy_vocabulary(bundled, writer)
    for name, tensor in _tensors(words, dimensions, context, seed).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def copy_vocabulary(source: gguf.GGUFReader, writer: gguf.GGUFWriter) -> int:
    """The number of its words."""
    for name, field in source.fields.items():
        if name.startswith("tokenizer."):
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, sub_type=inner[0] if inner else None)
    return len(source.fields["tokenizer.ggml.tokens"].data)


def _tensors(words: int, width: int, context: int, seed: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    one, none = np.ones(width, np.float32), np.zeros(width, np.float32)
    tensors = {
        "token_embd.weight": random.standard_normal((words, width), np.float32),
        "position_embd.weight": np.zeros((context, width), np.float32),
        "token_types.weight": np.zeros((2, width), np.float32),
        "token_embd_norm.weight": one,
        "token_embd_norm.bias": none,
        "blk.0.attn_output_norm.weight": one,
        "blk.0.attn_output_norm.bias": none,
        "blk.0.layer_output_norm.weight": one,
        "blk.0.layer_output_norm.bias": none,
    }
    for name in MATRICES:
        tensors[f"blk.0.{name}.weight"] = np.zeros((width, width), np.float32)
        tensors[f"blk.0.{name}.bias"] = none
    return tensors
