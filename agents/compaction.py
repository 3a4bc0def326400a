"""A long conversation made short: the model sums up what is old, what is recent stays as it was said.

What does not fit the context at once is summed up in parts, each together with the summary of the parts before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agents.agent import Agent
from agents.errors import HistoryTooLong, InvalidTurn
from agents.events import TurnFinished, Usage
from agents.message import Compaction, FileSearchCall, FunctionCall, FunctionCallOutput, Item, Message
from agents.sink import EventList
from agents.truncation import size_of, turns_of
from agents.turn import Turn
from inference.core import LanguageModel, Sampling
from inference.errors import InferenceError
from inference.trace import Trace

SUM_UP = "Summarize our conversation so far in a few sentences. Keep names, numbers, decisions and open questions."
SUMMARY_TOKENS = 512  # a page is enough to go on from
PARTS_MAX = 16  # each is a generation; a history of more is longer than people have patience
# Shares of the context: what stays word for word, and what is summed up at once. The rest holds instructions, the
# summary so far and the next one.
RECENT_SHARE, PART_SHARE = 8, 2


@dataclass(frozen=True, slots=True)
class Compacted:
    """`before` are the system messages, `recent` the newest turns, both as they were said."""

    before: tuple[Item, ...]
    summary: str
    recent: tuple[Item, ...]
    usage: Usage


def since_compaction(items: Sequence[Item]) -> tuple[Item, ...]:
    """What of a conversation still counts: the newest summary with its recent turns and what follows it, and the system
    messages before it."""
    at = max((i for i, item in enumerate(items) if isinstance(item, Compaction)), default=-1)
    summary = items[at] if at >= 0 else None
    if not isinstance(summary, Compaction):
        return tuple(items)
    before = (item for item in items[:at] if _instructs(item))
    return (*before, summary, *summary.recent, *items[at + 1 :])


async def compact(
    agent: Agent, model: LanguageModel, turn: Turn, trace: Trace, *, keep_last: bool = False
) -> Compacted:
    """Sum up the history and the input of a turn, with `keep_last` all but its newest question. The summary is empty
    when nothing is old. What the turn may call or search does not count here.

    Raises InvalidTurn when there is nothing, HistoryTooLong, and what Agent.run raises.
    """
    context = model.context_length
    said = [item for item in (*turn.history, *turn.input) if not isinstance(item, FileSearchCall)]
    if not said:
        raise InvalidTurn("There is nothing to compact: the input is empty.")
    before = tuple(item for item in said if _instructs(item))
    turns = turns_of([item for item in said if not _instructs(item)])
    old, recent = _split(turns, context // RECENT_SHARE, model.count, keep_last)
    asking = replace(
        turn,
        functions=(),
        server_tools=(),
        file_search=None,
        tool_choice="auto",
        answer_format=None,
        compacting=None,
        sampling=Sampling(max_tokens=min(SUMMARY_TOKENS, context // RECENT_SHARE), temperature=0.0),
    )
    summary, usage = "", Usage()
    for _ in range(PARTS_MAX):
        if not old:
            return Compacted(before, summary, tuple(recent), usage)
        part, old = _part(old, context // PART_SHARE, model.count)
        known = (Compaction("", summary),) if summary else ()
        finished = await _answer(agent, replace(asking, history=(*before, *known, *part), input=(_ASK,)), trace)
        summary, usage = _text(finished.output), usage + finished.usage
    raise HistoryTooLong(f"The conversation takes more than {PARTS_MAX} parts to sum up. Start anew.")


_ASK = Message("user", SUM_UP)


async def _answer(agent: Agent, turn: Turn, trace: Trace) -> TurnFinished:
    finished = await agent.run(turn, trace, EventList())
    if finished.status not in ("completed", "incomplete"):
        raise InferenceError("The model could not sum up the conversation.")
    return finished


def _instructs(item: Item) -> bool:
    return isinstance(item, Message) and item.role in ("system", "developer")


def _text(items: Sequence[Item]) -> str:
    return "\n".join(item.text for item in items if isinstance(item, Message))


def _split(
    turns: list[list[Item]], room: int, count: Callable[[str], int], keep_last: bool
) -> tuple[list[list[Item]], list[Item]]:
    """The turns to sum up, and the items of the newest ones that fit the room.

    The first turn is always summed up, except that the last one can be told to stay, and so do calls which still wait
    for their outputs.
    """
    kept, used = 0, 0
    for turn in reversed(turns[1:]):
        used += size_of(turn, count)
        if used > room:
            break
        kept += 1
    if turns and not kept and (keep_last or _waits(turns[-1])):
        kept = 1
    start = len(turns) - kept
    return turns[:start], [item for turn in turns[start:] for item in turn]


def _waits(items: Sequence[Item]) -> bool:
    answered = {item.call_id for item in items if isinstance(item, FunctionCallOutput)}
    return any(isinstance(item, FunctionCall) and item.call_id not in answered for item in items)


def _part(turns: list[list[Item]], room: int, count: Callable[[str], int]) -> tuple[list[Item], list[list[Item]]]:
    """The items of the oldest turns that fit the room, at least of one, and the turns that are left."""
    taken, used = 0, 0
    while taken < len(turns) and (not taken or used + size_of(turns[taken], count) <= room):
        used += size_of(turns[taken], count)
        taken += 1
    return [item for turn in turns[:taken] for item in turn], turns[taken:]
