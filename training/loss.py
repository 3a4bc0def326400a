"""What a step makes smaller: the surprise at what was written, or the distance to a teacher."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from training.model import Model

IMITATION_SHARE = 0.8  # of a student's loss; the rest is the surprise at what was written

# (model, ids [rows, length], chosen places [n], their targets [n], their weights [n]) -> loss
Objective: TypeAlias = Callable[[Model, Tensor, Tensor, Tensor, Tensor], Tensor]


def likelihood(*, compiled: bool) -> Objective:
    surprise = torch.compile(_surprise, dynamic=False) if compiled else _surprise

    def objective(model: Model, ids: Tensor, chosen: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return surprise(model.hidden(ids, chosen), model.emb.weight, targets, weights)

    return objective


def distillation(teacher: Model, *, compiled: bool) -> Objective:
    """The student learns all that the teacher thinks possible, not only what was written.

    Hinton, Vinyals, Dean 2015, "Distilling the knowledge in a neural network".
    """
    distance = torch.compile(_distance, dynamic=False) if compiled else _distance

    def objective(model: Model, ids: Tensor, chosen: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        with torch.no_grad():
            taught = teacher.hidden(ids, chosen)
        states = model.hidden(ids, chosen)
        return distance(states, model.emb.weight, taught, teacher.emb.weight, targets, weights)

    return objective


def _surprise(states: Tensor, embeddings: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    logits = functional.linear(states, embeddings.to(states.dtype)).float()
    return _mean(functional.cross_entropy(logits, targets, reduction="none"), weights)


def _distance(
    states: Tensor, embeddings: Tensor, taught: Tensor, teacher: Tensor, targets: Tensor, weights: Tensor
) -> Tensor:
    ours = functional.log_softmax(functional.linear(states, embeddings.to(states.dtype)).float(), -1)
    with torch.no_grad():
        theirs = functional.softmax(functional.linear(taught, teacher.to(taught.dtype)).float(), -1)
    imitation = -(theirs * ours).sum(-1)
    surprise = -ours.gather(1, targets[:, None])[:, 0]
    return _mean(IMITATION_SHARE * imitation + (1 - IMITATION_SHARE) * surprise, weights)


def _mean(losses: Tensor, weights: Tensor) -> Tensor:
    return (losses * weights).sum() / weights.sum().clamp(min=1e-6)
