"""Grammars that hold generated text to a form: JSON, JSON of a schema, tool calls. Written in llama.cpp's GBNF."""

from inference.grammar.rules import Rules, Thought
from inference.grammar.schema import SchemaConverter
from inference.grammar.tools import OPEN, CallableFunction, tool_grammar

__all__ = ["OPEN", "CallableFunction", "Thought", "json_grammar", "tool_grammar"]


def json_grammar(schema: object, thought: Thought | None = None) -> str:
    """A grammar of the JSON values that fit a schema. Raises InvalidSchema naming the place in the schema."""
    rules = Rules()
    return rules.text(SchemaConverter(schema, rules).root(), thought)
