"""Muon for the matrices of the layers, AdamW for embeddings and norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from training.model import Model
from training.muon import Muon
from training.team import Team

GRADIENT_MAX = 1.0  # norm of the gradients of what AdamW trains; Muon's steps have the same size anyway
BETAS = (0.9, 0.98)


class Optimizers:
    def __init__(self, model: Model, team: Team, *, matrix_rate: float, embedding_rate: float) -> None:
        self._team, self._matrix_rate = team, matrix_rate
        self._all = list(model.parameters())
        norms = [parameter for parameter in self._all if parameter.ndim == 1]
        self._rest = [model.emb.weight, *norms]
        self._rates = (embedding_rate, embedding_rate / 2)
        self.adam = torch.optim.AdamW(
            [{"params": [model.emb.weight], "lr": embedding_rate}, {"params": norms, "lr": embedding_rate / 2}],
            betas=BETAS,
            weight_decay=0.0,
        )
        self.muon = Muon((p for p in self._all if p.ndim == 2 and p is not model.emb.weight), team)

    def restore(self, adam: Mapping[str, Any], momenta: Mapping[tuple[int, ...], Tensor]) -> None:
        self.adam.load_state_dict(dict(adam))
        self.muon.restore(momenta)

    def step(self, share: float) -> None:
        """Use up the gradients, at a share of the full rates."""
        self._team.average(self._all)
        torch.nn.utils.clip_grad_norm_(self._rest, GRADIENT_MAX)
        for group, rate in zip(self.adam.param_groups, self._rates, strict=True):
            group["lr"] = rate * share
        self.muon.step(self._matrix_rate * share)
        self.adam.step()
        for parameter in self._all:
            parameter.grad = None
