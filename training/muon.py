"""Muon, the optimizer of matrices: momentum, made orthogonal. Each process of a team does its share of the matrices.

Keller Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from training.team import Team

MOMENTUM = 0.95
DECAY = 0.01  # of weights, a step, times the rate
ITERATIONS = 5
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315  # of the Newton-Schulz iteration, as published


class Muon:
    """Matrices of one shape, or its transpose, are worked on together. `momenta` by shape [matrices, rows, columns]."""

    def __init__(self, matrices: Iterable[Parameter], team: Team) -> None:
        self._team = team
        self._groups: dict[tuple[int, ...], list[Parameter]] = {}
        for matrix in matrices:
            self._groups.setdefault(tuple(sorted(matrix.shape)), []).append(matrix)
        self.momenta = {
            shape: torch.zeros(len(group), *shape, device=group[0].device) for shape, group in self._groups.items()
        }

    def restore(self, momenta: Mapping[tuple[int, ...], Tensor]) -> None:
        for shape, momentum in self.momenta.items():
            momentum.copy_(momenta[shape])

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, group in self._groups.items():
            gradients = torch.stack([_lying(m.grad, shape) for m in group if m.grad is not None])
            momentum = self.momenta[shape].lerp_(gradients, 1 - MOMENTUM)
            share = self._team.share(len(group))
            updates = torch.zeros(gradients.shape, device=gradients.device)
            updates[share] = orthogonal(gradients[share].lerp(momentum[share], MOMENTUM)).float()
            self._team.exchange(updates)
            for matrix, update in zip(group, updates, strict=True):
                scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                matrix.mul_(1 - rate * DECAY).add_(_lying(update, tuple(matrix.shape)), alpha=-rate * scale)


def orthogonal(matrices: Tensor) -> Tensor:
    """[n, rows, columns], rows <= columns -> about the nearest with singular values of one, in bfloat16."""
    sizes: Tensor = matrices.norm(dim=(1, 2), keepdim=True)
    x = (matrices / (sizes + 1e-7)).bfloat16()
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=CUBIC, alpha=QUINTIC), x, beta=LINEAR)
    return x


def _lying(matrix: Tensor, shape: tuple[int, ...]) -> Tensor:
    return matrix if tuple(matrix.shape) == shape else matrix.T
