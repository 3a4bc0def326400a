"""Metrics for a ranking of passages, given the targets of a question. Pure.

A question has one or several targets, each a span of a file or a whole file, with a grade. A passage meets a target if
they share at least half of the shorter one; only the first passage that meets a target gains by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retrieval.records import SourceSpan

RANKS_MAX = 10  # for MRR and nDCG, as usual in the literature
RECALL_RANKS = (1, 5, 20)


@dataclass(frozen=True, slots=True)
class Target:
    """What should be found: the characters [start, end) of a file, or any part of it if `end` is None."""

    file_id: str
    start: int = 0
    end: int | None = None
    grade: float = 1.0

    def is_met_by(self, passage: SourceSpan) -> bool:
        if passage.file_id != self.file_id:
            return False
        if self.end is None:
            return True
        shared = min(passage.end, self.end) - max(passage.start, self.start)
        return shared > 0 and 2 * shared >= min(passage.end - passage.start, self.end - self.start)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One ranking of passages for one question: `met` holds, by rank, the grades of the targets first met there."""

    met: tuple[tuple[float, ...], ...]
    wanted: tuple[float, ...]  # the grades of all targets, at least one

    def recall(self, ranks: int) -> float:
        """Share of the targets met by the first `ranks` passages."""
        return sum(map(len, self.met[:ranks])) / len(self.wanted)

    @property
    def reciprocal_rank(self) -> float:
        """1 / rank of the first passage that meets a target; 0 if it is not among the first RANKS_MAX."""
        return next((1 / rank for rank, grades in enumerate(self.met[:RANKS_MAX], 1) if grades), 0.0)

    @property
    def ndcg(self) -> float:
        """Discounted gain relative to the best possible one (Järvelin and Kekäläinen, 2002), over the first RANKS_MAX.

        A passage across the boundary of two targets meets both at one rank, which no order of targets can: hence the
        limit of 1.
        """
        best = _discounted(sorted(self.wanted, reverse=True))
        return min(1.0, _discounted(map(sum, self.met)) / best)


def judge(passages: Iterable[SourceSpan], targets: Sequence[Target]) -> Judgement:
    left = list(targets)
    met: list[tuple[float, ...]] = []
    for passage in passages:
        found = [target for target in left if target.is_met_by(passage)]
        left = [target for target in left if target not in found]
        met.append(tuple(target.grade for target in found))
    return Judgement(tuple(met), tuple(target.grade for target in targets))


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over questions."""

    recall: dict[int, float]
    mrr: float
    ndcg: float


def quality(judgements: Sequence[Judgement]) -> Quality:
    """Requires at least one judgement."""
    return Quality(
        recall={ranks: _mean([j.recall(ranks) for j in judgements]) for ranks in RECALL_RANKS},
        mrr=_mean([j.reciprocal_rank for j in judgements]),
        ndcg=_mean([j.ndcg for j in judgements]),
    )


def _discounted(gains: Iterable[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(list(gains)[:RANKS_MAX], 1))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
