"""Choosing the next token from a row of logits, in numpy.

Order: logit bias, penalties, top-k, top-p, min-p, temperature, draw. Cheaper than llama.cpp's chain on large
vocabularies because the candidates are cut first, and nothing in it can abort the process.

With a grammar the drawn token is checked, which is cheap and mostly settles it. Only a refused one has the rest of the
row checked too, and is drawn anew from what is left: together that is a draw from the renormalised rest.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inference.constraint import Constraint
from inference.errors import GrammarFailed
from inference.sequence import Sampling, TokenLogprob

# Without a top-k of the request, one of this many candidates is drawn. Sorting a full vocabulary costs milliseconds a
# token; what lies beyond the 256 most likely tokens is noise.
CANDIDATES_MAX = 256
LOGPROB_MIN = -9999.0  # stands for impossible, which JSON has no number for
# Groups of a row: more take longer to sort, fewer let more values through.
_GROUPS_PER_VALUE, _GROUPS_MIN = 8, 1024


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
    """The log probability of a token, then the `count` likeliest tokens with theirs."""
    shifted = row.astype(np.float64) - row.max()
    logprobs = np.maximum(shifted - np.log(np.exp(shifted).sum()), LOGPROB_MIN)
    top = largest(row, min(count, len(row))) if count else ()
    return [(int(each), float(logprobs[each])) for each in (token, *top)]


class Sampler:
    """Draws the tokens of one request; remembers what it drew, for the penalties."""

    def __init__(self, sampling: Sampling, constraint: Constraint | None = None) -> None:
        self._sampling = sampling
        self._constraint = constraint
        unseeded = 0 if sampling.deterministic else secrets.randbits(64)
        self._random = np.random.default_rng(sampling.seed if sampling.seed is not None else unseeded)
        self._counts: Counter[int] = Counter()
        self._likelihoods: list[tuple[int, float]] = []  # of the drawn token, then of the likeliest ones

    def draw(self, logits: NDArray[np.float32]) -> int:
        """logits [vocabulary], left unchanged -> token id. Raises GrammarFailed when no token fits the grammar."""
        row = self._adjusted(logits)
        token = self._pick(row)
        if self._constraint:
            if not self._constraint.allows(token):
                token = self._pick(self._masked(row, self._constraint))
            self._constraint.accept(token)
        self._counts[token] += 1
        if self._sampling.top_logprobs is not None:
            self._likelihoods = likelihoods(row, token, self._sampling.top_logprobs)
        return token

    def told(self, pieces: Sequence[bytes]) -> tuple[TokenLogprob, ...]:
        """How likely the last token was, with the text of the tokens; empty where nobody asked."""
        spelled = [(pieces[token], logprob) for token, logprob in self._likelihoods]
        return tuple(TokenLogprob(*spelled[0], tuple(spelled[1:])) for _ in spelled[:1])

    def _pick(self, row: NDArray[np.float32]) -> int:
        return int(row.argmax()) if self._sampling.temperature <= 0 else self._drawn(row)

    @staticmethod
    def _masked(row: NDArray[np.float32], constraint: Constraint) -> NDArray[np.float32]:
        """The row with only the tokens that fit: the likely ones if any of them does, else all that do.

        A whole vocabulary takes up to tens of milliseconds to check, and who is not likely would hardly be drawn.
        """
        for tokens in (largest(row, min(CANDIDATES_MAX, len(row))), np.arange(len(row))):
            fitting = tokens[constraint.allowed(tokens)]
            if len(fitting):
                masked = np.full_like(row, -np.inf)
                masked[fitting] = row[fitting]
                return masked
        raise GrammarFailed("no token of this model's vocabulary goes on with the required format")

    def _adjusted(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        s = self._sampling
        penalised = self._counts and (s.presence_penalty or s.frequency_penalty or s.repeat_penalty != 1.0)
        if not (s.logit_bias or penalised):
            return logits
        row = logits.copy()
        for token, bias in s.logit_bias.items():
            row[token] += bias
        if penalised:
            tokens = np.fromiter(self._counts, np.intp)
            counts = np.fromiter(self._counts.values(), np.float32)
            seen = row[tokens]
            seen = np.where(seen > 0, seen / s.repeat_penalty, seen * s.repeat_penalty)
            row[tokens] = seen - s.presence_penalty - s.frequency_penalty * counts
        return row

    def _drawn(self, row: NDArray[np.float32]) -> int:
        s = self._sampling
        count = CANDIDATES_MAX if s.top_k is None else s.top_k or len(row)
        tokens = largest(row, min(count, len(row)))
        values = row[tokens].astype(np.float64)
        values -= values[0]
        p = np.exp(values)
        p /= p.sum()
        keep = p >= s.min_p * p[0]
        keep &= np.cumsum(p) - p < s.top_p  # the token that crosses top_p still counts
        keep[0] = True
        weights = np.exp(values[keep] / s.temperature)
        total = np.cumsum(weights)
        return int(tokens[keep][np.searchsorted(total, self._random.random() * total[-1], side="right")])
