"""The task that every side runs: three steps of two calls each, then an answer. All texts are fixed."""

from __future__ import annotations

from typing import Any

STEPS = 3
CALLS = 2  # per step, independent of each other
WORDS = 12  # per query, for a call of typical length
ANSWER_WORDS = 24
TOOL_S = 0.05  # the duration of a tool call: a query to a nearby database
SERVER, METHOD = "warehouse", "find"
TOOL = f"{SERVER}_{METHOD}"  # a worker's name for a tool of a server
SYSTEM = (
    "You are the desk of a warehouse. You look things up before you say anything about them. " * 4
)  # a letter is a token of this vocabulary
QUESTION = "Which of the items are there, and where do they stand?"
RESULT = "Shelf 7 in the second aisle, 12 left."
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What to look for"}},
    "required": ["query"],
}
DESCRIPTION = "Look for items."


def query(step: int, call: int) -> list[str]:
    """The words of one query. No two queries share a word."""
    first = (step * CALLS + call) * WORDS
    return [f"item{number:03}" for number in range(first, first + WORDS)]


def turn(step: int) -> list[str]:
    """The model's output in a step, piece by piece: no piece occurs twice in the whole task."""
    if step == STEPS:
        return [f"answer{number:02} " for number in range(ANSWER_WORDS)]
    return [piece for call in range(CALLS) for piece in _call(step, call)]


def _call(step: int, call: int) -> list[str]:
    first, *middle, last = query(step, call)
    apart = "\n" if call else ""
    return [
        apart + f'<tool_call>\n{{"name": "{TOOL}", "arguments": {{"query": "{first} ',
        *(f"{word} " for word in middle),
        f'{last}"}}}}\n</tool_call>',
    ]
