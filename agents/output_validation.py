"""What a finished step must have beyond what its grammar held: the answer in its format, arguments of strict functions.

Only what is noted as unheld in a schema is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agents.message import FunctionCall, Item, Message
from agents.turn import Turn
from inference.grammar.schema import restated
from inference.grammar.unenforced_keywords import check


def validate(turn: Turn, items: Sequence[Item]) -> None:
    """Looks at every text: not for the event loop. Raises SchemaUnmet."""
    for schema, text in _constrained(turn, items):
        check(restated(schema), text)


def needs_validation(turn: Turn) -> bool:
    return turn.answer_format is not None or any(function.strict for function in turn.functions)


def _constrained(turn: Turn, items: Sequence[Item]) -> Iterator[tuple[Mapping[str, Any], str]]:
    strict = {function.name: function.parameters for function in turn.functions if function.strict}
    for item in items:
        if isinstance(item, Message) and turn.answer_format is not None:
            yield turn.answer_format.schema, item.text
        elif isinstance(item, FunctionCall) and item.status == "completed" and item.name in strict:
            yield strict[item.name], item.arguments
