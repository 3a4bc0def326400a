"""What is written without quotes is what its schema declares."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.grammar.declared import ANY, Declared

DEFINITIONS = {
    "Code": {"type": "string", "pattern": "^[0-9]+$"},
    "Alias": {"$ref": "#/$defs/Code"},
    "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "null"}]},
    "Count": {"type": "integer"},
}


def meant(bare: str, schema: Any) -> Any:
    document = {"type": "object", "properties": {"x": schema}, "$defs": DEFINITIONS}
    return json.loads(Declared(document).member("x").json_of(bare))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"oneOf": [{"type": "null"}, {"type": "string"}]},
        {"type": ["string", "null"]},
        {"enum": ["77812", "77813"]},
        {"enum": ["77812", 77813]},
        {"const": "77812"},
        {"$ref": "#/$defs/Code"},
        {"$ref": "#/$defs/Alias"},
        {"allOf": [{"$ref": "#/$defs/Code"}, {"description": "A code."}]},
        {"anyOf": [{"$ref": "#/$defs/Alias"}, {"type": "null"}]},
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    ],
)
def test_a_text_of_digits_stays_a_text(schema: Any) -> None:
    assert meant("77812", schema) == "77812"


@pytest.mark.parametrize(
    ("bare", "schema", "value"),
    [
        ("77812", {}, 77812),
        ("77812", True, 77812),
        ("77812", {"type": "integer"}, 77812),
        ("77812", {"type": "number"}, 77812),
        ("77812", {"type": ["string", "integer"]}, 77812),
        ("77812", {"enum": [77812]}, 77812),
        ("77812", {"$ref": "#/$defs/Count"}, 77812),
        ("77812", {"$ref": "#/$defs/nothing"}, 77812),
        ("1.5", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "1.5"),
        ("null", {"type": ["string", "null"]}, None),
        ("None", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("null", {"type": "string"}, "null"),
        ("null", {"enum": ["null", None]}, "null"),
        ("True", {"type": "boolean"}, True),
        ("True", {"type": "string"}, "True"),
        ('["a", "1"]', {"anyOf": [{"type": "string"}, {"type": "array"}]}, ["a", "1"]),
        ('{"a": 1}', {"type": ["string", "null"]}, '{"a": 1}'),
        ("three", {"type": "integer"}, "three"),
        ("1e999", {"type": "number"}, "1e999"),
        ("NaN", {"type": ["number", "string"]}, "NaN"),
        (" 3 ", {"type": "integer"}, 3),
        (" 3 ", {"type": "string"}, " 3 "),
    ],
)
def test_a_value_has_its_declared_type(bare: str, schema: Any, value: Any) -> None:
    assert meant(bare, schema) == value and type(meant(bare, schema)) is type(value)


def test_members_and_items_are_found_through_references_and_unions() -> None:
    book = {"type": "object", "properties": {"isbn": {"$ref": "#/$defs/Code"}}}
    film = {"type": "object", "properties": {"isbn": {"type": "null"}, "minutes": {"type": "integer"}}}
    document = {
        "properties": {"list": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/Book"}, film]}}},
        "$defs": {**DEFINITIONS, "Book": book},
    }
    item = Declared(document).member("list").item
    assert item.kinds == {"object"} and sorted(item.member_names) == ["isbn", "minutes"]
    assert item.member("isbn").kinds == {"string", "null"} and item.member("minutes").kinds == {"integer"}
    assert item.member("title").kinds == ANY and Declared(None).item.kinds == ANY


def test_other_members_are_declared_together() -> None:
    declared = Declared({"properties": {"n": {"type": "integer"}}, "additionalProperties": {"type": "string"}})
    assert json.loads(declared.member("other").json_of("1")) == "1"
    assert json.loads(declared.member("n").json_of("1")) == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/Loop", "$defs": DEFINITIONS},
        {"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(5_000)}},
        {"anyOf": {}, "type": 3, "enum": "no", "$ref": [], "properties": [], "items": 1},
        [],
        "no",
    ],
)
def test_what_leads_nowhere_declares_nothing(schema: Any) -> None:
    declared = Declared(schema)
    assert declared.json_of("1") == "1" and declared.member("x").item.kinds == ANY
