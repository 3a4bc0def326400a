"""A turn that makes its conversation short first, when that has grown beyond what the caller set."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeAlias

from agents.agent import Agent
from agents.compaction import compact
from agents.events import Event, ItemFinished, ItemStarted, TurnFinished, TurnStarted
from agents.message import Compaction, Item
from agents.turn import Turn
from inference.sequence import LanguageModel
from inference.trace import Trace

Seal: TypeAlias = Callable[[str, Sequence[Item]], str]  # a summary and the recent turns, as the caller may carry them


async def run(agent: Agent, model: LanguageModel, turn: Turn, trace: Trace, seal: Seal) -> AsyncGenerator[Event, None]:
    """The events of the turn. Where its conversation was made short, the first item is the compaction, and the usage
    counts it. Raises before the first event only: what Agent.run and compact raise.
    """
    shorter, item, usage = turn, None, None
    if await _is_due(agent, model, turn):
        compacted = await compact(agent, model, turn, trace, keep_last=True)
        if compacted.summary:
            recent = compacted.recent
            item, usage = Compaction(seal(compacted.summary, recent), compacted.summary, recent), compacted.usage
            shorter = replace(turn, history=(*compacted.before, item), input=recent)
    async with aclosing(agent.run(shorter, trace)) as events:
        async for event in events:
            if item is None or usage is None:
                yield event
            elif isinstance(event, TurnStarted):
                yield event
                yield ItemStarted(0, replace(item, status="in_progress"))
                yield ItemFinished(0, item)
            elif isinstance(event, TurnFinished):
                yield replace(event, output=(item, *event.output), usage=event.usage + usage)
            else:
                yield replace(event, output_index=event.output_index + 1)


async def _is_due(agent: Agent, model: LanguageModel, turn: Turn) -> bool:
    if turn.compacting is None:
        return False
    above = turn.compacting.above_tokens
    return await agent.count(turn) > (model.context_length * 3 // 4 if above is None else above)
