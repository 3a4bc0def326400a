"""A small decoder of llama's kind: RMSNorm, RoPE, SwiGLU, grouped queries, tied embeddings.

All but attention works on single tokens and so on a flat [tokens, width]: one compiled graph serves every batch of the
same number of tokens, however long its rows are. RoPE turns halves of a head ("rotate half"); `layout` puts the rows
into the order that llama.cpp wants. The names of parameters are those in checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.attention import Attention, blocked, plain
from training.copying import plant
from training.pointing import Watch
from training.shape import Shape

EMBEDDING_DEVIATION = 0.1
OUTPUT_SCALE = 0.15  # of the last norm at the start: with tied embeddings, larger logits begin far too sure


class Block(nn.Module):
    """A layer, in two halves with attention between them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, queries, keys = shape.d_model, shape.n_head * shape.head_dim, shape.n_kv * shape.head_dim
        self.norm1 = nn.Parameter(torch.ones(width))
        self.norm2 = nn.Parameter(torch.ones(width))
        self.wq = nn.Linear(width, queries, bias=False)
        self.wk = nn.Linear(width, keys, bias=False)
        self.wv = nn.Linear(width, keys, bias=False)
        self.wo = nn.Linear(queries, width, bias=False)
        self.gate = nn.Linear(width, shape.d_ff, bias=False)
        self.up = nn.Linear(width, shape.d_ff, bias=False)
        self.down = nn.Linear(shape.d_ff, width, bias=False)
        for reader in (self.wq, self.wk, self.wv, self.gate, self.up):
            nn.init.normal_(reader.weight, std=width**-0.5)
        for writer in (self.wo, self.down):  # a layer begins as the identity
            nn.init.zeros_(writer.weight)

    def before(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[n, width] -> queries, keys and values [n, heads, head_dim]; cos and sin are [n, head_dim / 2]."""
        shape, n = self.shape, len(x)
        h = normed(x, self.norm1, shape.eps)
        queries = turned(self.wq(h).view(n, shape.n_head, shape.head_dim), cos, sin)
        keys = turned(self.wk(h).view(n, shape.n_kv, shape.head_dim), cos, sin)
        return queries, keys, self.wv(h).view(n, shape.n_kv, shape.head_dim)

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.wo(attended)
        h = normed(x, self.norm2, self.shape.eps)
        written: Tensor = self.down(functional.silu(self.gate(h)) * self.up(h))
        return x + written


class Model(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.emb = nn.Embedding(shape.vocab, shape.d_model)
        self.layers = tuple(Block(shape) for _ in range(shape.n_layer))
        self.blocks = nn.ModuleList(self.layers)
        self.norm = nn.Parameter(torch.full((shape.d_model,), OUTPUT_SCALE))
        nn.init.normal_(self.emb.weight, std=EMBEDDING_DEVIATION)
        speeds = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.ctx).float(), speeds)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self._before: Callable[[Block, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] = Block.before
        self._after: Callable[[Block, Tensor, Tensor], Tensor] = Block.after
        self._attention: Attention = plain

    def compiled(self) -> Model:
        """Itself, with compiled layers: pays after some minutes of training."""
        self._before = torch.compile(Block.before, dynamic=False)
        if self.emb.weight.device.type == "cpu":
            self._attention = blocked(compiled=True)
        self._after = torch.compile(Block.after, dynamic=False)
        return self

    def hidden(self, ids: Tensor, chosen: Tensor | None = None, watch: Watch | None = None) -> Tensor:
        """[rows, length] -> the normed states [rows * length, width], or of the `chosen` of those places only."""
        shape, (rows, length) = self.shape, ids.shape
        cos, sin = self.cos[:length].repeat(rows, 1), self.sin[:length].repeat(rows, 1)
        x: Tensor = self.emb(ids.reshape(-1))
        if torch.is_autocast_enabled(x.device.type):
            x = x.bfloat16()
        for number, block in enumerate(self.layers):
            queries, keys, values = self._before(block, x, cos, sin)
            if watch is not None:
                watch(number, queries, keys)
            attended = self._attention(queries, keys, values, rows)
            if chosen is not None and block is self.layers[-1]:
                x, attended = x[chosen], attended[chosen]
            x = self._after(block, x, attended)
        return normed(x, self.norm, shape.eps)

    def forward(self, ids: Tensor) -> Tensor:
        """[rows, length] -> logits [rows, length, vocabulary]."""
        return functional.linear(self.hidden(ids), self.emb.weight).view(*ids.shape, -1)


def fresh(shape: Shape, seed: int) -> Model:
    """A model that has learnt nothing, but can copy a little."""
    torch.manual_seed(seed)
    model = Model(shape)
    plant(shape, model.emb.weight, model.layers[0], model.layers[1])
    return model


def normed(x: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + epsilon)
    return (h * scale).to(x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE: x [n, heads, head_dim], cos and sin [n, head_dim / 2]."""
    a, b = x.float().chunk(2, -1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)
