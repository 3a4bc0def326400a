"""Causal attention for a CPU: blocks of queries against the keys before them, as plain matrix products.

PyTorch's own kernel reaches a fifth of what its matrix products do there, forwards and backwards. The queries that
share a head of keys stand under each other in one matrix, so that no key is repeated. Products are rounded to the type
of the keys, which PyTorch's kernel does not do: of a trained model that moves the loss by 0.001 a token on average.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 128  # queries: of 64 to 512, the fastest at all lengths of rows

# (queries [n, heads, head_dim], keys and values [n, kv heads, head_dim], rows) -> [n, heads * head_dim]
Attention: TypeAlias = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def plain(queries: Tensor, keys: Tensor, values: Tensor, rows: int) -> Tensor:
    """PyTorch's own."""
    sharing = queries.shape[1] // keys.shape[1]
    q, k, v = (x.view(rows, -1, *x.shape[1:]).transpose(1, 2) for x in (queries, keys, values))
    k, v = k.repeat_interleave(sharing, 1), v.repeat_interleave(sharing, 1)
    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return attended.transpose(1, 2).reshape(len(queries), -1)


def blocked(*, compiled: bool) -> Attention:
    """The same in blocks; `plain` where a row is no whole number of them. What is between the products is compiled."""
    soften = torch.compile(_soften, dynamic=True) if compiled else _soften
    harden = torch.compile(_harden, dynamic=True) if compiled else _harden

    def attention(queries: Tensor, keys: Tensor, values: Tensor, rows: int) -> Tensor:
        if len(queries) // rows % BLOCK:
            return plain(queries, keys, values, rows)
        attended: Tensor = _Blocked.apply(queries, keys, values, rows, soften, harden)  # type: ignore[no-untyped-call]
        return attended

    return attention


class _Blocked(torch.autograd.Function):
    """Inside, queries are [blocks, rows * kv heads, sharing * BLOCK, size], keys [rows * kv heads, length, size].

    Weights are kept as they are before a division by their sum: what they make is divided instead, which is smaller.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, rows: int, soften: Any, harden: Any) -> Tensor:
        q = _stacked(queries * queries.shape[-1] ** -0.5, keys.shape[1], rows)
        k, v = _by_head(keys, rows), _by_head(values, rows)
        later = torch.full((BLOCK, BLOCK), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
        attended, weights = torch.empty_like(q), []
        sums = torch.empty((*q.shape[:-1], 1), device=q.device)
        for i, block in enumerate(q):
            end = (i + 1) * BLOCK
            products = torch.bmm(block, k[:, :end].mT)
            products.view(len(k), -1, BLOCK, end)[..., -BLOCK:] += later
            weight, sums[i] = soften(products)
            torch.bmm(weight, v[:, :end], out=attended[i])
            weights.append(weight)
        attended /= sums
        ctx.save_for_backward(q, k, v, attended, sums, *weights)
        ctx.rows, ctx.harden = rows, harden
        return _unstacked(attended, rows).flatten(1)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, attended, sums, *weights = ctx.saved_tensors
        heads = len(k) // ctx.rows
        slope = _stacked(slopes[0].view(len(slopes[0]), -1, q.shape[-1]), heads, ctx.rows) / sums
        shared = (slope * attended).sum(-1, keepdim=True)
        slope = slope.to(q.dtype)
        to_q = torch.empty_like(q)
        to_k, to_v = torch.zeros(k.shape, device=k.device), torch.zeros(v.shape, device=v.device)
        for i, weight in enumerate(weights):
            end = (i + 1) * BLOCK
            to_v[:, :end] += torch.bmm(weight.mT, slope[i])
            to_product = ctx.harden(weight, torch.bmm(slope[i], v[:, :end].mT), shared[i])
            torch.bmm(to_product, k[:, :end], out=to_q[i])
            to_k[:, :end] += torch.bmm(to_product.mT, q[i])
        to_keys, to_values = (
            x.to(q.dtype).view(ctx.rows, heads, *x.shape[1:]).transpose(1, 2).flatten(0, 1) for x in (to_k, to_v)
        )
        return _unstacked(to_q, ctx.rows) * q.shape[-1] ** -0.5, to_keys, to_values, None, None, None


def _stacked(queries: Tensor, heads: int, rows: int) -> Tensor:
    n, _, size = queries.shape
    blocks = queries.view(rows, n // rows // BLOCK, BLOCK, heads, -1, size).permute(1, 0, 3, 4, 2, 5)
    return blocks.reshape(len(blocks), rows * heads, -1, size)


def _unstacked(blocks: Tensor, rows: int) -> Tensor:
    heads, size = blocks.shape[1] // rows, blocks.shape[-1]
    queries = blocks.view(len(blocks), rows, heads, -1, BLOCK, size).permute(1, 0, 4, 2, 3, 5)
    return queries.reshape(-1, blocks.shape[2] // BLOCK * heads, size)


def _by_head(keys: Tensor, rows: int) -> Tensor:
    return keys.view(rows, -1, *keys.shape[1:]).transpose(1, 2).flatten(0, 1)


def _soften(products: Tensor) -> tuple[Tensor, Tensor]:
    """Products of queries and keys -> the weights of the values, and by what they are too large."""
    weights = torch.exp(products.float() - products.amax(-1, keepdim=True).float())
    return weights.to(products.dtype), weights.sum(-1, keepdim=True)


def _harden(weights: Tensor, slopes: Tensor, shared: Tensor) -> Tensor:
    """Slopes at the weights -> at the products."""
    return (weights.float() * (slopes.float() - shared)).to(weights.dtype)
