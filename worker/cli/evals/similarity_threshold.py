"""Fits, on cases, the similarity threshold above which two questions may share an answer. Pure.

Cases with the same expectation are paraphrases of one question. Each case is looked up as if all others had been cached
before: a hit is right if the nearest of them has the same expectation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agents.answer_cache import particulars
from worker.engines.engine_settings import SIMILAR_MIN

FINER = 0.0001  # a threshold lies between two similarities


@dataclass(frozen=True, slots=True)
class Question:
    """`context` and `expected` are fingerprints: equal for the same preceding text, and for the same expectation."""

    text: str
    context: str
    expected: str
    vector: NDArray[np.float32]  # of length 1


@dataclass(frozen=True, slots=True)
class Hits:
    """Counts over all questions, and over those that have a paraphrase."""

    questions: int
    repeated: int
    hits: int
    wrong: int

    @property
    def wrong_share(self) -> float:
        return self.wrong / self.hits if self.hits else 0.0

    @property
    def found_share(self) -> float:
        """Of the questions with a paraphrase, the share that got the right answer."""
        return (self.hits - self.wrong) / self.repeated if self.repeated else 0.0


@dataclass(frozen=True, slots=True)
class Threshold:
    """None: no threshold is right often enough. `fitted` and `held_out` are the results on both halves."""

    value: float | None
    fitted: Hits
    held_out: Hits


@dataclass(frozen=True, slots=True)
class _Nearest:
    similarity: float  # -1 if nothing is comparable
    is_right: bool
    is_repeated: bool


def fit_threshold(questions: Sequence[Question], wrong_max: float) -> Threshold:
    """The lowest threshold at which at most this share of the hits is wrong, fitted on one half of the expectations and
    validated on the other. A thousand cases take about a second."""
    names = sorted({question.expected for question in questions})
    groups = {name: number % 2 for number, name in enumerate(names)}
    one, other = (
        [each for asked, each in zip(questions, _nearest(questions), strict=True) if groups[asked.expected] == half]
        for half in (0, 1)
    )
    found = None
    similarities = {round(each.similarity - FINER, 4) for each in one if each.similarity - FINER >= SIMILAR_MIN}
    for threshold in sorted(similarities, reverse=True):
        hits = _hits(one, threshold)
        if hits.wrong_share <= wrong_max and hits.hits > hits.wrong:
            found = threshold
        elif found is not None:
            break  # hits that are right again below this are right by chance
    at = 2.0 if found is None else found
    return Threshold(found, _hits(one, at), _hits(other, at))


def _nearest(questions: Sequence[Question]) -> list[_Nearest]:
    """Of each question."""
    ways = Counter((each.context, each.expected) for each in questions)
    comparable: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for number, each in enumerate(questions):
        comparable.setdefault((each.context, particulars(each.text)), []).append(number)
    found = [_Nearest(-1.0, False, ways[each.context, each.expected] > 1) for each in questions]
    for numbers in comparable.values():
        if len(numbers) < 2:
            continue
        vectors = np.stack([questions[number].vector for number in numbers])
        similarities = vectors @ vectors.T
        np.fill_diagonal(similarities, -1.0)
        for place, best in enumerate(similarities.argmax(axis=1)):
            asked, other = questions[numbers[place]], questions[numbers[best]]
            is_right = asked.expected == other.expected
            found[numbers[place]] = replace(
                found[numbers[place]], similarity=float(similarities[place, best]), is_right=is_right
            )
    return found


def _hits(nearest: Sequence[_Nearest], threshold: float) -> Hits:
    hits = [each for each in nearest if each.similarity >= threshold]
    return Hits(
        len(nearest),
        sum(each.is_repeated for each in nearest),
        len(hits),
        sum(not each.is_right for each in hits),
    )
