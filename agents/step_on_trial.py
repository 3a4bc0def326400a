"""A step on trial: a cheaper model begins it, and another model takes it over if what it says is not good enough. What
the first model writes is held back meanwhile, and the other one may read the prompt in advance (a hedge).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from agents.errors import InvalidTurn
from agents.events import Event, EventSink, ItemFinished, ItemStarted, TextDelta
from agents.message import FunctionCall
from agents.progress import Progress
from agents.prompt import Prefetch
from agents.router import Candidate
from agents.routing.trial import Trial, wanted
from agents.step import Step
from inference.errors import InferenceError
from inference.generation import Delta, Finish
from inference.prompt import PromptTokens
from inference.trace import now_ns

# On a model, submit the turn's next step; tokenize its prompt.
Start: TypeAlias = Callable[[Progress, Candidate], Awaitable[Step]]
Tokenize: TypeAlias = Callable[[Progress, Candidate], Awaitable[PromptTokens]]


class Flaw(Protocol):
    """The visible defect of an answer, or of its beginning; empty without one."""

    def __call__(self, said: str, *, is_whole: bool) -> str: ...


@dataclass(eq=False, kw_only=True)
class StepOnTrial(Step):
    """Its events are held back until it is kept or another model takes it over; then `decided` is set."""

    trial: Trial
    flaw: Flaw
    top_logprobs: int | None  # as many as the request asks for
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    _held: list[Event] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None
    _sink: EventSink | None = None

    async def run(self, sink: EventSink) -> None:
        self._sink = sink
        try:
            await super().run(sink)
            if self.trial.verdict is None and self.finish is Finish.STOP:  # an answer that is judged as a whole
                self._check_defects(now_ns(), is_whole=True)
            self._expire()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self.decided.set()

    @property
    def is_kept(self) -> bool:
        return self.trial.verdict is not None and self.trial.verdict.keeps

    def keep(self, reason: str) -> None:
        """Keep the step although its trial failed: no other model can take it over."""
        self.trial.keep(reason, now_ns())
        self._release()

    def _read(self, delta: Delta) -> list[Event]:
        events = self.reply.feed(delta.text, wanted(delta.logprobs, self.top_logprobs))
        if self.is_kept:
            return self._started(events)
        self._held += events
        if self.trial.verdict is None and self._judge(delta, events):
            self.decided.set()
        released = self._released()
        if self._held and self._timer is None:
            left_s = max(0, self.trial.ends_ns - now_ns()) / 1e9
            self._timer = asyncio.get_running_loop().call_later(left_s, self._expire)
        return released

    def _judge(self, delta: Delta, events: Sequence[Event]) -> bool:
        """Whether the trial is decided by this delta."""
        trial, now = self.trial, now_ns()
        for event in events:
            match event:
                case ItemStarted(item=FunctionCall()):
                    trial.called(now)
                case TextDelta():
                    trial.said(now)
                case ItemFinished(item=FunctionCall(status="failed")):
                    trial.broke(now)
        self._check_defects(now, is_whole=False)
        return (trial.verdict or trial.feed(delta.text, delta.tokens, delta.logprobs, now)) is not None

    def _check_defects(self, now: int, *, is_whole: bool) -> None:
        if self.trial.decision.doubt is None or self.trial.verdict is not None:
            return
        said = "".join(event.text for event in self._held if isinstance(event, TextDelta))
        if reason := self.flaw(said, is_whole=is_whole):
            self.trial.broke(now, reason)

    def _expire(self) -> None:
        """The trial has no more time, or the generation has ended."""
        if self.trial.verdict is None:
            self.trial.over(now_ns())
            self.decided.set()
            self._release()

    def _released(self) -> list[Event]:
        """The events that were held back, if they may be sent."""
        if not (self.is_kept and self._held):
            return []
        held, self._held = self._held, []
        return self._started(held)

    def _release(self) -> None:
        if self._sink is not None and (events := self._released()):
            self._sink.write(events)


async def run_on_trial(
    progress: Progress, step: StepOnTrial, tokenize: Tokenize, start: Start, sink: EventSink
) -> None:
    """Run the turn's step to its end: by its own model if it is kept, otherwise by the one that takes it over, which
    then is the turn's step."""
    decision = step.trial.decision
    other = progress.models[decision.fallback]
    running = asyncio.create_task(step.run(sink), name="trial")
    try:
        with Prefetch(other.model, progress.trace) as hedge:
            if decision.hedge and other.is_loaded:
                await _hedge(progress, other, tokenize, hedge)
            await step.decided.wait()
            takes_over = not step.is_kept and await _take_over(progress, step, other, start)
        progress.add_hedge(hedge.spent, other, took_over=takes_over)
        _record(progress, step, takes_over)
        await (progress.step.run(sink) if takes_over else running)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _hedge(progress: Progress, other: Candidate, tokenize: Tokenize, hedge: Prefetch) -> None:
    """Prefill the prompt unchanged on the other model. It is not shortened to fit there: the answer would lack what the
    first model had."""
    with suppress(InferenceError):
        prompt = await tokenize(progress, other)
        if len(prompt) + other.answer_tokens <= other.model.context_length:
            hedge.read(prompt, salt=progress.turn.salt, exact=progress.turn.sampling.deterministic)


async def _take_over(progress: Progress, step: StepOnTrial, other: Candidate, start: Start) -> bool:
    """Whether the other model takes the step over. If it cannot, the first one continues."""
    taken = None
    try:
        taken = await start(progress, other)
        await taken.generation.admitted()
    except BaseException as error:
        if taken is not None:
            taken.generation.cancel()
        if not isinstance(error, InferenceError | InvalidTurn):
            raise
        step.keep(f"no {other.name}: {type(error).__name__}")
        return False
    step.cancel()
    progress.give_up(step)
    progress.step, progress.ahead = taken, Prefetch(other.model, progress.trace)
    progress.mark()
    return True


def _record(progress: Progress, step: StepOnTrial, took_over: bool) -> None:
    span = next((span for span in reversed(progress.trace.spans) if span.name == "route"), None)
    if span is not None:
        span.attributes |= {**step.trial.attributes, "model": progress.step.candidate.name, "took_over": took_over}
