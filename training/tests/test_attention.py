from __future__ import annotations

import pytest
import torch
from torch import Tensor

from training.attention import BLOCK, Attention, blocked, plain

SIZE = 64


def results(attention: Attention, rows: int, length: int, kind: torch.dtype) -> list[Tensor]:
    """What comes out, and the slopes at queries, keys and values."""
    random = torch.Generator().manual_seed(7)
    queries, keys, values = (
        torch.randn(rows * length, heads, SIZE, generator=random).mul(2).to(kind).requires_grad_()
        for heads in (6, 2, 2)
    )
    out = attention(queries, keys, values, rows)
    torch.autograd.backward(out, torch.randn(out.shape, generator=random).to(kind))
    return [out, *(given.grad for given in (queries, keys, values) if given.grad is not None)]


@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize(("rows", "length"), [(1, BLOCK), (3, 2 * BLOCK), (1, 4 * BLOCK), (2, BLOCK + 1)])
def test_blocks_attend_and_learn_like_the_plain_kernel(
    rows: int, length: int, kind: torch.dtype, tolerance: float
) -> None:
    ours, theirs = results(blocked(compiled=False), rows, length, kind), results(plain, rows, length, kind)
    assert len(ours) == len(theirs) == 4
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).abs().max() <= tolerance * other.abs().max()
