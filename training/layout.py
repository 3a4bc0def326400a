"""What llama.cpp calls each parameter, and the order in which it wants the rows of queries and keys."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from training.shape import Shape

_OF_A_LAYER = {
    "norm1": "attn_norm",
    "norm2": "ffn_norm",
    "wq.weight": "attn_q",
    "wk.weight": "attn_k",
    "wv.weight": "attn_v",
    "wo.weight": "attn_output",
    "gate.weight": "ffn_gate",
    "up.weight": "ffn_up",
    "down.weight": "ffn_down",
}


def tensor_names(shape: Shape) -> dict[str, str]:
    """The names in a GGUF file by those of the parameters."""
    names = {"emb.weight": "token_embd.weight", "norm": "output_norm.weight"}
    for layer in range(shape.n_layer):
        names |= {f"blocks.{layer}.{ours}": f"blk.{layer}.{theirs}.weight" for ours, theirs in _OF_A_LAYER.items()}
    return names


def interleaved(name: str, weight: NDArray[np.float32], shape: Shape) -> NDArray[np.float32]:
    """Our order of rows to that of a file: halves of a head become neighbours."""
    heads = _turned_heads(name, shape)
    if not heads:
        return weight
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def halved(name: str, weight: NDArray[np.float32], shape: Shape) -> NDArray[np.float32]:
    """The other way: the order of a file to ours."""
    heads = _turned_heads(name, shape)
    if not heads:
        return weight
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _turned_heads(name: str, shape: Shape) -> int:
    """Heads of a parameter whose outputs RoPE turns; 0 for all the others."""
    return {"wq": shape.n_head, "wk": shape.n_kv}.get(name.split(".")[-2] if "." in name else "", 0)
