"""One score of two kinds of evidence: how near in meaning, and how many of the telling words. Pure."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

RANK_OFFSET = 60  # reciprocal rank fusion's usual constant (Cormack, Clarke and Büttcher, SIGIR 2009)

Scores = NDArray[np.float64]


def fuse(
    similarity: Scores | None, coverage: Scores, *, method: Literal["scores", "ranks"], lexical_weight: float
) -> Scores:
    """A score from 0 to 1 for each candidate, given its cosine and the share of the query's words that it holds.

    By "scores" a candidate gets its similarity and, relative to the one with most of the words, up to `lexical_weight`
    on top. Without similarity the share of words is the score.
    """
    if similarity is None or not len(coverage):
        return coverage
    if method == "ranks":
        return _by_rank(similarity, coverage)
    best = coverage.max()
    bonus = coverage / best if best > 0 else coverage
    return np.clip(similarity + lexical_weight * bonus, 0.0, 1.0)


def _by_rank(similarity: Scores, coverage: Scores) -> Scores:
    """First in both lists is 1. Who holds no word is not in the list of words."""
    scores = _reciprocal_ranks(similarity) + np.where(coverage > 0, _reciprocal_ranks(coverage), 0.0)
    return scores * (RANK_OFFSET + 1) / 2


def _reciprocal_ranks(values: Scores) -> Scores:
    ranks = np.empty(len(values))
    ranks[np.argsort(-values, kind="stable")] = np.arange(1, len(values) + 1)
    return 1 / (RANK_OFFSET + ranks)
