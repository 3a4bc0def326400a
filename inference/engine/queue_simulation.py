"""Simulates the requests ahead of a new one until it gets a slot. Pure.

While a request waits, all slots are taken, so the steps until then are nearly known: a row for each stream in every
step, and the prompts ahead of it. Unknown is how long the answers get. So a few samples are simulated, each with answer
lengths drawn from the learned distribution: the median sample is the usual wait, the last one a long wait. The draws
for one request are spread evenly over the samples and independent between requests (Latin hypercube sampling), and they
are the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import ceil
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.engine.answer_lengths import AnswerLengths
from inference.engine.step_cost import StepCost

# Samples to simulate, and lengths to draw in total. With many requests their lengths average out, so fewer samples are
# enough.
SAMPLES, LOOKUPS_MAX = 9, 256
_SPREAD = [(sample + 0.5) / SAMPLES for sample in range(SAMPLES)]
_random = Random(1)
# Per request and sample, for as many requests as there usually are; further requests reuse them from the start.
DRAWS = np.array([_random.sample(_SPREAD, SAMPLES) for _ in range(64)])


class RequestAhead(NamedTuple):
    """A request that holds a slot or waits for one. `unread`: prompt tokens that are neither cached nor part of the
    current step."""

    generated: int  # tokens
    max_tokens: int
    unread: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """The requests that are computed before a new one, or next to it. `waiting` is in the order of admission."""

    running: Sequence[RequestAhead] = ()
    waiting: Sequence[RequestAhead] = ()
    own: int = 0  # requests of the new one's tenant among both
    held: int = 0  # slots reserved for requests that are admitted before the new one, one after another


@dataclass(frozen=True, slots=True)
class Speed:
    """The duration of steps: with all slots taken, next to the prompt of the new request, and per prompt token."""

    cost: StepCost
    places: int
    streams: int  # next to the new request
    chunk: int  # prompt tokens per step
    tokens_per_step: float = 1.0  # of an answer, drafts included
    rest_s: float = 0.0  # of the current step

    def step_s(self, rows: int) -> float:
        """Including the pause until the next step."""
        return (self.cost.predict(rows) or 0.0) + self.cost.between_s

    @property
    def token_s(self) -> float:
        """What a prompt token adds to a step."""
        return max(0.0, self.step_s(self.streams + self.chunk) - self.step_s(self.streams)) / self.chunk

    def read_s(self, prompt: int, others: Sequence[int]) -> float:
        """For a prompt next to others. The shortest goes first, so each of the others delays it by no more than its
        own length; the step that completes it is filled up with the rest of theirs."""
        before = prompt + sum([min(left, prompt) for left in others])
        steps = ceil(before / self.chunk)
        last = min(self.chunk, prompt + sum(others) - (steps - 1) * self.chunk)
        return (steps - 1) * self.step_s(self.streams + self.chunk) + self.step_s(self.streams + last)


class SimulatedWait(NamedTuple):
    """Seconds until a new request gets a slot, by sample in ascending order, and from then to its first token in the
    median sample."""

    waits_s: Sequence[float]
    read_s: float

    def wait_s(self, quantile: float) -> float:
        return self.waits_s[min(len(self.waits_s) - 1, int(quantile * len(self.waits_s)))]


def simulate(prompt: int, ahead: Ahead, speed: Speed, lengths: AnswerLengths) -> SimulatedWait:
    """For a new request with `prompt` uncached tokens."""
    looks = len(ahead.running) + len(ahead.waiting)
    if looks < speed.places - ahead.held:
        others = [place.unread for place in (*ahead.running, *ahead.waiting)]
        return SimulatedWait([0.0], speed.rest_s + speed.read_s(prompt, others))
    samples = 1 if lengths.is_certain else min(SAMPLES, max(1, LOOKUPS_MAX // looks))
    generated, max_tokens, unread = np.array([*zip(*ahead.running, *ahead.waiting, strict=True)], np.int64)
    draws = DRAWS[np.arange(looks) % len(DRAWS), :samples]
    steps = _steps(lengths.left(generated, max_tokens, draws), unread, speed)
    free = speed.places - ahead.held - len(ahead.running)
    begins = np.array([_begins(each, len(ahead.running), free) for each in steps.T.tolist()], np.int64)
    turns = begins[:, -1]
    rest = np.maximum(0, unread - (turns[:, None] - begins[:, :-1]) * speed.chunk)
    read = unread.sum() - rest.sum(axis=1)
    waits_s = speed.rest_s + turns * speed.step_s(speed.places) + read * speed.token_s
    order = waits_s.argsort()
    beside = rest[order[samples // 2]]
    return SimulatedWait(waits_s[order].tolist(), speed.read_s(prompt, beside[beside > 0].tolist()))


def _steps(left: NDArray[np.int64], unread: NDArray[np.int64], speed: Speed) -> NDArray[np.int64]:
    """How many further steps each request takes part in, by sample, if so many tokens are `left` of its answer."""
    if speed.tokens_per_step > 1:
        left = np.ceil(left / speed.tokens_per_step).astype(np.int64)
    # The step that completes a prompt yields the first token, and so does the current step for a request without one.
    reads = np.where(unread > 0, -(-unread // speed.chunk) - 1, -int(speed.rest_s > 0))
    return left + reads[:, None]


def _begins(steps: Sequence[int], running: int, free: int) -> list[int]:
    """When each request gets its slot, and last the new one, in steps from the next one."""
    ends = [*steps[:running], *[0] * free]
    heapify(ends)
    return [*[0] * running, *[heapreplace(ends, ends[0] + lasts) for lasts in steps[running:]], ends[0]]
