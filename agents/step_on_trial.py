"""A step on trial: a cheaper model begins it, and another model takes it over if what it says is not good enough.

What the first model writes is held back meanwhile, and the other one may read the prompt in advance (a hedge).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from agents.errors import InvalidTurn
from agents.events import EventSink
from agents.model_registry import Candidate
from agents.prefetch import Prefetch
from agents.progress import Progress
from agents.prompt_builder import PromptBuilder
from agents.step import Step
from agents.step_starter import StepStarter
from inference.errors import InferenceError


async def run_on_trial(
    progress: Progress, step: Step, prompts: PromptBuilder, starter: StepStarter, sink: EventSink
) -> None:
    """Run the turn's step to its end: by its own model if it is kept, otherwise by the one that takes it over, which
    then is the turn's step."""
    assert step.trial is not None
    decision = step.trial.decision
    other = progress.models[decision.fallback]
    running = asyncio.create_task(step.run(sink), name="trial")
    try:
        with Prefetch(other.model, progress.trace) as hedge:
            if decision.hedge and other.is_loaded:
                await _hedge(progress, other, prompts, hedge)
            await step.decided.wait()
            takes_over = not step.is_kept and await _take_over(progress, step, other, starter, sink)
        progress.add_hedge(hedge.spent, other, took_over=takes_over)
        _record(progress, step, takes_over)
        await (progress.step.run(sink) if takes_over else running)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _hedge(progress: Progress, other: Candidate, prompts: PromptBuilder, hedge: Prefetch) -> None:
    """Prefill the prompt unchanged on the other model. It is not shortened to fit there: the answer would lack what the
    first model had."""
    with suppress(InferenceError):
        prompt = await prompts.encode(await prompts.segments(progress, other), other, progress.turn.salt)
        if len(prompt) + other.answer_tokens <= other.model.context_length:
            hedge.read(prompt, salt=progress.turn.salt, exact=progress.turn.sampling.deterministic)


async def _take_over(progress: Progress, step: Step, other: Candidate, starter: StepStarter, sink: EventSink) -> bool:
    """Whether the other model takes the step over. If it cannot, the first one continues."""
    taken = None
    try:
        taken = await starter.start(progress, other)
        await taken.generation.admitted()
    except BaseException as error:
        if taken is not None:
            taken.generation.cancel()
        if not isinstance(error, InferenceError | InvalidTurn):
            raise
        step.keep(f"no {other.name}: {type(error).__name__}", sink)
        return False
    step.cancel()
    progress.give_up(step)
    progress.step, progress.ahead = taken, Prefetch(other.model, progress.trace)
    progress.mark()
    return True


def _record(progress: Progress, step: Step, took_over: bool) -> None:
    span = next((span for span in reversed(progress.trace.spans) if span.name == "route"), None)
    if span is not None and step.trial is not None:
        span.attributes |= {**step.trial.attributes, "model": progress.step.candidate.name, "took_over": took_over}
