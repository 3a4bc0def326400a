"""What a step makes smaller: the surprise at what was written, or the distance to a teacher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from training.model import Model
from training.pointing import Pointing

IMITATION_SHARE = 0.8  # of a student's loss; the rest is the surprise at what was written
POINTING_WEIGHT = 0.25  # of a nat of looking elsewhere, to one of writing something else


@dataclass(frozen=True, slots=True)
class Lesson:
    """`ids` [rows, length]; the chosen places [n] among all, what comes next there, and what it weighs; the places
    [rows, m] where copied tokens are written, those that they are copied from, and where what is copied ends."""

    ids: Tensor
    chosen: Tensor
    targets: Tensor
    weights: Tensor
    copied: Tensor
    sources: Tensor
    ends: Tensor


@dataclass(frozen=True, slots=True)
class Loss:
    """Nats a token: of what is written, and of where heads look that are shown it."""

    written: Tensor
    looking: Tensor

    @property
    def total(self) -> Tensor:
        return self.written + POINTING_WEIGHT * self.looking


Objective: TypeAlias = Callable[[Model, Lesson], Loss]


def likelihood(*, compiled: bool) -> Objective:
    surprise = torch.compile(_surprise, dynamic=False) if compiled else _surprise

    def objective(model: Model, lesson: Lesson) -> Loss:
        pointing = Pointing(model.shape, lesson.copied, lesson.sources, lesson.ends)
        states = model.hidden(lesson.ids, lesson.chosen, pointing.watch)
        return Loss(surprise(states, model.emb.weight, lesson.targets, lesson.weights), pointing.loss)

    return objective


def distillation(teacher: Model, *, compiled: bool) -> Objective:
    """The student learns all that the teacher thinks possible, not only what was written.

    Hinton, Vinyals, Dean 2015, "Distilling the knowledge in a neural network".
    """
    distance = torch.compile(_distance, dynamic=False) if compiled else _distance

    def objective(model: Model, lesson: Lesson) -> Loss:
        with torch.no_grad():
            taught = teacher.hidden(lesson.ids, lesson.chosen)
        states = model.hidden(lesson.ids, lesson.chosen)
        written = distance(states, model.emb.weight, taught, teacher.emb.weight, lesson.targets, lesson.weights)
        return Loss(written, torch.zeros((), device=written.device))

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
