"""Grammars that hold generated text to a form: JSON, JSON of a schema, tool calls. Written for llguidance."""

from inference.grammar.lark import Thought, grammar, value_of
from inference.grammar.schema import restated
from inference.grammar.tools import ANY_OBJECT, OPEN, CallableFunction, tool_grammar

__all__ = ["ANY_OBJECT", "OPEN", "CallableFunction", "Thought", "json_grammar", "restated", "tool_grammar"]


def json_grammar(schema: object, thought: Thought | None = None) -> str:
    """A grammar of the JSON values that fit a schema. Raises InvalidSchema naming the place in the schema."""
    return grammar("value", {"value": value_of(restated(schema))}, thought)
