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
from operator import itemgetter
from random import Random
from typing import NamedTuple

from inference.engine.answer_lengths import AnswerLengths
from inference.engine.step_cost import StepCost

# Samples to simulate, and lengths to draw in total, a microsecond or two each. With many requests their lengths average
# out, so fewer samples are enough.
SAMPLES, LOOKUPS_MAX = 9, 512
_SPREAD = [(sample + 0.5) / SAMPLES for sample in range(SAMPLES)]
_random = Random(1)
# Per request and sample, for as many requests as there usually are; further requests reuse them from the start.
DRAWS = [_random.sample(_SPREAD, SAMPLES) for _ in range(64)]


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
    step_s, token_s = speed.step_s(speed.places), speed.token_s
    before = sum([place.unread for place in (*ahead.running, *ahead.waiting)])
    played = list[tuple[float, list[int]]]()
    for steps in zip(*_steps(ahead, speed, lengths, samples), strict=True):
        turn, begins = _sample(ahead, steps, speed.places - ahead.held)
        rest = [left for begin, unread in begins if (left := unread - (turn - begin) * speed.chunk) > 0]
        played.append((speed.rest_s + turn * step_s + (before - sum(rest)) * token_s, rest))
    played.sort(key=itemgetter(0))
    return SimulatedWait([wait_s for wait_s, _ in played], speed.read_s(prompt, played[samples // 2][1]))


def _steps(ahead: Ahead, speed: Speed, lengths: AnswerLengths, samples: int) -> list[list[int]]:
    """How many further steps each request takes part in, by sample."""
    steps = list[list[int]]()
    for number, (generated, max_tokens, unread) in enumerate((*ahead.running, *ahead.waiting)):
        left = lengths.left(generated, max_tokens, DRAWS[number % len(DRAWS)][:samples])
        if speed.tokens_per_step > 1:
            left = [ceil(tokens / speed.tokens_per_step) for tokens in left]
        if unread:
            reads = ceil(unread / speed.chunk) - 1  # the step that completes a prompt yields the first token
        else:
            reads = -int(speed.rest_s > 0)  # the current step yields a token
        steps.append([reads + each for each in left])
    return steps


def _sample(ahead: Ahead, steps: Sequence[int], places: int) -> tuple[int, list[tuple[int, int]]]:
    """When the new request gets a slot, and when each prompt begins, in steps from the next one."""
    running = len(ahead.running)
    begins = [(0, place.unread) for place in ahead.running if place.unread]
    ends = [*steps[:running], *[0] * (places - running)]
    heapify(ends)
    for place, lasts in zip(ahead.waiting, steps[running:], strict=True):
        begin = ends[0]
        heapreplace(ends, begin + lasts)
        begins.append((begin, place.unread))
    return ends[0], begins
