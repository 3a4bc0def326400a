"""Replays a trace against a server: every turn is sent when it is due, whether or not the server keeps up."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter

import aiohttp

from benchmarks.engine import prompts
from benchmarks.engine.open_loop.goodput import Ending, Outcome
from benchmarks.engine.open_loop.sessions import SYSTEM_TOKENS, Session, Trace, Turn
from benchmarks.engine.prompts import Message
from benchmarks.engine.target import Refused, Target


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
