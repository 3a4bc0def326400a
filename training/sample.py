"""Which places of a batch the loss is taken at: logits over the vocabulary are the dearest part of a small model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.batches import LEARNT, PROMPT, PROSE, Batch

WEIGHTS = {LEARNT: 1.0, PROSE: 0.3, PROMPT: 0.1}


@dataclass(frozen=True, slots=True)
class Sample:
    """Always of the same size. `places` count through all rows; what only fills up has no weight."""

    places: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]


def sample(batch: Batch, count: int, random: np.random.Generator) -> Sample:
    """Learnt tokens first, then others, each in random order."""
    marks, targets = batch.marks[:, 1:].reshape(-1), batch.ids[:, 1:].reshape(-1)
    learnt = random.permutation(np.flatnonzero(marks == LEARNT))
    others = random.permutation(np.flatnonzero((marks == PROMPT) | (marks == PROSE)))
    found = np.concatenate([learnt, others])[:count]
    places = np.zeros(count, np.int64)
    places[: len(found)] = found
    weights = np.zeros(count, np.float32)
    weights[: len(found)] = [WEIGHTS[mark] for mark in marks[found]]
    return Sample(places, targets[places].astype(np.int64), weights)
