"""Those that stand before a newcomer, played through until it is its turn. Pure.

While a newcomer waits for a place, all places are taken, so what is computed until then is nearly known: a row of each
stream in every step, and the prompts of those before it. What is not known is how long the answers get. So a few
courses are played through, each with lengths of its own drawn from what was learned: the one in the middle tells the
usual wait, the last one a long one. The draws of one request are spread evenly over the courses, those of different
ones are independent (Latin hypercube sampling), and they are the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import ceil
from operator import itemgetter
from random import Random
from typing import NamedTuple

from inference.engine.lengths import Lengths
from inference.engine.step_cost import StepCost

# That are played through, and the requests that are looked at for it in all: a microsecond or two each. With many
# requests the chances of their lengths even out, and fewer courses do.
COURSES, LOOKS_MAX = 9, 512
_SPREAD = [(course + 0.5) / COURSES for course in range(COURSES)]
_random = Random(1)
# Of each request in each course, for the places of which there are usually no more; then again from the first on.
CHANCES = [_random.sample(_SPREAD, COURSES) for _ in range(64)]


class Place(NamedTuple):
    """A request that has a place, or waits for one. `unread`: tokens of its prompt that are neither cached nor part of
    the step under way."""

    said: int  # tokens of its answer
    most: int  # that it may have
    unread: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """Those that are computed before a newcomer, or beside it. Those that wait stand in the order in which they go."""

    running: Sequence[Place] = ()
    waiting: Sequence[Place] = ()
    own: int = 0  # of both, those of the newcomer's tenant
    held: int = 0  # places that go from one who is let in before it to the next


@dataclass(frozen=True, slots=True)
class Speed:
    """What steps take: with all places taken, beside a prompt of the newcomer's, and for each token of prompt."""

    cost: StepCost
    places: int
    streams: int  # beside the newcomer
    chunk: int  # tokens of prompts in a step
    tokens_per_step: float = 1.0  # of an answer, drafts included
    rest_s: float = 0.0  # of the step under way

    def step_s(self, rows: int) -> float:
        """And until the next one begins."""
        return (self.cost.predict(rows) or 0.0) + self.cost.between_s

    @property
    def token_s(self) -> float:
        """That a token of prompt adds to a step."""
        return max(0.0, self.step_s(self.streams + self.chunk) - self.step_s(self.streams)) / self.chunk

    def read_s(self, prompt: int, others: Sequence[int]) -> float:
        """Of a prompt beside those of others. The shortest goes first, so each of them delays it by no more than its
        own length; the step that ends it has what else there is to read."""
        before = prompt + sum([min(left, prompt) for left in others])
        steps = ceil(before / self.chunk)
        last = min(self.chunk, prompt + sum(others) - (steps - 1) * self.chunk)
        return (steps - 1) * self.step_s(self.streams + self.chunk) + self.step_s(self.streams + last)


class Outlook(NamedTuple):
    """Seconds until a newcomer gets its place, in each of the courses with the shortest first, and then until its first
    token in the usual one."""

    waits_s: Sequence[float]
    read_s: float

    def wait_s(self, quantile: float) -> float:
        return self.waits_s[min(len(self.waits_s) - 1, int(quantile * len(self.waits_s)))]


def play(prompt: int, ahead: Ahead, speed: Speed, lengths: Lengths) -> Outlook:
    """For a newcomer with so many tokens of prompt to read."""
    looks = len(ahead.running) + len(ahead.waiting)
    if looks < speed.places - ahead.held:
        others = [place.unread for place in (*ahead.running, *ahead.waiting)]
        return Outlook([0.0], speed.rest_s + speed.read_s(prompt, others))
    courses = 1 if lengths.is_certain else min(COURSES, max(1, LOOKS_MAX // looks))
    step_s, token_s = speed.step_s(speed.places), speed.token_s
    before = sum([place.unread for place in (*ahead.running, *ahead.waiting)])
    played = list[tuple[float, list[int]]]()
    for steps in zip(*_steps(ahead, speed, lengths, courses), strict=True):
        turn, begins = _course(ahead, steps, speed.places - ahead.held)
        rest = [left for begin, unread in begins if (left := unread - (turn - begin) * speed.chunk) > 0]
        played.append((speed.rest_s + turn * step_s + (before - sum(rest)) * token_s, rest))
    played.sort(key=itemgetter(0))
    return Outlook([wait_s for wait_s, _ in played], speed.read_s(prompt, played[courses // 2][1]))


def _steps(ahead: Ahead, speed: Speed, lengths: Lengths, courses: int) -> list[list[int]]:
    """That each request takes part in from its next one on, in each course."""
    steps = list[list[int]]()
    for number, (said, most, unread) in enumerate((*ahead.running, *ahead.waiting)):
        left = lengths.left(said, most, CHANCES[number % len(CHANCES)][:courses])
        if speed.tokens_per_step > 1:
            left = [ceil(tokens / speed.tokens_per_step) for tokens in left]
        if unread:
            reads = ceil(unread / speed.chunk) - 1  # the one that ends a prompt has the first of the tokens
        else:
            reads = -int(speed.rest_s > 0)  # a token comes with the step under way
        steps.append([reads + each for each in left])
    return steps


def _course(ahead: Ahead, steps: Sequence[int], places: int) -> tuple[int, list[tuple[int, int]]]:
    """When the newcomer has its place, and when which prompts begin, in steps from the next one on."""
    running = len(ahead.running)
    begins = [(0, place.unread) for place in ahead.running if place.unread]
    ends = [*steps[:running], *[0] * (places - running)]
    heapify(ends)
    for place, lasts in zip(ahead.waiting, steps[running:], strict=True):
        begin = ends[0]
        heapreplace(ends, begin + lasts)
        begins.append((begin, place.unread))
    return ends[0], begins
