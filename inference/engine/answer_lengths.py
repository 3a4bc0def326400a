"""The distribution of answer lengths, learned from recent answers by the product-limit estimator of Kaplan and Meier
(1958). Pure.

An answer that reached its token limit is censored: it shows that answers get at least that long, and nothing beyond. To
count it as one that ended there would make all answers look shorter than they are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

NEWEST = 64  # recent answers in the estimate


class _Curve(NamedTuple):
    """`ended` is the share of answers that have ended by themselves before or at each of `tokens`; both rise."""

    tokens: list[int]
    ended: list[float]


class AnswerLengths:
    """In tokens. The engine's thread adds, the event loop asks: what it asks is exchanged as a whole."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, bool]] = deque(maxlen=NEWEST)
        self._curve = _Curve([], [])
        self.mean = 0.0

    @property
    def is_certain(self) -> bool:
        """Whether all answers went on until they reached their limit."""
        return not self._curve.tokens

    def add(self, tokens: int, *, limited: bool) -> None:
        """An answer has ended; `limited`: because it was not allowed to have more."""
        self._newest.append((tokens, limited))
        curve, left = _Curve([], []), 1.0
        for place, (length, was_limited) in enumerate(sorted(self._newest)):
            if not was_limited:
                left *= 1 - 1 / (len(self._newest) - place)
                curve.tokens.append(length)
                curve.ended.append(1 - left)
        self._curve = curve
        self.mean = fmean(length for length, _ in self._newest)

    def left(self, said: int, most: int, chances: Sequence[float]) -> list[int]:
        """Tokens that an answer of so many, which may have `most`, goes on for: no more with each of those chances."""
        tokens, ended = self._curve
        before = bisect_right(tokens, said)
        over = ended[before - 1] if before else 0.0
        found = [bisect_left(ended, over + chance * (1 - over), before) for chance in chances]
        return [max(1, min(tokens[end] if end < len(tokens) else most, most) - said) for end in found]
