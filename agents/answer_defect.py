"""What is wrong with an answer that shows in it, whatever the right one is: a reason for another model to take over."""

from __future__ import annotations

from collections.abc import Sequence

from agents.citations import count_unknown
from agents.message import Message
from agents.output_validation import validate
from agents.turn import Turn
from inference.errors import SchemaUnmet
from retrieval.passage import Passage


def defect_of(turn: Turn, sources: Sequence[Passage], said: str, *, is_whole: bool) -> str:
    """Why, or nothing. `said` are the few words that may be held back, or all of a shorter answer: for the event
    loop."""
    is_mark_open = said.endswith("]") and not is_whole  # with "(" behind it, it would be a link
    if not is_mark_open and count_unknown(said, sources):
        return "cites what was not found"
    if is_whole and said and turn.answer_format is not None:
        try:
            validate(turn, [Message("assistant", said)])
        except SchemaUnmet:
            return "breaks its schema"
    return ""
