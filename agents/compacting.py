"""A turn that makes its conversation short first, when that has grown beyond what the caller set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from agents.agent import Agent
from agents.compaction import compact
from agents.events import Event, ItemFinished, ItemStarted, TurnFinished, TurnStarted, Usage
from agents.message import Compaction, Item
from agents.sink import EventSink
from agents.turn import Turn
from inference.core import LanguageModel
from inference.trace import Trace

Seal: TypeAlias = Callable[[str, Sequence[Item]], str]  # a summary and the recent turns, as the caller may carry them


async def run(
    agent: Agent, model: LanguageModel, turn: Turn, trace: Trace, seal: Seal, sink: EventSink
) -> TurnFinished:
    """`Agent.run` for a turn that may be compacted. Where its conversation was made short, the first item is the
    compaction, and the usage counts it. Raises what Agent.run and compact raise.
    """
    if not await _is_due(agent, model, turn):
        return await agent.run(turn, trace, sink)
    compacted = await compact(agent, model, turn, trace, keep_last=True)
    if not compacted.summary:
        return await agent.run(turn, trace, sink)
    recent = compacted.recent
    item = Compaction(seal(compacted.summary, recent), compacted.summary, recent)
    shorter = replace(turn, history=(*compacted.before, item), input=recent)
    behind = _Behind(sink, item, compacted.usage)
    return behind.told(await agent.run(shorter, trace, behind))


@dataclass(frozen=True, slots=True)
class _Behind:
    """A sink whose events stand behind the item of the compaction."""

    sink: EventSink
    item: Compaction
    usage: Usage

    async def open(self) -> None:
        await self.sink.open()

    def write(self, event: Event) -> None:
        match event:
            case TurnStarted():
                self.sink.write(event)
                self.sink.write(ItemStarted(0, replace(self.item, status="in_progress")))
                self.sink.write(ItemFinished(0, self.item))
            case TurnFinished():
                self.sink.write(self.told(event))
            case _:
                self.sink.write(replace(event, output_index=event.output_index + 1))

    async def drain(self) -> None:
        await self.sink.drain()

    def told(self, finished: TurnFinished) -> TurnFinished:
        return replace(finished, output=(self.item, *finished.output), usage=finished.usage + self.usage)


async def _is_due(agent: Agent, model: LanguageModel, turn: Turn) -> bool:
    if turn.compacting is None:
        return False
    above = turn.compacting.above_tokens
    return await agent.count(turn) > (model.context_length * 3 // 4 if above is None else above)
