"""The distribution of answer lengths, learned from recent answers by the product-limit estimator of Kaplan and Meier
(1958). Pure.

An answer that reached its token limit is censored: it shows that answers get at least that long, and nothing beyond. To
count it as one that ended there would make all answers look shorter than they are.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NEWEST = 64  # recent answers in the estimate


UNLIMITED = 1 << 62  # tokens; where the curve ends, only the limit of the answer counts


class _Curve(NamedTuple):
    """`ended` is the share of answers that have ended by themselves before each of `tokens`; both rise. The last of
    `tokens` is UNLIMITED, and the first of `ended` is 0."""

    tokens: NDArray[np.int64]
    ended: NDArray[np.float64]

    @classmethod
    def of(cls, tokens: list[int], ended: list[float]) -> _Curve:
        return cls(np.array([*tokens, UNLIMITED], np.int64), np.array([0.0, *ended], np.float64))


class AnswerLengths:
    """In tokens. The engine's thread adds, the event loop asks: what it asks is exchanged as a whole."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, bool]] = deque(maxlen=NEWEST)
        self._curve = _Curve.of([], [])
        self.mean = 0.0

    @property
    def is_certain(self) -> bool:
        """Whether all answers went on until they reached their limit."""
        return len(self._curve.tokens) == 1

    def add(self, tokens: int, *, limited: bool) -> None:
        """An answer has ended; `limited`: because it was not allowed to have more."""
        self._newest.append((tokens, limited))
        ends, ended, left = list[int](), list[float](), 1.0
        for place, (length, was_limited) in enumerate(sorted(self._newest)):
            if not was_limited:
                left *= 1 - 1 / (len(self._newest) - place)
                ends.append(length)
                ended.append(1 - left)
        self._curve = _Curve.of(ends, ended)
        self.mean = fmean(length for length, _ in self._newest)

    def left(
        self, generated: NDArray[np.int64], max_tokens: NDArray[np.int64], chances: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Further tokens of answers, a row each: as many or fewer with each of the chances in its row."""
        tokens, ended = self._curve
        before = tokens.searchsorted(generated, side="right")
        over = ended[before][:, None]
        end = np.maximum(ended[1:].searchsorted(over + chances * (1 - over)), before[:, None])
        return np.maximum(1, np.minimum(tokens[end], max_tokens[:, None]) - generated[:, None])
