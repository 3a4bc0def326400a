"""The distribution of answer lengths, learned from recent answers with the Kaplan-Meier estimator (1958). Pure.

An answer that reached its token limit is censored: it only shows that its length would have been at least that. To
count it as complete would make answers look shorter than they are.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NEWEST = 64  # recent answers in the estimate

UNLIMITED = 1 << 62  # tokens; beyond the end of the curve, only max_tokens limits an answer


class _Curve(NamedTuple):
    """`ended`: the share of answers that ended by themselves before each of `tokens`. Both are ascending and have the
    same length; `tokens` ends with UNLIMITED, `ended` begins with 0."""

    tokens: NDArray[np.int64]
    ended: NDArray[np.float64]

    @classmethod
    def of(cls, tokens: list[int], ended: list[float]) -> _Curve:
        return cls(np.array([*tokens, UNLIMITED], np.int64), np.array([0.0, *ended], np.float64))


class AnswerLengths:
    """Lengths are in tokens. The engine's thread adds answers while the event loop reads: the curve is replaced as a
    whole."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, bool]] = deque(maxlen=NEWEST)
        self._curve = _Curve.of([], [])
        self.mean = 0.0

    @property
    def is_certain(self) -> bool:
        """Whether no recent answer ended before its limit: each is then expected to reach its own."""
        return len(self._curve.tokens) == 1

    def add(self, tokens: int, *, limited: bool) -> None:
        """Record an answer that has ended; `limited`: at its token limit."""
        self._newest.append((tokens, limited))
        ends, ended, left = list[int](), list[float](), 1.0
        for shorter, (length, was_limited) in enumerate(sorted(self._newest)):
            if not was_limited:
                left *= 1 - 1 / (len(self._newest) - shorter)
                ends.append(length)
                ended.append(1 - left)
        self._curve = _Curve.of(ends, ended)
        self.mean = fmean(length for length, _ in self._newest)

    def left(
        self, generated: NDArray[np.int64], max_tokens: NDArray[np.int64], quantiles: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Quantiles of the number of tokens still to come, at least 1, given the tokens that each answer has so far.
        `generated` and `max_tokens` have shape (answers,), `quantiles` and the result (answers, quantiles)."""
        tokens, ended = self._curve
        before = tokens.searchsorted(generated, side="right")
        over = ended[before][:, None]
        end = np.maximum(ended[1:].searchsorted(over + quantiles * (1 - over)), before[:, None])
        return np.maximum(1, np.minimum(tokens[end], max_tokens[:, None]) - generated[:, None])
