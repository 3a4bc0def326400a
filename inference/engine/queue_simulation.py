"""Simulates the requests ahead of a new one until it gets a slot. Pure.

While a request waits, all slots are taken, so the steps until it gets one are nearly known: one row per stream in every
step, plus the prompts ahead of it. Only the answer lengths are unknown. The simulation therefore runs a few samples,
each with answer lengths drawn from the learned distribution: the middle sample gives the median wait, the last one the
tail. The draws for a request are stratified over the samples and independent between requests (Latin hypercube
sampling). They are the same in every simulation, so equal queues get equal forecasts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import ceil
from random import Random
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.engine.step import StepCost
from inference.frozen import dataclass

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
    """The distribution of answer lengths, learned from recent answers with the Kaplan-Meier estimator (1958).

    An answer that reached its token limit is censored: it only shows that its length would have been at least that. To
    count it as complete would make answers look shorter than they are.

    About lengths beyond the longest recent answer the estimator says nothing. There a Pareto tail with exponent 1 is
    assumed: of the answers that got that far, half get twice as far. To expect all of them at their limit instead would
    mean thousands of tokens for each request without a limit of its own, after a single short answer.

    Lengths are in tokens. The engine's thread adds answers while the event loop reads: the curve is replaced as a
    whole."""

    def __init__(self) -> None:
        self._newest: deque[tuple[int, bool]] = deque(maxlen=NEWEST)
        self._curve = _Curve.of([], [], 1)
        self.mean = 0.0

    def __len__(self) -> int:
        """Recent answers in the estimate."""
        return len(self._newest)

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


# Number of samples, and of lengths drawn in total. The lengths of many requests average out, so fewer samples suffice.
SAMPLES, LOOKUPS_MAX = 9, 256
_SPREAD = [(sample + 0.5) / SAMPLES for sample in range(SAMPLES)]
_random = Random(1)
# Quantiles by request and sample, shape (64, SAMPLES). More requests than that reuse them from the start.
DRAWS = np.array([_random.sample(_SPREAD, SAMPLES) for _ in range(64)])


class RequestAhead(NamedTuple):
    """A request that holds a slot or waits for one. `unread`: prompt tokens that are neither cached nor prefilled by
    the current step."""

    generated: int  # tokens
    max_tokens: int
    unread: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """The requests that are computed before a new one, or beside it. `waiting` is in order of admission."""

    running: Sequence[RequestAhead] = ()
    waiting: Sequence[RequestAhead] = ()
    own: int = 0  # how many of both belong to the new request's tenant
    held: int = 0  # slots that pass from one starved request to the next, so the new request cannot get them


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast the engine works through its queue."""

    cost: StepCost
    places: int  # requests that run at once
    streams: int  # in decode beside the new request's prefill
    chunk: int  # prompt tokens per step
    tokens_per_step: float = 1.0  # of an answer, accepted drafts included
    rest_s: float = 0.0  # until the current step ends

    def step_s(self, rows: int) -> float:
        """Seconds of a step of that many rows, including the gap before the next one."""
        return (self.cost.predict(rows) or 0.0) + self.cost.between_s

    @property
    def token_s(self) -> float:
        """Seconds that each prompt token adds to a step."""
        return max(0.0, self.step_s(self.streams + self.chunk) - self.step_s(self.streams)) / self.chunk

    def read_s(self, prompt: int, others: Sequence[int]) -> float:
        """Seconds to prefill `prompt` tokens beside other prompts of these lengths. The shortest goes first, so each of
        the others delays it by at most its own length; tokens of the others fill up the step that completes it."""
        before = prompt + sum([min(left, prompt) for left in others])
        steps = ceil(before / self.chunk)
        last = min(self.chunk, prompt + sum(others) - (steps - 1) * self.chunk)
        return (steps - 1) * self.step_s(self.streams + self.chunk) + self.step_s(self.streams + last)


class SimulatedWait(NamedTuple):
    """The simulated TTFT of a new request."""

    waits_s: Sequence[float]  # until it gets a slot; one per sample, in ascending order
    read_s: float  # from then to its first token, in the median sample

    def wait_s(self, quantile: float) -> float:
        return self.waits_s[min(len(self.waits_s) - 1, int(quantile * len(self.waits_s)))]


def simulate(prompt: int, ahead: Ahead, speed: Speed, lengths: AnswerLengths) -> SimulatedWait:
    """The wait of a new request with `prompt` uncached tokens behind the requests ahead. The work is bounded: about
    LOOKUPS_MAX draws, but at least one per request."""
    requests = len(ahead.running) + len(ahead.waiting)
    if requests < speed.places - ahead.held:
        others = [each.unread for each in (*ahead.running, *ahead.waiting)]
        return SimulatedWait([0.0], speed.rest_s + speed.read_s(prompt, others))
    generated, max_tokens, unread = np.array([*zip(*ahead.running, *ahead.waiting, strict=True)], np.int64)
    samples = min(SAMPLES, max(1, LOOKUPS_MAX // requests))
    draws = DRAWS[np.arange(requests) % len(DRAWS), :samples]
    steps = _steps(lengths.left(generated, max_tokens, draws), unread, speed)
    free = speed.places - ahead.held - len(ahead.running)
    starts = np.array([_starts(each, len(ahead.running), free) for each in steps.T.tolist()], np.int64)
    admitted = starts[:, -1]
    rest = np.maximum(0, unread - (admitted[:, None] - starts[:, :-1]) * speed.chunk)
    read = unread.sum() - rest.sum(axis=1)
    waits_s = speed.rest_s + admitted * speed.step_s(speed.places) + read * speed.token_s
    order = waits_s.argsort()
    beside = rest[order[samples // 2]]
    return SimulatedWait(waits_s[order].tolist(), speed.read_s(prompt, beside[beside > 0].tolist()))


def _steps(left: NDArray[np.int64], unread: NDArray[np.int64], speed: Speed) -> NDArray[np.int64]:
    """Further steps of each request, by sample: shape (requests, samples). `left`: tokens left of its answer, in the
    same shape; `unread` has shape (requests,)."""
    if speed.tokens_per_step > 1:
        left = np.ceil(left / speed.tokens_per_step).astype(np.int64)
    # The step that completes a prompt also yields a token; one without prompt left gets one from the current step.
    prefills = np.where(unread > 0, -(-unread // speed.chunk) - 1, -int(speed.rest_s > 0))
    return left + prefills[:, None]


def _starts(steps: Sequence[int], running: int, free: int) -> list[int]:
    """When each request gets its slot, and last the new one: in steps, where 0 is the next one."""
    ends = [*steps[:running], *[0] * free]
    heapify(ends)
    return [*[0] * running, *[heapreplace(ends, ends[0] + lasts) for lasts in steps[running:]], ends[0]]
