"""The trace of an open-loop run: the arrival times of sessions, and the requests of their turns. Pure.

Sessions arrive as a Poisson process. A seed defines one endless stream of sessions at a rate of one per second; another
rate is the same stream with its clock scaled, so rates differ only in their load and not by chance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

TURNS_MAX = 4
SYSTEM_TOKENS = (200, 400, 600)  # lengths of the system prompts; each session has one of them


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A lognormal distribution, clipped so that conversations fit the context and runs end in time."""

    median: float
    sigma: float
    low: float
    high: float

    def draw(self, source: random.Random) -> float:
        return min(self.high, max(self.low, source.lognormvariate(math.log(self.median), self.sigma)))


PROMPT_TOKENS = LogNormal(median=40, sigma=0.8, low=8, high=192)
ANSWER_TOKENS = LogNormal(median=48, sigma=0.6, low=8, high=128)
THINK_S = LogNormal(median=2.0, sigma=0.5, low=0.5, high=6.0)


@dataclass(frozen=True, slots=True)
class Turn:
    think_s: float  # from the end of the previous answer; 0 before the first
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Session:
    number: int
    start_s: float  # since the start of the trace
    system: int  # index into SYSTEM_TOKENS
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Sessions that start within the window are judged. Those before it warm the server up; those after it keep it
    loaded until the judged ones have ended."""

    sessions: tuple[Session, ...]
    lead_s: float
    window_s: float

    def judges(self, session: Session) -> bool:
        return self.lead_s <= session.start_s < self.lead_s + self.window_s


def trace(seed: str, rate: float, *, lead_s: float, window_s: float, tail_s: float) -> Trace:
    """The sessions that start within lead, window and tail, at `rate` sessions per second."""
    end_s = lead_s + window_s + tail_s
    sessions = takewhile(lambda session: session.start_s < end_s, _stream(seed, rate))
    return Trace(tuple(sessions), lead_s, window_s)


def _stream(seed: str, rate: float) -> Iterator[Session]:
    arrivals = random.Random(f"{seed}/arrivals")
    start, number = 0.0, 0
    while True:
        start += arrivals.expovariate(1.0)
        source = random.Random(f"{seed}/{number}")
        system = source.randrange(len(SYSTEM_TOKENS))
        turns = tuple(_turn(source, first=turn == 0) for turn in range(source.randint(1, TURNS_MAX)))
        yield Session(number, start / rate, system, turns)
        number += 1


def _turn(source: random.Random, *, first: bool) -> Turn:
    think_s = 0.0 if first else THINK_S.draw(source)
    return Turn(think_s, round(PROMPT_TOKENS.draw(source)), round(ANSWER_TOKENS.draw(source)))
