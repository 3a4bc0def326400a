"""What no grammar holds of a schema is found in the finished text, and nothing else is."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from inference.errors import InvalidSchema, SchemaUnmet
from inference.grammar.conformance import check, unenforced
from inference.grammar.lark import grammar, value_of
from inference.grammar.schema import json_grammar, restated
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
    grammar, document = json_grammar(schema), restated(schema)
    for value in good:
        assert fits(grammar, json.dumps(value))
        check(document, json.dumps(value))
    for value, place in bad:
        assert fits(grammar, json.dumps(value))
        with pytest.raises(SchemaUnmet) as unmet:
            check(document, json.dumps(value))
        assert f"'{place}'" in str(unmet.value)
        assert unmet.value.code in ("unmet_uniqueItems", "unmet_minProperties", "unmet_maxProperties")


def test_what_the_grammar_holds_is_not_looked_at_again() -> None:
    schema = {**TypeAdapter(Options).json_schema(), "$defs": {}}
    left = unenforced(restated(schema))
    assert left == {
        "properties": {"kind": {}, "names": {"uniqueItems": True}},
        "additionalProperties": {},
        "$defs": {},
    }
    assert unenforced(restated({"type": "array", "items": {"type": "integer"}, "uniqueItems": False})) is None
    assert unenforced(restated({"enum": [{"x-unheld": {"uniqueItems": True}}]})) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"properties": {"a": UNIQUE}}, {"properties": {"b": {}}}]},
        {"anyOf": [UNIQUE, {}]},
        {"anyOf": [UNIQUE, {"$ref": "#/$defs/a"}], "$defs": {"a": {"enum": [[1]]}}},
        {"allOf": [{"properties": {"a": UNIQUE}}, {"properties": {"b": UNIQUE}}]},
        {"patternProperties": {"^a": UNIQUE, "^b": {}}},
    ],
)
def test_where_several_schemas_may_speak_about_a_value_it_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidSchema, match="several schemas"):
        unenforced(restated(schema))


def test_a_deep_text_of_a_schema_that_leads_to_itself_is_looked_at_once() -> None:
    """The work would double with each level if two parts of the schema went down."""
    document = restated({"type": "array", "items": {"$ref": "#"}, "uniqueItems": True})
    check(document, "[" * 500 + "]" * 500)
    with pytest.raises(SchemaUnmet):
        check(document, "[" * 500 + "1,1" + "]" * 500)


def test_what_nobody_insists_on_is_not_looked_for_where_several_schemas_speak_about_a_value() -> None:
    document = restated({"anyOf": [UNIQUE, {}]}, loose=True)
    check(document, "[1, 1]")
    assert fits(grammar("value", {"value": value_of(document)}), "[1, 1]")


def test_a_text_that_was_cut_is_left_alone() -> None:
    check(restated(UNIQUE), "[1, 1")
