"""Choosing the next token from a row of logits, in numpy.

Order: logit bias, penalties, top-k, top-p, min-p, temperature, draw; each is exact over the whole vocabulary. Only a
top-k and likelihoods need an order, and of few tokens. Nothing here can abort the process.

With a grammar the sampled token is checked, which is cheap and mostly settles it. Only a refused one has the rest of
the row checked too, and is sampled again from what is left: together that is a draw from the renormalised rest.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.core import BIAS_MIN, Sampling, TokenLogprob
from inference.errors import GrammarFailed
from inference.grammar.constraint import Constraint

# Likely tokens that are checked against a grammar before the whole vocabulary is, which takes up to tens of
# milliseconds; who is not among them would hardly be sampled.
CANDIDATES_MAX = 256
LOGPROB_MIN = -9999.0  # stands for impossible, which JSON has no number for
# Groups of a row: more take longer to sort, fewer let more values through.
_GROUPS_PER_VALUE, _GROUPS_MIN = 8, 1024
# Tokens of a row expected to get much noise in a draw. With fewer, more of the others may still win and get theirs; a
# row of up to four times as many gets noise for each, which takes no longer then.
_NOISY = 128


def largest(row: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Indices of the `count` largest values, largest first; of equal ones the first.

    Each of the `count` groups with the largest maxima holds a value that is at least the smallest of these maxima: so
    the `count` largest values are among those that reach it, which are few. Ten times as fast as sorting the row.
    """
    groups = max(_GROUPS_PER_VALUE * count, _GROUPS_MIN)
    candidates = np.arange(len(row))
    if len(row) > 2 * groups:
        maxima = row[: len(row) // groups * groups].reshape(-1, groups).max(axis=0)
        candidates = np.flatnonzero(row >= np.partition(maxima, -count)[-count])
    return candidates[np.argsort(-row[candidates], kind="stable")[:count]]


def likelihoods(row: NDArray[np.float32], token: int, count: int) -> list[tuple[int, float]]:
    """The log probability of a token, then the `count` most likely tokens with theirs."""
    peak = row.max()
    total = float(peak) + log(np.exp(row - peak).sum())
    top = largest(row, min(count, len(row))).tolist() if count else ()
    return [(each, max(float(row[each]) - total, LOGPROB_MIN)) for each in (token, *top)]


def draw(row: NDArray[np.float32], temperature: float, random: np.random.Generator) -> int:
    """An index of row [n] with probability softmax(row / temperature), by a lazy Gumbel-max (Mussmann, Levy and Ermon,
    UAI 2017, arXiv 1707.03372).

    The value that is largest with Gumbel noise added is such a draw. The noise is the highest point of a Poisson
    process, so it is sampled in two parts: the few points above a height, which fall on any tokens alike, and only
    where these leave a chance the highest point below. One comparison passes over the row; a softmax takes several
    passes.
    """
    size = len(row)
    if size <= 4 * _NOISY:
        return int((row - temperature * np.log(random.standard_exponential(size))).argmax())
    # All noise is told from log(size / _NOISY) on: above that height _NOISY points are expected, and in practice some.
    noisy = (size * random.random(random.poisson(_NOISY))).astype(np.intp)
    heights = row[noisy] + temperature * random.standard_exponential(len(noisy), np.float32)
    first = heights.argmax()
    near = (row > heights[first]).nonzero()[0]
    if len(near):
        below = -np.log1p(random.standard_exponential(len(near), np.float32) * (size / _NOISY))
        others = row[near] + temperature * below
        second = others.argmax()
        if others[second] > heights[first]:
            return int(near[second])
    return int(noisy[first])


def is_in_nucleus(value: np.float32, likelier: NDArray[np.float32], row: NDArray[np.float32], top_p: float) -> bool:
    """Whether the tokens that are likelier than the one with this value have together less than `top_p` of the row's
    probability: it is then one of the fewest that have that much, or as likely as one."""
    if not len(likelier):
        return True
    peak = likelier.max()
    above = np.exp(likelier - peak).sum()
    if above < top_p * (above + np.exp(value - peak)):  # whatever the rest of the row has
        return True
    weights = row - peak
    return bool(above < top_p * np.exp(weights, out=weights).sum())


class Sampler:
    """Draws the tokens of one request; remembers what it drew where penalties need it.

    With a seed, what is drawn at a place of the answer depends on the seed, the place and the row, and on no earlier
    draw: so an answer goes on elsewhere, behind the tokens that are `written`, as it would have gone on here.
    Raises GrammarFailed where these break the constraint.
    """

    def __init__(self, sampling: Sampling, constraint: Constraint | None = None, written: Sequence[int] = ()) -> None:
        self._sampling = sampling
        self._constraint = constraint
        self._penalises = bool(
            sampling.presence_penalty or sampling.frequency_penalty or sampling.repeat_penalty != 1.0
        )
        self._counts: Counter[int] = Counter()
        self._likelihoods: list[tuple[int, float]] = []  # of the sampled token, then of the most likely ones
        # Tokens that are out of reach. One of them is seldom drawn, and another draw in its place then is a draw from
        # the others: nearly all rows need not be adjusted.
        self.never = frozenset(token for token, bias in sampling.logit_bias.items() if bias <= BIAS_MIN)
        adjusts = self._penalises or len(self.never) < len(sampling.logit_bias)
        self._adjusts_seldom = not adjusts and constraint is None and sampling.top_logprobs is None
        # Whether each draw is the most likely token of its row, if that is within reach, and leaves nothing behind:
        # `draw` need not be called then.
        self.takes_most_likely = sampling.temperature <= 0 and self._adjusts_seldom
        seeded = sampling.seed is not None or sampling.deterministic
        self._repeats = seeded and sampling.temperature > 0
        self._place = len(written)  # of the next token in the answer
        if self._penalises:
            self._counts.update(written)
        for token in written if constraint else ():
            if constraint is None or not constraint.allows(token):
                raise GrammarFailed("what is written breaks the required format")
            constraint.accept(token)

    @cached_property
    def _random(self) -> np.random.Generator:
        """Made at the first draw: it takes as long as parsing a request, which the event loop need not wait for."""
        if not self._repeats:
            return np.random.default_rng(secrets.randbits(64))
        return np.random.Generator(np.random.Philox(key=self._sampling.seed or 0))

    @cached_property
    def _stretches(self) -> dict[str, Any]:
        """The state of a generator whose numbers are counted: a stretch of them is for each place."""
        return dict(self._random.bit_generator.state)

    def _turn_to_place(self) -> None:
        stretch = self._stretches
        stretch["state"]["counter"] = np.array([0, self._place, 0, 0], np.uint64)
        self._random.bit_generator.state = stretch

    def draw(self, logits: NDArray[np.float32]) -> int:
        """logits [vocabulary], left unchanged -> token id. Raises GrammarFailed when no token fits the grammar."""
        if self._repeats:
            self._turn_to_place()
        self._place += 1
        row = logits if self._adjusts_seldom else self._adjusted(logits)
        token = self._pick(row)
        if self._adjusts_seldom and token in self.never:
            token = self._pick(self._adjusted(logits))
        if self._constraint:
            if not self._constraint.allows(token):
                fitting = self._fitting(row, self._constraint)
                token = int(fitting[self._pick(row[fitting])])
            self._constraint.accept(token)
        if self._penalises:
            self._counts[token] += 1
        if self._sampling.top_logprobs is not None:
            self._likelihoods = likelihoods(row, token, self._sampling.top_logprobs)
        return token

    @property
    def constrained(self) -> bool:
        return self._constraint is not None

    def forced(self) -> list[int]:
        """The tokens that probably come next, where a grammar leaves no choice of the text."""
        return self._constraint.forced() if self._constraint else []

    def logprobs_of(self, pieces: Sequence[bytes]) -> tuple[TokenLogprob, ...]:
        """How likely the last token was, with the text of the tokens; empty if not requested."""
        if not self._likelihoods:
            return ()
        (token, logprob), *top = self._likelihoods
        return (TokenLogprob(pieces[token], logprob, tuple((pieces[each], number) for each, number in top)),)

    def _pick(self, row: NDArray[np.float32]) -> int:
        return int(row.argmax()) if self._sampling.temperature <= 0 else self._drawn(row)

    @staticmethod
    def _fitting(row: NDArray[np.float32], constraint: Constraint) -> NDArray[np.intp]:
        """The tokens that fit: the likely ones if any of them does, else all that do."""
        for tokens in (largest(row, min(CANDIDATES_MAX, len(row))), np.arange(len(row))):
            fitting = tokens[constraint.allowed(tokens)]
            if len(fitting):
                return fitting
        raise GrammarFailed("no token of this model's vocabulary continues the required format")

    def _adjusted(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        s = self._sampling
        if not (s.logit_bias or self._counts):
            return logits
        row = logits.copy()
        for token, bias in s.logit_bias.items():
            row[token] += bias
        if self._counts:
            tokens = np.fromiter(self._counts, np.intp)
            counts = np.fromiter(self._counts.values(), np.float32)
            seen = row[tokens]
            seen = np.where(seen > 0, seen / s.repeat_penalty, seen * s.repeat_penalty)
            row[tokens] = seen - s.presence_penalty - s.frequency_penalty * counts
        return row

    def _drawn(self, row: NDArray[np.float32]) -> int:
        """A draw from the tokens that top-k, top-p and min-p leave."""
        s = self._sampling
        if not s.top_k and s.top_p >= 1 and s.min_p <= 0:
            return draw(row, s.temperature, self._random)
        tokens = largest(row, min(s.top_k, len(row))) if s.top_k else None
        whole = values = row if tokens is None else row[tokens]
        if s.min_p > 0:
            likely = (values >= values.max() + log(min(s.min_p, 1.0))).nonzero()[0]
            tokens, values = _narrowed(tokens, likely), values[likely]
        while True:
            place = draw(values, s.temperature, self._random)
            if s.top_p >= 1:
                break
            likelier = (values > values[place]).nonzero()[0]
            if is_in_nucleus(values[place], values[likelier], whole, s.top_p):
                break
            tokens, values = _narrowed(tokens, likelier), values[likelier]  # who is no likelier is outside too
        return place if tokens is None else int(tokens[place])


def _narrowed(tokens: NDArray[np.intp] | None, places: NDArray[np.intp]) -> NDArray[np.intp]:
    """The tokens at these places of what was a whole row, or some tokens of one, before."""
    return places if tokens is None else tokens[places]
