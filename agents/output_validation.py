"""Validates a finished step beyond its grammar: the format of an answer, and visible defects of an answer, which are a
reason for another model to take over.

Of a schema, only the keywords that no grammar enforces are validated.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.citations import count_unknown
from agents.message import Item, Message
from agents.turn import AnswerFormat, Turn
from inference.errors import SchemaUnmet
from inference.grammar.schema import restated
from inference.grammar.unenforced_keywords import check
from retrieval.passage import Passage


def validate(answer_format: AnswerFormat, items: Sequence[Item]) -> None:
    """Scans every text: not for the event loop. Raises SchemaUnmet."""
    for item in items:
        if isinstance(item, Message):
            check(restated(answer_format.schema, loose=not answer_format.strict), item.text)


def defect_of(turn: Turn, sources: Sequence[Passage], said: str, *, is_whole: bool) -> str:
    """The defect of an answer, or "". `said` are the few words that may be held back, or all of a shorter answer: fast
    enough for the event loop."""
    is_mark_open = said.endswith("]") and not is_whole  # followed by "(", it would be a link
    if not is_mark_open and count_unknown(said, sources):
        return "cites what was not found"
    if is_whole and said and turn.answer_format is not None:
        try:
            validate(turn.answer_format, [Message("assistant", said)])
        except SchemaUnmet:
            return "breaks its schema"
    return ""
