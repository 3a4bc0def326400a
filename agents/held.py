"""To which grammar a step is held: the format that the answer must have, the calls that must or may be made.

Calls are held in the dialect of Hermes and Qwen. Models of other dialects are told in words (see `prompt`) that a call
is wanted, and their answers in a format come without tools.
"""

from __future__ import annotations

from agents.errors import InvalidTurn
from agents.offer import Offer
from agents.parser.choose import Dialect, Format
from agents.turn import Turn
from inference.grammar import CallableFunction, Thought, json_grammar, tool_grammar


def grammar_for(
    turn: Turn, offer: Offer, dialect: Dialect, *, first: bool, calls_max: int, thinking: bool
) -> str | None:
    """The grammar of a step, or None for one that may say anything.

    A call is forced in the `first` step only: what follows its result is the answer. Raises InvalidSchema, and
    InvalidTurn for what the model's dialect cannot be held to.
    """
    schema = turn.answer_format.schema if turn.answer_format else None
    thought = Thought(dialect.thoughts.open, dialect.thoughts.close, thinking) if dialect.thoughts else None
    functions = _functions(turn, offer) if calls_max else []
    if turn.answer_format and not _can_hold(dialect, tools=bool(functions)):
        raise InvalidTurn("This model cannot be held to a format here: leave it out.", param=turn.answer_format.param)
    if not functions or dialect.format is not Format.HERMES:
        return None if schema is None else json_grammar(schema, thought)
    forced = first and turn.tool_choice != "auto"
    if not forced and schema is None and not offer.limited and not any(function.strict for function in functions):
        return None
    return tool_grammar(functions, calls_max=calls_max, required=forced, answer_schema=schema, thought=thought)


def _can_hold(dialect: Dialect, *, tools: bool) -> bool:
    """Harmony answers in channels, which no grammar of ours writes."""
    return dialect.format is Format.HERMES or (dialect.format is not Format.HARMONY and not tools)


def _functions(turn: Turn, offer: Offer) -> list[CallableFunction]:
    strict = {function.name for function in turn.functions if function.strict}
    described = [schema["function"] for schema in offer.schemas]
    return [
        CallableFunction(each["name"], each["parameters"], each["name"] in strict)
        for each in described
        if each["name"] in offer.callable
    ]
