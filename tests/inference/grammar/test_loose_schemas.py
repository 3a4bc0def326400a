"""Of a schema that nobody insists on, what no grammar can hold is left out, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.grammar.lark import grammar, value_of
from inference.grammar.schema import DEPTH_MAX, OPTIONAL_MAX, restated
from tests.inference.grammar.test_grammar import fits

TEXT, NUMBER, OBJECT, ANY = ["a", "2024-13-99"], [1, 2.5], [{}, {"x": [1]}], ["a", 1, None, [], {"x": 1}]

# Each beside what it still lets through, and what it does not.
ODD: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("an unknown keyword", {"type": "string", "contains": {}}, TEXT, NUMBER),
    ("a negation", {"not": {"type": "string"}}, ANY, []),
    ("a pattern of no automaton", {"type": "string", "pattern": "(?=a)b", "minLength": 50}, TEXT, NUMBER),
    ("lengths that contradict", {"type": "string", "minLength": 3, "maxLength": 2}, TEXT, NUMBER),
    ("bounds that contradict", {"type": "number", "minimum": 3, "maximum": 2}, NUMBER, TEXT),
    ("types", {"type": ["string", "null"], "minLength": "long"}, [*TEXT, None], NUMBER),
    ("no type", {"type": "colour", "enum": ["red", "green"]}, ANY, []),
    ("an enum beside something", {"enum": ["red", "green"], "minLength": 1}, ["red"], ["blue"]),
    ("an array", {"type": "array", "items": {"type": "string"}, "contains": {}}, [["a"], []], [[1], {}]),
    (
        "what is in an array",
        {"type": "array", "items": {"type": "string", "if": {}}, "minItems": 1},
        [["a"]],
        [[1], []],
    ),
    ("a tuple", {"prefixItems": [{"type": "null"}, {"not": {}}], "minItems": 2, "maxItems": 2}, [[None, 1]], [[1, 1]]),
    (
        "an object",
        {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"], "dependentRequired": {}},
        [{"b": None}],
        [{}, {"b": 1}, {"c": None}],
    ),
    (
        "requirements",
        {"type": "object", "properties": {"b": {"type": "null"}}, "required": True},
        [{}, {"b": None}],
        [{"b": 1}],
    ),
    ("a type of Python", {"type": "dict", "properties": {"b": {"type": "null"}}}, [{"b": None}], [{"b": 1}, []]),
    (
        "patterns beside names",
        {"properties": {"b": {"const": 1}}, "patternProperties": {"^x": {}}},
        [{"b": 1}],
        [{"b": 2}],
    ),
    ("a map", {"type": "object", "propertyNames": {"not": {}}}, OBJECT, [[]]),
    ("a branch", {"anyOf": [{"type": "string", "not": {}}, {"type": "null"}]}, ["a", None], [1]),
    ("all branches", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, NUMBER, TEXT),
    ("no branches", {"type": "string", "anyOf": []}, TEXT, NUMBER),
    ("a part", {"allOf": [{"type": "string"}, {"unknown": 1}]}, TEXT, NUMBER),
    ("a reference to nothing", {"$ref": "#/nowhere", "type": "string"}, TEXT, NUMBER),
    ("a reference elsewhere", {"$ref": "https://example.com/"}, ANY, []),
    ("a reference to itself", {"$ref": "#/properties/odd"}, ANY, []),
    ("a reference to something odd", {"$ref": "#/$defs/odd"}, [[1, None]], [[1, 2], None]),
    ("nothing that is a schema", 5, ANY, []),
    (
        "a type and nonsense",
        {"type": "string", "properties": 5, "items": 5, "anyOf": 5, "$ref": 5, "enum": 5},
        TEXT,
        NUMBER,
    ),
    ("many names", {"type": "object", "properties": {f"{i}": {} for i in range(OPTIONAL_MAX + 1)}}, OBJECT, [[]]),
]


@pytest.mark.parametrize(("odd", "good", "bad"), [row[1:] for row in ODD], ids=[row[0] for row in ODD])
def test_a_property_that_no_grammar_holds_costs_its_own_constraint_alone(
    odd: Any, good: list[Any], bad: list[Any]
) -> None:
    schema = {
        "type": "object",
        "properties": {"left": {"type": "boolean"}, "odd": odd, "right": {"enum": ["average"]}},
        "required": ["left", "odd", "right"],
        "additionalProperties": False,
        "$defs": {"odd": {"type": "array", "items": {"anyOf": [{"const": 1}, {"type": "null", "not": {}}]}}},
    }
    held = loosely(schema)

    def accepts(**changed: Any) -> bool:
        return fits(held, json.dumps({"left": True, "odd": good[0], "right": "average", **changed}))

    assert [value for value in good if not accepts(odd=value)] == []
    assert [value for value in bad if accepts(odd=value)] == []
    assert not accepts(left="true") and not accepts(right="mean") and not accepts(more=1)
    assert not fits(held, '{"left": true, "right": "average"}')
    assert not fits(held, '{"left": true, "rightarguments_hiably": "average"}')


def test_only_the_innermost_value_loses_its_constraint() -> None:
    inner = {"properties": {"a": {"type": "string", "not": {}}, "b": {"type": "null"}}, "required": ["a", "b"]}
    grammar = loosely({"type": "array", "items": {"type": "object", **inner}, "maxItems": 1})
    assert fits(grammar, '[{"a": "x", "b": null}]')
    for text in ('[{"a": 1, "b": null}]', '[{"a": "x", "b": 1}]', '[{"a": "x"}]', '[{"a": "x", "b": null}, {}]'):
        assert not fits(grammar, text)


def test_below_the_deepest_level_anything_is_let_through() -> None:
    schema: Any = {"type": "null"}
    for _ in range(DEPTH_MAX + 5):
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    grammar = loosely(schema)
    assert fits(grammar, "[" * DEPTH_MAX + "[5]" + "]" * DEPTH_MAX) and not fits(grammar, "[" * 9 + "5" + "]" * 9)


def test_an_outline_holds_names_types_and_enums() -> None:
    schema = {
        "properties": {
            "a": {"type": "string", "pattern": "^x$"},
            "b": {"type": "integer", "minimum": 3},
            "c": {"enum": [1]},
        },
        "required": ["a", "b", "c"],
        "minProperties": 9,
    }
    outline = grammar("value", {"value": value_of(restated(schema, outline=True))})
    assert fits(outline, '{"a": "y", "b": 1, "c": 1}')
    for text in (
        '{"a": 1, "b": 1, "c": 1}',
        '{"a": "x", "b": "3", "c": 1}',
        '{"a": "x", "b": 3, "c": 2}',
        '{"a": "x"}',
    ):
        assert not fits(outline, text)


def loosely(schema: Any) -> str:
    return grammar("value", {"value": value_of(restated(schema, loose=True))})
