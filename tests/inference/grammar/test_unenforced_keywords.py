"""What no grammar holds of a schema is found in the finished text, and nothing else is."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from inference.errors import SchemaUnmet
from inference.grammar.conformance import check
from inference.grammar.schema import json_grammar
from tests.inference.grammar.test_grammar import fits

UNIQUE: Any = {"type": "array", "uniqueItems": True}


class Node(BaseModel):
    tags: set[int]
    inner: list[Node] = []
    more: set[str] | None = None
    of: dict[str, frozenset[int]] = {}


class Options(BaseModel):
    kind: Literal["a"] = "a"
    names: Annotated[set[str], Field(max_length=3)]


# Of each schema: what has the keyword that is left, and what breaks it at a place. The grammar lets all through.
TABLE: list[tuple[str, Any, list[Any], list[tuple[Any, str]]]] = [
    ("a set", UNIQUE, [[], [1, 2], [1, "1"], [{"a": 1}, {"a": 2}]], [([1, 1], "the whole"), ([[], []], "the whole")]),
    (
        "sets in a tree",
        TypeAdapter(Node).json_schema(),
        [{"tags": [1, 2], "inner": [{"tags": [1, 2]}], "more": None}],
        [
            ({"tags": [1, 1]}, "tags"),
            ({"tags": [], "inner": [{"tags": [2, 3, 2]}]}, "inner[0].tags"),
            ({"tags": [], "more": ["a", "a"]}, "more"),
            ({"tags": [], "of": {"x": [7, 7]}}, "of.x"),
        ],
    ),
    ("a set or a text", {"anyOf": [UNIQUE, {"type": "string"}]}, [[1], "aa"], [([1, 1], "the whole")]),
    (
        "a set or a time",
        {"anyOf": [UNIQUE, {"type": "string", "format": "date-time", "pattern": "Z$"}]},
        [[1], "2026-11-22T13:05:00Z"],
        [([1, 1], "the whole")],
    ),
    (
        "sets by names of a pattern",
        {"type": "object", "propertyNames": {"pattern": "^[a-z]$"}, "additionalProperties": UNIQUE},
        [{"a": [1], "b": [1]}],
        [({"a": [], "b": [1, 1]}, "b")],
    ),
    ("by reference", {"$ref": "#/$defs/a", "$defs": {"a": UNIQUE}}, [[1]], [([1, 1], "the whole")]),
    (
        "by a reference into a list, and an anchor",
        {
            "type": "object",
            "properties": {
                "a": {"anyOf": [{"type": "null"}, UNIQUE]},
                "b": {"$ref": "#/properties/a/anyOf/1"},
                "c": {"$ref": "#few%20of"},
                "d": {"$ref": "https://example.com/x#/x-of"},
            },
            "$defs": {
                "few": {"$anchor": "few of", "type": "object", "properties": {"n": {}, "m": {}}, "maxProperties": 1},
                "x": {"$id": "https://example.com/x", "x-of": {"items": {"$ref": "#/x-of/x-1"}, "x-1": UNIQUE}},
            },
        },
        [{"a": None, "b": [1], "c": {"n": 1}, "d": [[1]]}],
        [({"a": [1, 1]}, "a"), ({"b": [1, 1]}, "b"), ({"c": {"n": 1, "m": 1}}, "c"), ({"d": [[], [1, 1]]}, "d[1]")],
    ),
    (
        "a tuple of sets",
        {"type": "array", "prefixItems": [UNIQUE, {}], "items": UNIQUE},
        [[[1], [1, 1], [2]]],
        [([[1, 1], 0], "[0]"), ([[1], 0, [2, 2]], "[2]")],
    ),
    (
        "named properties, counted",
        {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1, "maxProperties": 1},
        [{"a": 1}],
        [({}, "the whole"), ({"a": 1, "b": 1}, "the whole")],
    ),
    (
        "names of a list, counted",
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {}, "minProperties": 1},
        [{"a": 1}],
        [({}, "the whole")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_broken_keyword_is_found_with_its_place(schema: Any, good: list[Any], bad: list[tuple[Any, str]]) -> None:
    grammar = json_grammar(schema)
    for value in good:
        assert fits(grammar, json.dumps(value))
        check(schema, json.dumps(value))
    for value, place in bad:
        assert fits(grammar, json.dumps(value))
        with pytest.raises(SchemaUnmet) as unmet:
            check(schema, json.dumps(value))
        assert f"'{place}'" in str(unmet.value)
        assert unmet.value.code in ("unmet_uniqueItems", "unmet_minProperties", "unmet_maxProperties")


def test_a_set_is_looked_at_where_several_schemas_speak_about_a_value() -> None:
    """The one that the value has to fit decides: another may let it through."""
    either: Any = {"anyOf": [{"type": "object", "properties": {"a": UNIQUE}, "required": ["a"]}, {"const": {"a": [1]}}]}
    check(either, '{"a": [1, 2]}')
    check({"anyOf": [UNIQUE, {}]}, "[1, 1]")
    for schema in (either, {"patternProperties": {"^a": UNIQUE, "^b": {}}}):
        with pytest.raises(SchemaUnmet, match="'a'"):
            check(schema, '{"a": [1, 1]}')


def test_a_deep_text_of_a_schema_that_leads_to_itself_is_looked_at_once() -> None:
    """The work would double with each level if two parts of the schema went down."""
    schema = {"type": "array", "items": {"$ref": "#"}, "uniqueItems": True}
    check(schema, "[" * 200 + "]" * 200)
    with pytest.raises(SchemaUnmet):
        check(schema, "[" * 200 + "1,1" + "]" * 200)


def test_a_text_that_was_cut_is_left_alone() -> None:
    check(UNIQUE, "[1, 1")
