"""To which grammar a step is held: the format that the answer must have, the calls that must or may be made.

Where nothing must be, the calls that a model makes of its own accord are held too, from the mark that begins them: so
they name a tool that is there, with arguments of its schema. Text costs nothing then, a call 5 microseconds a token.

Calls are held in the dialect of Hermes and Qwen. Models of other dialects are told in words (see `prompt`) that a call
is wanted, and their answers in a format come without tools.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from agents.errors import InvalidTurn
from agents.offer import Offer
from agents.parser.choose import Dialect, Format
from agents.turn import Turn
from inference.grammar.lark import Thought
from inference.grammar.schema import json_grammar
from inference.grammar.tools import ANY_OBJECT, OPEN, CallableFunction, tool_grammar

# Of a schema that nobody asked to be held to, and of all names and schemas together: each turn compiles them anew,
# which takes some ms for so much.
SCHEMA_CHARS_MAX = 8_000
OFFER_CHARS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class StepConstraint:
    """`begins` empty: the whole text is held. Else the calls alone, from there on, as far as that can be done."""

    grammar: str
    begins: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """What the steps of one turn differ in, as far as it matters here.

    A call is forced in the first step only: what follows its result is the answer.
    """

    forced: bool
    calls_max: int
    thinking: bool


def constraint_of(
    turn: Turn, offer: Offer, dialect: Dialect, stage: Stage, *, loosely: bool = False
) -> StepConstraint | None:
    """What a step is held to, or None for one that may say anything. `loosely`: functions that are not strict take any
    object. Takes milliseconds for large schemas.

    Raises InvalidSchema, and InvalidTurn for what the model's dialect cannot be held to.
    """
    schema = turn.answer_format.schema if turn.answer_format else None
    thought = Thought(dialect.thoughts.open, dialect.thoughts.close, stage.thinking) if dialect.thoughts else None
    functions = _functions(turn, offer, loosely) if stage.calls_max else []
    if turn.answer_format and not _can_hold(dialect, tools=bool(functions)):
        raise InvalidTurn("This model cannot be held to a format here: leave it out.", param=turn.answer_format.param)
    if not functions or dialect.format is not Format.HERMES:
        return None if schema is None else StepConstraint(json_grammar(schema, thought))
    limited = offer.limited or any(function.strict for function in functions)
    if not stage.forced and schema is None and not limited:
        return _helping(functions)
    calls_max = stage.calls_max
    return StepConstraint(
        tool_grammar(functions, calls_max=calls_max, required=stage.forced, answer_schema=schema, thought=thought)
    )


def _helping(functions: list[CallableFunction]) -> StepConstraint | None:
    """None for what is too much: these calls go as the model writes them."""
    chars = [len(json.dumps(function.parameters)) for function in functions]
    if sum(chars) > OFFER_CHARS_MAX:
        return None
    helped = [
        replace(function, parameters=ANY_OBJECT) if count > SCHEMA_CHARS_MAX else function
        for function, count in zip(functions, chars, strict=True)
    ]
    return StepConstraint(tool_grammar(helped), begins=OPEN)


def _can_hold(dialect: Dialect, *, tools: bool) -> bool:
    """Harmony answers in channels, which no grammar of ours writes."""
    return dialect.format is Format.HERMES or (dialect.format is not Format.HARMONY and not tools)


def _functions(turn: Turn, offer: Offer, loosely: bool) -> list[CallableFunction]:
    strict = {function.name for function in turn.functions if function.strict}
    described = [schema["function"] for schema in offer.schemas]
    functions = [
        CallableFunction(each["name"], each["parameters"], each["name"] in strict)
        for each in described
        if each["name"] in offer.callable
    ]
    return [replace(each, parameters=ANY_OBJECT) if loosely and not each.strict else each for each in functions]
