"""Sampling the next token from a row of logits, in numpy.

Order: logit bias, penalties, top-k, top-p, min-p, temperature, draw; each is exact over the whole vocabulary. Only
top-k and log probabilities need sorting, and only of few tokens. Nothing here can abort the process.

With a grammar, the sampled token is checked, which is cheap and nearly always enough. Only if it is refused is the rest
of the row checked and the token sampled again from what fits: overall, a draw from the renormalised rest. Only what was
just opened closes for no other reason than that its content was refused if nothing else fits.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.errors import GrammarFailed
from inference.generation import BIAS_MIN, Sampling, TokenLogprob
from inference.grammar.constraint import Constraint

# Likely tokens that are checked against a grammar before the whole vocabulary is, which takes up to tens of
# milliseconds; a token outside of these would hardly be sampled.
CANDIDATES_MAX = 256
LOGPROB_MIN = -9999.0  # stands for minus infinity, which JSON cannot express
# Groups per row: more take longer to sort, fewer let more values through.
_GROUPS_PER_VALUE, _GROUPS_MIN = 8, 1024
# Expected number of tokens with large noise in a draw. With fewer, more of the others may still win and need noise of
# their own. A row of up to four times as many gets noise for every token, which takes no longer.
_NOISY = 128


def largest(row: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Indices of the `count` largest values, largest first; among equal values the lowest index first.

    Each of the `count` groups with the largest maxima holds a value of at least the smallest of these maxima, so the
    `count` largest values are among the few that reach it. Ten times as fast as sorting the row.
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
    """An index of row [n] with probability softmax(row / temperature), by lazy Gumbel-max (Mussmann, Levy and Ermon,
    UAI 2017, arXiv 1707.03372).

    The argmax after adding Gumbel noise is such a draw. The noise of a token is the highest point of a Poisson process,
    so it is sampled in two parts: first the few points above a threshold, spread uniformly over the tokens; then, only
    for tokens that could still win, the highest point below it. One comparison passes over the row; a softmax takes
    several passes.
    """
    size = len(row)
    if size <= 4 * _NOISY:
        return int((row - temperature * np.log(random.standard_exponential(size))).argmax())
    # The threshold is log(size / _NOISY): _NOISY points are expected above it, and in practice there are always some.
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
    """Whether the tokens that are likelier than the one with this value together have less than `top_p` of the row's
    probability: then the token belongs to the smallest set with that probability, or is as likely as one in it."""
    if not len(likelier):
        return True
    peak = likelier.max()
    above = np.exp(likelier - peak).sum()
    if above < top_p * (above + np.exp(value - peak)):  # holds whatever the rest of the row is
        return True
    weights = row - peak
    return bool(above < top_p * np.exp(weights, out=weights).sum())


class Sampler:
    """Samples the tokens of one request; remembers them if penalties need it.

    With a seed, a draw depends on the seed, the token's position in the answer and the row, not on earlier draws: an
    answer that resumes elsewhere behind its `written` tokens continues as it would have continued here.
    Raises GrammarFailed if these tokens break the constraint.
    """

    def __init__(self, sampling: Sampling, constraint: Constraint | None = None, written: Sequence[int] = ()) -> None:
        self._sampling = sampling
        self._constraint = constraint
        self._penalises = bool(
            sampling.presence_penalty or sampling.frequency_penalty or sampling.repeat_penalty != 1.0
        )
        self._counts: Counter[int] = Counter()
        self._likelihoods: list[tuple[int, float]] = []  # of the sampled token, then of the most likely ones
        # Banned tokens. They are seldom drawn, and drawing again is then a draw from the others, so nearly no row needs
        # to be adjusted.
        self.never = frozenset(token for token, bias in sampling.logit_bias.items() if bias <= BIAS_MIN)
        adjusts = self._penalises or len(self.never) < len(sampling.logit_bias)
        self._adjusts_seldom = not adjusts and constraint is None and sampling.top_logprobs is None
        # Whether each draw is the most likely token of its row, unless banned, and keeps no state: then `draw` need not
        # be called.
        self.takes_most_likely = sampling.temperature <= 0 and self._adjusts_seldom
        seeded = sampling.seed is not None or sampling.deterministic
        self._repeats = seeded and sampling.temperature > 0
        self._place = len(written)  # position of the next token in the answer
        if self._penalises:
            self._counts.update(written)
        for token in written if constraint else ():
            if constraint is None or not constraint.allows(token):
                raise GrammarFailed("what is written breaks the required format")
            constraint.accept(token)

    @cached_property
    def _random(self) -> np.random.Generator:
        """Created at the first draw: that takes as long as parsing a request, and must not delay the event loop."""
        if not self._repeats:
            return np.random.default_rng(secrets.randbits(64))
        return np.random.Generator(np.random.Philox(key=self._sampling.seed or 0))

    @cached_property
    def _stretches(self) -> dict[str, Any]:
        """State of a counter-based generator: each position of the answer has its own range of the counter."""
        return dict(self._random.bit_generator.state)

    def _turn_to_place(self) -> None:
        stretch = self._stretches
        stretch["state"]["counter"] = np.array([0, self._place, 0, 0], np.uint64)
        self._random.bit_generator.state = stretch

    def draw(self, logits: NDArray[np.float32], due: int | None = None, banned: Collection[int] = ()) -> int:
        """Sample from logits [vocabulary], left unchanged -> token id: that which is `due`, if the grammar allows it;
        none that is `banned` here, unless the grammar allows no other. Raises GrammarFailed if no token fits the
        grammar."""
        if self._repeats:
            self._turn_to_place()
        self._place += 1
        row = logits if self._adjusts_seldom else self._adjusted(logits)
        token = self._pick(row) if due is None else due
        if self._adjusts_seldom and token in self.never:
            token = self._pick(self._adjusted(logits))
        if token in banned:
            row = self._adjusted(logits).copy()
            row[[*banned]] += BIAS_MIN
            token = self._pick(row)
        if self._constraint:
            if not self._constraint.allows(token):
                fitting = self._fitting(row, self._constraint, token)
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
        """The tokens that probably come next where the grammar leaves no choice of text."""
        return self._constraint.forced() if self._constraint else []

    def logprobs_of(self, pieces: Sequence[bytes]) -> tuple[TokenLogprob, ...]:
        """Log probabilities of the last token and its alternatives, with their text; empty if not requested."""
        if not self._likelihoods:
            return ()
        (token, logprob), *top = self._likelihoods
        return (TokenLogprob(pieces[token], logprob, tuple((pieces[each], number) for each, number in top)),)

    def _pick(self, row: NDArray[np.float32]) -> int:
        return int(row.argmax()) if self._sampling.temperature <= 0 else self._drawn(row)

    @staticmethod
    def _fitting(row: NDArray[np.float32], constraint: Constraint, refused: int) -> NDArray[np.integer[Any]]:
        """The tokens that fit the grammar: only likely ones if any of them does, else all that do."""
        whole = np.arange(len(row))
        for tokens in (largest(row, min(CANDIDATES_MAX, len(row))), whole):
            if len(fitting := constraint.instead(refused, tokens)):
                return fitting
        if len(fitting := whole[constraint.allowed(whole)]):
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
            tokens, values = _narrowed(tokens, likelier), values[likelier]  # tokens no likelier than it are outside too
        return place if tokens is None else int(tokens[place])


def _narrowed(tokens: NDArray[np.intp] | None, places: NDArray[np.intp]) -> NDArray[np.intp]:
    """The tokens at these indices of a row that may have been narrowed before."""
    return places if tokens is None else tokens[places]
