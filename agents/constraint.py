"""The grammar that constrains a step: the required format of the answer, and the calls that it must or may make.

If nothing is required, calls that the model makes on its own are constrained too, from their opening mark on: so they
name an existing tool, with arguments of its schema. Text costs nothing then, a call 5 microseconds per token.

Only in the dialect of Hermes and Qwen does one grammar hold both a call and an answer in a format. What no grammar
enforces of a schema is validated when the step has ended, and visible defects of an answer are a reason for another
model to take over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from agents.available_tools import AvailableTools
from agents.errors import InvalidTurn
from agents.message import Item, Message
from agents.parser.choose import Dialect, Format
from agents.reply import count_unknown
from agents.turn import AnswerFormat, Turn
from inference.errors import SchemaUnmet
from inference.grammar import calls
from inference.grammar.calls import ANY_OBJECT, OPEN, CallableFunction, Forced, tool_grammar
from inference.grammar.conformance import check
from inference.grammar.lark import Thought, escaped, grammar, value_of
from inference.grammar.schema import restated
from retrieval.passage import Passage

# Of a schema that the client did not ask to enforce, and of all such schemas together: each turn compiles them anew,
# which takes some ms for this many.
SCHEMA_CHARS_MAX = 32_000
OFFER_CHARS_MAX = 100_000
# The mark that opens a call in each dialect but that of Hermes, and the grammar of calls.
CALLS: Mapping[Format, tuple[str, Callable[[Sequence[CallableFunction], Forced | None], str]]] = {
    Format.LLAMA: (calls.PYTHON_TAG, calls.llama_calls),
    Format.MISTRAL: (calls.TOOL_CALLS, calls.mistral_calls),
    Format.QWEN_CODER: (calls.FUNCTION, calls.qwen_coder_calls),
    Format.GEMMA: (calls.GEMMA[0], calls.gemma_calls),
    Format.FUNCTION_GEMMA: (calls.FUNCTION_GEMMA[0], calls.function_gemma_calls),
    Format.HARMONY: (calls.CHANNEL, calls.harmony_calls),
}


class Extent(Enum):
    """How much of the schemas that nobody insists on is enforced."""

    POSSIBLE = "possible"  # all that a grammar can hold
    OUTLINE = "outline"  # names, types and enums
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class StepConstraint:
    """`begins` empty: the whole text is constrained. Otherwise only the calls, from that mark on, as far as
    possible.
    """

    grammar: str
    begins: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """The properties by which the constraints of a turn's steps differ.

    A call is forced until one is complete: the answer follows its result.
    """

    forced: bool
    calls_max: int
    thinking: bool


def constraint_of(
    turn: Turn, offer: AvailableTools, dialect: Dialect, stage: Stage, extent: Extent = Extent.POSSIBLE
) -> StepConstraint | None:
    """The constraint of a step, or None for unconstrained text. Takes milliseconds for large schemas.

    Raises InvalidSchema, and InvalidTurn for a constraint that the model's dialect does not support.
    """
    answer = _answer_schema(turn.answer_format, extent) if turn.answer_format else None
    thought = Thought(dialect.thoughts.open, dialect.thoughts.close, stage.thinking) if dialect.thoughts else None
    functions = _functions(offer, extent) if stage.calls_max else []
    if turn.answer_format and not _can_hold(dialect, tools=bool(functions)):
        raise InvalidTurn("This model cannot be held to a format here: leave it out.", param=turn.answer_format.param)
    holds = dialect.format is Format.HERMES
    if answer is not None and not (functions and holds):
        return StepConstraint(grammar("value", {"value": value_of(answer)}, thought))
    if not functions:
        return None
    limited = offer.limited or any(function.strict for function in functions)
    calls_max = stage.calls_max
    if not holds and stage.forced:
        return StepConstraint(CALLS[dialect.format][1](functions, Forced(calls_max, thought)))
    if not holds or (not stage.forced and answer is None and not limited):
        return _helping(functions, dialect.format)
    return StepConstraint(
        tool_grammar(functions, calls_max=calls_max, required=stage.forced, answer=answer, thought=thought)
    )


def _helping(functions: list[CallableFunction], format: Format) -> StepConstraint:
    """Of schemas that are too large, only the names of their functions are constrained."""
    chars = [len(json.dumps(function.parameters)) for function in functions]
    most = SCHEMA_CHARS_MAX if sum(chars) <= OFFER_CHARS_MAX else 0
    helped = [
        replace(function, parameters=ANY_OBJECT if count > most else function.parameters, strict=False)
        for function, count in zip(functions, chars, strict=True)
    ]
    if format is Format.HERMES:
        return StepConstraint(tool_grammar(helped), begins=OPEN)
    mark, grammar_of = CALLS[format]
    return StepConstraint(grammar_of(helped, None), begins=mark)


def _can_hold(dialect: Dialect, *, tools: bool) -> bool:
    """Harmony answers in channels, which our grammars do not cover."""
    return dialect.format is Format.HERMES or (dialect.format is not Format.HARMONY and not tools)


def _answer_schema(answer_format: AnswerFormat, extent: Extent) -> dict[str, Any]:
    """As a grammar takes it. Raises InvalidSchema for a strict one that cannot be enforced."""
    loose = not answer_format.strict
    return restated(answer_format.schema, loose=loose, outline=loose and extent is not Extent.POSSIBLE)


def _functions(offer: AvailableTools, extent: Extent) -> list[CallableFunction]:
    strict = {function.name for function in offer.definitions if function.strict}
    larks = {
        function.name: escaped(function.grammar.definition)
        for function in offer.definitions
        if function.grammar and function.grammar.syntax == "lark"
    }
    described = [schema["function"] for schema in offer.schemas]
    functions = [
        CallableFunction(each["name"], each["parameters"], each["name"] in strict, lark=larks.get(each["name"], ""))
        for each in described
        if each["name"] in offer.callable
    ]
    if extent is Extent.POSSIBLE:
        return functions
    less = {"outline": True} if extent is Extent.OUTLINE else {"parameters": ANY_OBJECT}
    return [each if each.strict else replace(each, **less) for each in functions]


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
