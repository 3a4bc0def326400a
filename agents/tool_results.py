"""The results of a step's calls: awaited in the order of the calls, and read by the engine as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from agents.events import ArgumentsDelta, EventSink, ItemFinished, ItemStarted
from agents.function_tool import SERVER_SEARCH, Addition, CallShape
from agents.message import FunctionCall, FunctionCallOutput, new_id
from agents.progress import Progress
from agents.prompt import before_missing
from agents.prompt_builder import PromptBuilder
from agents.router import Candidate
from agents.step import RunningCalls, add_tool, settled, takes_long
from agents.toolbox import ToolResult, fit
from agents.tools.tool_search import loaded
from agents.turn import Turn
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
            read = await _read_by_model(progress, call, result)
            sink.write(progress.add_result(call, read, failed=result.failed))


def approved_calls(turn: Turn) -> list[FunctionCall]:
    """The calls that the request allows, and that nothing has answered. One that has run follows its request, under the
    same id."""
    if not turn.approved:
        return []
    said = (*turn.history, *turn.input)
    denied = {item.call_id for item in said if isinstance(item, FunctionCallOutput) and not item.approves}
    newest = {item.call_id: item for item in said if isinstance(item, FunctionCall) and item.runs}
    return [
        replace(call, id=new_id("mcp"), shape=CallShape("mcp", call.shape.namespace, by_server=True), joined=False)
        for id, call in newest.items()
        if id in turn.approved - denied and call.shape.form == "mcp_approval"
    ]


async def run_approved(
    calls: Sequence[FunctionCall], progress: Progress, prompts: PromptBuilder, candidate: Candidate, sink: EventSink
) -> None:
    """Run the calls that the user has approved, all at once, and write their items. The model reads their results in
    the first prompt, at most half of it."""
    tools, model = prompts.tools_of(progress.turn), candidate.model
    offered = frozenset(tool.name for server in progress.turn.servers for tool in server.tools)
    stored = progress.marks.stored if progress.marks else None
    running = RunningCalls(tools, offered, progress.context, progress.budget, stored=stored)
    fit_in = partial(fit, tokens_max=model.context_length // (2 * len(calls)))
    count = partial(model.count, salt=progress.turn.salt)
    try:
        with progress.trace.span("tools", calls=len(calls)) as span:
            for call in calls:
                running.start(call)
                index, begun = len(progress.output), replace(call, arguments="", status="in_progress")
                delta = ArgumentsDelta(index, call.id, call.arguments)
                sink.write([ItemStarted(index, begun), delta, ItemFinished(index, call)])
                progress.output.append(call)
            progress.told = len(progress.output)
            for call, pending in running.pending:
                result = await settled(pending)
                add_tool(progress.trace, span, call, result)
                progress.budget.add_call(call.name, max(0, result.end_ns - result.start_ns) / 1e9)
                read = Addition(fit_in(result.output, count=count), ())
                sink.write(progress.add_result(call, read, failed=result.failed))
    finally:
        running.cancel()


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
