"""Compaction of a long conversation: the model summarises the old turns, the recent ones are kept verbatim.

A history that does not fit the context at once is summarised in parts, each together with the summary of the parts
before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from agents.agent import Agent
from agents.errors import STOPPED, HistoryTooLong, Interrupted, InvalidTurn
from agents.events import (
    Event,
    EventList,
    EventSink,
    ItemFinished,
    ItemStarted,
    Queued,
    TurnFinished,
    TurnStarted,
    Usage,
)
from agents.message import Compaction, FileSearchCall, FunctionCall, Item, Message, answered_calls
from agents.prompt import instructs, size_of, turns_of
from agents.turn import Turn
from inference.errors import InferenceError, TextTooLong
from inference.generation import Sampling
from inference.language_model import LanguageModel
from inference.trace import Trace

SUM_UP = "Summarize our conversation so far in a few sentences. Keep names, numbers, decisions and open questions."
_ASK = Message("user", SUM_UP)
SUMMARY_TOKENS = 512  # about a page
PARTS_MAX = 16  # each is a generation; more of them take longer than a user waits
# Divisors of the context length: for what is kept verbatim, and for what is summarised at once. The rest is for
# instructions, the summary so far and the next one.
RECENT_SHARE, PART_SHARE = 8, 2

Seal: TypeAlias = Callable[[str, Sequence[Item]], str]  # a summary and the recent turns, encrypted for the caller


@dataclass(frozen=True, slots=True)
class Compacted:
    """`before` are the system messages, `recent` the newest turns, both unchanged."""

    before: tuple[Item, ...]
    summary: str
    recent: tuple[Item, ...]
    usage: Usage


async def compact(
    agent: Agent, model: LanguageModel, turn: Turn, trace: Trace, *, keep_last: bool = False
) -> Compacted:
    """Summarise the history and the input of a turn, with `keep_last` all but its newest question. The summary is empty
    when nothing is old. The tools and the search of the turn are not used.

    Raises InvalidTurn for an empty conversation, HistoryTooLong, and what Agent.run raises.
    """
    context = model.context_length
    said = [item for item in (*turn.history, *turn.input) if not isinstance(item, FileSearchCall)]
    if not said:
        raise InvalidTurn("There is nothing to compact: the input is empty.")
    before = tuple(item for item in said if instructs(item))
    turns = turns_of([item for item in said if not instructs(item)])
    old, recent = await asyncio.to_thread(_split, turns, context // RECENT_SHARE, model.count, keep_last)
    asking = replace(
        turn,
        functions=(),
        server_tools=(),
        tool_searches=(),
        file_search=None,
        tool_choice="none",
        answer_format=None,
        compacting=None,
        steering=None,
        sampling=Sampling(max_tokens=min(SUMMARY_TOKENS, context // RECENT_SHARE), temperature=0.0),
    )
    summary, usage = "", Usage()
    for _ in range(PARTS_MAX):
        if not old:
            return Compacted(before, summary, tuple(recent), usage)
        part, old = await asyncio.to_thread(_part, old, context // PART_SHARE, model.count)
        known = (Compaction("", summary),) if summary else ()
        step = replace(asking, history=(*before, *known, *part), input=(_ASK,))
        finished = await agent.run(step, trace, EventList())
        if finished.error_message == STOPPED:
            raise Interrupted
        if finished.status not in ("completed", "incomplete"):
            raise InferenceError("The model could not summarise the conversation.")
        summary = "\n".join(item.text for item in finished.output if isinstance(item, Message))
        usage += finished.usage
    raise HistoryTooLong(f"The conversation is too long to summarise (more than {PARTS_MAX} parts). Start a new one.")


async def run_compacted(
    agent: Agent, model: LanguageModel, turn: Turn, trace: Trace, seal: Seal, sink: EventSink
) -> TurnFinished:
    """`Agent.run` for a turn that may be compacted. If its conversation is compacted, the first item is the compaction,
    and the usage includes it. Raises what Agent.run and compact raise.
    """
    if not await _is_due(agent, model, turn):
        return await agent.run(turn, trace, sink)
    alone = turn.compacting is not None and turn.compacting.alone
    compacted = await compact(agent, model, turn, trace, keep_last=not alone)
    if not compacted.summary and not alone:
        return await agent.run(turn, trace, sink)
    recent = compacted.recent
    item = Compaction(seal(compacted.summary, recent), compacted.summary, recent)
    # Without an answer, the shorter prompt is read for the request that goes on from it.
    shorter = replace(turn, history=(*compacted.before, item), input=recent, only_reads=alone)
    shifted = _WithCompaction(sink, item, compacted.usage)
    return shifted.counted(await agent.run(shorter, trace, shifted))


@dataclass(frozen=True, slots=True)
class _WithCompaction:
    """A sink that puts the item of the compaction before all other items."""

    sink: EventSink
    item: Compaction
    usage: Usage

    async def open(self) -> None:
        await self.sink.open()

    def write(self, events: Sequence[Event]) -> None:
        self.sink.write([shifted for event in events for shifted in self._shifted(event)])

    def _shifted(self, event: Event) -> list[Event]:
        match event:
            case TurnStarted():
                started = ItemStarted(0, replace(self.item, status="in_progress"))
                return [event, started, ItemFinished(0, self.item)]
            case TurnFinished():
                return [self.counted(event)]
            case Queued():
                return [event]
            case _:
                return [replace(event, output_index=event.output_index + 1)]

    async def drain(self) -> None:
        await self.sink.drain()

    def counted(self, finished: TurnFinished) -> TurnFinished:
        return replace(finished, output=(self.item, *finished.output), usage=finished.usage + self.usage)


async def _is_due(agent: Agent, model: LanguageModel, turn: Turn) -> bool:
    if turn.compacting is None or turn.compacting.alone:
        return turn.compacting is not None
    above = turn.compacting.above_tokens
    try:
        return await agent.count(turn) > (model.context_length * 3 // 4 if above is None else above)
    except TextTooLong:
        return True


def _split(
    turns: list[list[Item]], tokens_max: int, count: Callable[[str], int], keep_last: bool
) -> tuple[list[list[Item]], list[Item]]:
    """The turns to summarise, and the items of the newest ones that have at most `tokens_max` tokens.

    The first turn is always summarised, unless it is also the last one and `keep_last` is set or one of its calls still
    waits for an output.
    """
    kept, used = 0, 0
    for turn in reversed(turns[1:]):
        used += size_of(turn, count)
        if used > tokens_max:
            break
        kept += 1
    if turns and not kept and (keep_last or _waits(turns[-1])):
        kept = 1
    start = len(turns) - kept
    return turns[:start], [item for turn in turns[start:] for item in turn]


def _waits(items: Sequence[Item]) -> bool:
    answered = answered_calls(items)
    return any(isinstance(item, FunctionCall) and item.call_id not in answered for item in items)


def _part(turns: list[list[Item]], tokens_max: int, count: Callable[[str], int]) -> tuple[list[Item], list[list[Item]]]:
    """The items of the oldest turns of at most `tokens_max` tokens, at least of one turn, and the rest of the turns."""
    taken, used = 0, 0
    while taken < len(turns) and (not taken or used + size_of(turns[taken], count) <= tokens_max):
        used += size_of(turns[taken], count)
        taken += 1
    return [item for turn in turns[:taken] for item in turn], turns[taken:]
