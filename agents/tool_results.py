"""The results of a step's calls: awaited in the order of the calls, and read by the engine as they come."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial

from agents.call_shape import SERVER_SEARCH
from agents.events import EventSink, ItemFinished, ItemStarted
from agents.function_tool import Addition
from agents.message import FunctionCall
from agents.prefetch import before_missing
from agents.progress import Progress
from agents.prompt_builder import PromptBuilder
from agents.step import add_tool, settled, takes_long
from agents.toolbox import ToolResult, fit
from agents.tools.tool_search import loaded
from inference.errors import TextTooLong


async def take_results(progress: Progress, prompts: PromptBuilder, sink: EventSink) -> None:
    """Wait for the results of the step's calls and write them, in the order of the calls."""
    step = progress.step
    calls = step.calls.pending
    if not calls:
        return
    with progress.trace.span("tools", calls=len(calls)) as span:
        for number, (call, pending) in enumerate(calls):
            if number < step.calls.answered:
                continue
            if number and step.needs_another_step and await takes_long(pending):
                await _read_ahead(progress, prompts, missing=len(calls) - number)
            result = await settled(pending)
            add_tool(progress.trace, span, call, result)
            progress.budget.add_call(call.name, max(0, result.end_ns - result.start_ns) / 1e9)
            index, item = progress.add_result(call, await _read_by_model(progress, call, result))
            started = replace(item, output="", tools=(), status="in_progress")
            sink.write([ItemStarted(index, started), ItemFinished(index, item)])


async def _read_ahead(progress: Progress, prompts: PromptBuilder, missing: int) -> None:
    """Prefill the results that are available, while tools whose results follow them still run."""
    turn, candidate = progress.turn, progress.step.candidate
    segments = await prompts.render(turn, candidate, progress.output, progress.passages)
    with suppress(TextTooLong):
        prefix = await prompts.encode(before_missing(segments, missing), candidate, turn.salt)
        progress.ahead.read(prefix, salt=turn.salt, exact=turn.sampling.deterministic)


async def _read_by_model(progress: Progress, call: FunctionCall, result: ToolResult) -> Addition:
    """What the model reads of a result, cut to its share of the free context, and the tools that it adds."""
    step, model = progress.step, progress.step.candidate.model
    used = step.generation.prompt_tokens + len(step.ids) + step.candidate.answer_tokens
    share = (model.context_length - used) // len(step.calls.pending)
    count = partial(model.count, salt=progress.turn.salt)
    if call.shape == SERVER_SEARCH and not result.failed:
        functions = progress.turn.functions
        return await asyncio.to_thread(loaded, result.output, functions, lambda text: count(text) <= share)
    return Addition(fit(result.output, share, count), ())
