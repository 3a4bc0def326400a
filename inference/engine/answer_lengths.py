"""The distribution of answer lengths, learned from recent answers with the Kaplan-Meier estimator (1958). Pure.

An answer that reached its token limit is censored: it only shows that its length would have been at least that. To
count it as complete would make answers look shorter than they are.

About lengths beyond the longest recent answer the estimator says nothing. There a Pareto tail with exponent 1 is
assumed: of the answers that got that far, half get twice as far. To expect all of them at their limit instead would
mean thousands of tokens for each request without a limit of its own, after a single short answer.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NEWEST = 64  # recent answers in the estimate


class _Curve(NamedTuple):
    """`ended`: the share of answers that ended by themselves before each of `tokens`, and last the share before
    `longest`, where the tail begins. Both are ascending; `ended` begins with 0 and has one entry more."""

    tokens: NDArray[np.int64]
    ended: NDArray[np.float64]
    longest: int  # tokens of the longest recent answer, complete or not

    @classmethod
    def of(cls, tokens: list[int], ended: list[float], longest: int) -> _Curve:
        return cls(np.array(tokens, np.int64), np.array([0.0, *ended], np.float64), longest)


class AnswerLengths:
    """Lengths are in tokens. The engine's thread adds answers while the event loop reads: the curve is replaced as a
    whole."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, bool]] = deque(maxlen=NEWEST)
        self._curve = _Curve.of([], [], 1)
        self.mean = 0.0

    def __len__(self) -> int:
        """Recent answers in the estimate."""
        return len(self._newest)

    def reach_their_limit(self, max_tokens: int) -> bool:
        """Whether all answers with limits up to `max_tokens` are expected to reach them: no recent answer ended before
        its own limit, and one got that far."""
        return not len(self._curve.tokens) and max_tokens <= self._curve.longest

    def add(self, tokens: int, *, limited: bool) -> None:
        """Record an answer that has ended; `limited`: at its token limit."""
        self._newest.append((tokens, limited))
        ends, ended, left = list[int](), list[float](), 1.0
        for shorter, (length, was_limited) in enumerate(sorted(self._newest)):
            if not was_limited:
                left *= 1 - 1 / (len(self._newest) - shorter)
                ends.append(length)
                ended.append(1 - left)
        self._curve = _Curve.of(ends, ended, max(1, *[length for length, _ in self._newest]))
        self.mean = fmean(length for length, _ in self._newest)

    def left(
        self, generated: NDArray[np.int64], max_tokens: NDArray[np.int64], quantiles: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Quantiles of the number of tokens still to come, at least 1, given the tokens that each answer has so far.
        `generated` and `max_tokens` have shape (answers,), `quantiles` and the result (answers, quantiles)."""
        tokens, ended, longest = self._curve
        before = tokens.searchsorted(generated, side="right")
        over = ended[before][:, None]
        at = over + quantiles * (1 - over)
        end = np.maximum(ended[1:].searchsorted(at), before[:, None])
        tail = 1 - ended[-1]  # share of answers in it
        survivors = 1 - quantiles if tail <= 0 else np.minimum(1, (1 - at) / tail)
        reached = np.maximum(longest, generated)[:, None] / survivors
        length = np.where(end < len(tokens), np.append(tokens, 0)[end], np.minimum(reached, max_tokens[:, None]))
        return np.maximum(1, np.minimum(length, max_tokens[:, None]) - generated[:, None]).astype(np.int64)
