"""Truncation of a conversation that has outgrown its context, where the caller allows it: the oldest turns are dropped.

A turn starts with a message of the user. It is dropped as a whole, so that no answer is left without its question and
no result without its call. System messages, summaries and the newest turn stay. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

from agents.message import (
    Compaction,
    ConfigurationUpdate,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    ToolListing,
    pictures_in,
)
from agents.turn import Turn

# Tokens are dropped in multiples of this fraction of the context (1 / STRIDES), so the prompts of many following turns
# start with the same tokens, which stay cached.
STRIDES = 4
PICTURE_TOKENS = 256  # of common encoders; an estimate
MARKUP_TOKENS = 4  # around a message in common templates; an estimate


def shortened(turn: Turn, excess: int, context_length: int, count: Callable[[str], int]) -> tuple[Turn, int] | None:
    """The turn without the oldest turns of its history, about `excess` tokens rounded up to a stride, and the number of
    dropped turns. None when nothing may be dropped. If the excess is too large to be counted in tokens, it is in bytes.

    Sizes are estimates. Those of a conversation that is far too long may be wrong by more than a context, so half a
    context is kept by the same estimate; if that is still too much, the caller asks again.
    """
    stride = max(1, context_length // STRIDES)
    goal = ceil(excess / stride) * stride
    turns = turns_of((*turn.history, *turn.input))
    sizes = [size_of(items, count) for items in turns]
    if min(excess, sum(sizes)) > context_length:
        goal = (sum(sizes) - context_length // 2) // stride * stride
    gone, freed = 0, 0
    while gone < len(turns) - 1 and (freed < goal or not gone):
        freed += sizes[gone]
        gone += 1
    if not gone:
        return None
    kept = [item for left_out in turns[:gone] for item in left_out if _is_system(item)]
    kept += [item for whole in turns[gone:] for item in whole]
    return replace(turn, history=(), input=_without_orphans(kept)), gone


def size_of(items: Sequence[Item], count: Callable[[str], int]) -> int:
    """The approximate number of tokens of these items in a prompt."""
    pictures = PICTURE_TOKENS * sum(1 for _ in pictures_in(items))
    return pictures + sum(MARKUP_TOKENS + count(_text(item)) for item in items)


def bytes_of(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def turns_of(items: Sequence[Item]) -> list[list[Item]]:
    """The items by turns; those before the first message of a user belong to the first turn."""
    turns: list[list[Item]] = [[]]
    for item in items:
        begins = isinstance(item, Message) and item.role == "user"
        if begins and not all(map(_is_system, turns[-1])):
            turns.append([])
        turns[-1].append(item)
    return turns


def _is_system(item: Item) -> bool:
    return isinstance(item, Compaction) or (isinstance(item, Message) and item.role in ("system", "developer"))


def _without_orphans(items: Sequence[Item]) -> tuple[Item, ...]:
    """Without outputs whose call was in a dropped turn."""
    calls = {item.call_id for item in items if isinstance(item, FunctionCall)}
    return tuple(item for item in items if not isinstance(item, FunctionCallOutput) or item.call_id in calls)


def _text(item: Item) -> str:
    match item:
        case Message() | Reasoning():
            return item.text
        case FunctionCall():
            return item.arguments + (item.result.output if item.result else "")
        case FunctionCallOutput():
            return item.output
        case Compaction():
            return item.summary
        case FileSearchCall() | ToolListing() | ConfigurationUpdate():
            return ""
