"""The trace of an open-loop run: the arrival times of sessions, and the requests of their turns; and its replay, which
sends every turn when it is due, whether or not the server keeps up.

Sessions arrive as a Poisson process. A seed defines one endless stream of sessions at a rate of one per second; another
rate is the same stream with its clock scaled, so rates differ only in their load and not by chance.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from time import perf_counter

import aiohttp

from benchmarks.engine import prompts
from benchmarks.engine.open_loop.goodput import Ending, Outcome, Targets
from benchmarks.engine.prompts import Message
from benchmarks.engine.target import Refused, Target

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


CONTEXT = 2048  # holds the longest conversation that a trace can have
LEAD_S = 10.0  # the duration of a typical session, after which the load is steady
WINDOW_S_MIN, WINDOW_S_MAX = 20.0, 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How a rate is measured."""

    targets: Targets
    rounds: int
    sessions: int  # judged per round, on average
    seed: str

    def trace(self, rate: float, number: int) -> Trace:
        """The trace of a round: the same for both sides."""
        window_s = self.window_s(rate)
        return trace(f"{self.seed}/{number}", rate, lead_s=LEAD_S, window_s=window_s, tail_s=self.cut_off_s)

    def window_s(self, rate: float) -> float:
        return min(WINDOW_S_MAX, max(WINDOW_S_MIN, self.sessions / rate))

    @property
    def cut_off_s(self) -> float:
        """The duration of the longest session if all of its turns are just on time."""
        turn_s = self.targets.ttft_s + ANSWER_TOKENS.high * self.targets.tpot_s
        return TURNS_MAX * turn_s + (TURNS_MAX - 1) * THINK_S.high


@dataclass(frozen=True, slots=True)
class Texts:
    """The prompts. One seed for the system prompts, which stay the same for the lifetime of a server; one for the
    questions, which are new in every run.
    """

    systems: str
    questions: str

    def system(self, number: int) -> Message:
        return Message("system", prompts.words(f"{self.systems}/{number}", SYSTEM_TOKENS[number]))

    def question(self, session: Session, turn: int) -> Message:
        seed = f"{self.questions}/{session.number}/{turn}"
        return Message("user", prompts.words(seed, session.turns[turn].prompt_tokens))


async def replay(target: Target, trace: Trace, texts: Texts, *, cut_off_s: float) -> list[Outcome]:
    """Replay a trace. Returns the outcomes of all turns of the judged sessions. Ends with the last of them, but at most
    `cut_off_s` after the window; requests that are still running then are cancelled."""
    started_s = perf_counter()
    outcomes: list[list[Outcome]] = []
    judged, others = [], []
    for session in trace.sessions:
        told: list[Outcome] = []
        task = asyncio.create_task(_hold(target, session, texts, started_s + session.start_s, told))
        if trace.judges(session):
            judged.append(task)
            outcomes.append(told)
        else:
            others.append(task)
    try:
        if judged:
            await asyncio.wait(judged, timeout=trace.lead_s + trace.window_s + cut_off_s)
    finally:
        for task in (*judged, *others):
            task.cancel()
        ended = await asyncio.gather(*judged, *others, return_exceptions=True)
    for error in ended:  # a bug in the benchmark: errors of the server are outcomes
        if isinstance(error, Exception):
            raise error
    sessions = (session for session in trace.sessions if trace.judges(session))
    return [
        outcome
        for session, told in zip(sessions, outcomes, strict=True)
        for outcome in [*told, *[Outcome(Ending.UNASKED)] * (len(session.turns) - len(told))]
    ]


async def _hold(target: Target, session: Session, texts: Texts, due_s: float, told: list[Outcome]) -> None:
    """Run the turns of a session one after another. It ends early if a turn gets no answer."""
    said = [texts.system(session.system)]
    for number, turn in enumerate(session.turns):
        due_s += turn.think_s
        await asyncio.sleep(max(0.0, due_s - perf_counter()))
        said.append(texts.question(session, number))
        answer = await _ask(target, said, turn, due_s, told)
        if told[-1].ending is not Ending.COMPLETE:
            return
        said.append(Message("assistant", answer))
        due_s = perf_counter()


async def _ask(target: Target, said: list[Message], turn: Turn, due_s: float, told: list[Outcome]) -> str:
    """Run one turn; returns the answer. The outcome is appended to `told`, even if the turn is cancelled."""
    pieces: list[str] = []
    first_s = last_s = None
    ending = Ending.CUT_OFF
    try:
        async for piece in target.say(said, turn.answer_tokens):
            last_s = perf_counter()
            first_s = first_s or last_s
            pieces.append(piece)
        # A word is a token, and the model never ends an answer by itself. A piece may hold several.
        ending = Ending.COMPLETE if len("".join(pieces).split()) == turn.answer_tokens else Ending.FAILED
    except Refused:
        ending = Ending.REFUSED
    except (RuntimeError, aiohttp.ClientError, TimeoutError):
        ending = Ending.FAILED
    finally:
        tokens = len("".join(pieces).split())
        told.append(Outcome(ending, due_s, first_s, last_s, tokens))
    return "".join(pieces)
