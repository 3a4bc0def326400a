"""To which grammar a step is held: the format that the answer must have, the calls that must or may be made.

Where nothing must be, the calls that a model makes of its own accord are held too, from the mark that begins them: so
they name a tool that is there, with arguments of its schema. Text costs nothing then, a call 11 microseconds a token.

Calls are held in the dialect of Hermes and Qwen. Models of other dialects are told in words (see `prompt`) that a call
is wanted, and their answers in a format come without tools.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from agents.errors import InvalidTurn
from agents.offer import Offer
from agents.parser.choose import Dialect, Format
from agents.turn import Turn
from inference.errors import InvalidSchema
from inference.grammar import OPEN, CallableFunction, Thought, json_grammar, tool_grammar

# Of a schema that nobody asked to be held to. Long ones are mostly lists of words; one of 5,200 takes 0.2 seconds.
SCHEMA_CHARS_MAX = 8_000
OFFER_CHARS_MAX = 100_000  # of all names and schemas together: some ms to write, and kept
OFFERS_KEPT = 64  # as many as the model keeps compiled grammars; writing one takes a third of a millisecond and more


@dataclass(frozen=True, slots=True)
class Held:
    """`begins` empty: the whole text is held. Else the calls alone, from there on, as far as that can be done."""

    grammar: str
    begins: str = ""


def held(turn: Turn, offer: Offer, dialect: Dialect, *, first: bool, calls_max: int, thinking: bool) -> Held | None:
    """What a step is held to, or None for one that may say anything.

    A call is forced in the `first` step only: what follows its result is the answer. Raises InvalidSchema, and
    InvalidTurn for what the model's dialect cannot be held to.
    """
    schema = turn.answer_format.schema if turn.answer_format else None
    thought = Thought(dialect.thoughts.open, dialect.thoughts.close, thinking) if dialect.thoughts else None
    functions = _functions(turn, offer) if calls_max else []
    if turn.answer_format and not _can_hold(dialect, tools=bool(functions)):
        raise InvalidTurn("This model cannot be held to a format here: leave it out.", param=turn.answer_format.param)
    if not functions or dialect.format is not Format.HERMES:
        return None if schema is None else Held(json_grammar(schema, thought))
    forced = first and turn.tool_choice != "auto"
    if not forced and schema is None and not offer.limited and not any(function.strict for function in functions):
        offered = json.dumps([(function.name, function.parameters) for function in functions])
        return _helping(offered) if len(offered) <= OFFER_CHARS_MAX else None
    return Held(tool_grammar(functions, calls_max=calls_max, required=forced, answer_schema=schema, thought=thought))


@lru_cache(OFFERS_KEPT)
def _helping(offered: str) -> Held | None:
    """For functions as JSON. None for what no grammar can be made of: these calls go as the model writes them."""
    functions = [
        CallableFunction(name, {"type": "object"} if len(json.dumps(parameters)) > SCHEMA_CHARS_MAX else parameters)
        for name, parameters in json.loads(offered)
    ]
    try:
        return Held(tool_grammar(functions), begins=OPEN)
    except InvalidSchema:
        return None


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
