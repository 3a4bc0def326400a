"""Schemas as generators of several languages write them for tools and APIs: the documents that fit are let through, and
others are not; and whoever checks a finished value finds no fault with the former."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.grammar.conformance import Conformance
from inference.grammar.schema import json_grammar, restated
from tests.inference.grammar.test_grammar import fits


def closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


# As the generator has it whose name comes first.
GENERATED: list[tuple[str, Any, list[Any], list[Any]]] = [
    (
        "zod-to-json-schema: a schema that is used twice",
        closed(
            {
                "left": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "right": {"$ref": "#/properties/left/anyOf/1"},
                "pair": {"type": "array", "minItems": 2, "maxItems": 2, "items": [{"type": "null"}, {"const": "b"}]},
                "second": {"$ref": "#/properties/pair/items/1"},
            },
            **{"$schema": "http://json-schema.org/draft-07/schema#"},
        ),
        [{"left": "a", "right": 1, "pair": [None, "b"], "second": "b"}],
        [
            {"left": "a", "right": "a", "pair": [None, "b"], "second": "b"},
            {"left": "a", "right": 1, "pair": [None, "b"], "second": None},
        ],
    ),
    (
        "zod-to-json-schema: optional and nullable",
        closed({"a": {"anyOf": [{"anyOf": [{"not": {}}, {"type": "string"}]}, {"type": "null"}]}}),
        [{"a": "x"}, {"a": None}],
        [{"a": 1}],
    ),
    (
        "zod: never",
        {"type": "object", "properties": {"a": {"not": {}}, "b": {"type": "null"}}},
        [{"b": None}],
        [{"a": 1}],
    ),
    (
        "pydantic: a generic model, as its references are escaped in a URI",
        {
            "$defs": {
                "Page[User]": closed({"items": {"type": "array", "items": {"$ref": "#/$defs/User"}}}),
                "User": closed({"name": {"type": "string"}}),
            },
            "$ref": "#/$defs/Page%5BUser%5D",
        },
        [{"items": [{"name": "Ada"}]}],
        [{"items": [{}]}, {}],
    ),
    (
        "Spring: numbers and nested objects",
        {
            "type": "object",
            "properties": {
                "id": {"type": "integer", "format": "int64"},
                "age": {"type": "integer", "format": "int32", "minimum": 0, "exclusiveMinimum": True},
                "weight": {"type": "number", "format": "double"},
                "day": {"type": "string", "format": "date"},
                "status": {"type": "string", "enum": ["OPEN", "CLOSED"], "xml": {"name": "s"}},
                "page": {"$ref": "#/components/schemas/Page%C2%ABUser%C2%BB"},
            },
            "required": ["id", "age", "weight", "page"],
            "components": {"schemas": {"Page«User»": {"type": "object", "properties": {"n": {"type": "boolean"}}}}},
        },
        [{"id": 7, "age": 1, "weight": 0.5, "page": {"n": True}}, {"id": 7, "age": 1, "weight": 1, "page": {}}],
        [{"id": 7, "age": 0, "weight": 1, "page": {}}, {"id": "7", "age": 1, "weight": 1, "page": {}}],
    ),
    (
        "Spring AI: a type that contains itself",
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$defs": {
                "Node-nullable": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Node(T)"}]},
                "Node(T)": closed(
                    {"value": {"type": "integer", "format": "int32"}, "next": {"$ref": "#/$defs/Node-nullable"}}
                ),
            },
            "$ref": "#/$defs/Node(T)",
        },
        [{"value": 1, "next": {"value": 2, "next": None}}],
        [{"value": 1, "next": {"value": 2, "next": 3}}],
    ),
    (
        "Swashbuckle: null, by OpenAPI 3.0",
        closed(
            {
                "name": {"type": "string", "nullable": True},
                "count": {"type": "integer", "format": "int32", "nullable": True},
                "of": {"allOf": [{"$ref": "#/components/schemas/Color"}], "nullable": True},
            },
            components={"schemas": {"Color": {"enum": [0, 1], "type": "integer", "format": "int32"}}},
        ),
        [{"name": None, "count": None, "of": 1}, {"name": "a", "count": 3, "of": 0}],
        [{"name": 1, "count": 3, "of": 0}, {"name": "a", "count": 3, "of": 2}],
    ),
    (
        "System.Text.Json: a reference to where a type came first",
        {
            "type": ["object", "null"],
            "properties": {
                "Name": {"type": ["string", "null"]},
                "Children": {"type": ["array", "null"], "items": {"$ref": "#"}},
                "More": {"$ref": "#/properties/Children"},
            },
            "required": ["Name", "Children"],
        },
        [None, {"Name": None, "Children": [None, {"Name": "a", "Children": []}], "More": []}],
        [{"Name": "a"}, {"Name": "a", "Children": [{"Name": 1}]}],
    ),
    (
        "Microsoft.AspNetCore.OpenApi: numbers that may be texts",
        closed({"a": {"pattern": r"^-?(?:0|[1-9]\d*)$", "type": ["integer", "string"], "format": "int32"}}),
        [{"a": 3}, {"a": "-12"}],
        [{"a": "x"}, {"a": None}],
    ),
    (
        "NJsonSchema: formats of its own",
        closed(
            {
                "price": {"type": "number", "format": "decimal"},
                "key": {"type": "string", "format": "guid"},
                "span": {"type": "string", "format": "duration"},
                "kind": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/Kind"}]},
            },
            definitions={"Kind": {"type": "integer", "description": "", "x-enumNames": ["A"], "enum": [0]}},
        ),
        [{"price": 1.5, "key": "any", "span": "PT5M", "kind": None}, {"price": 1, "key": "", "span": "P1D", "kind": 0}],
        [{"price": 1, "key": "", "span": "P1D", "kind": 1}, {"price": 1, "key": "", "span": "a day", "kind": 0}],
    ),
    (
        "TypeBox: recursion by $id",
        {
            "$id": "Node",
            "type": "object",
            "properties": {"id": {"type": "string"}, "nodes": {"type": "array", "items": {"$ref": "Node"}}},
            "required": ["id", "nodes"],
        },
        [{"id": "a", "nodes": [{"id": "b", "nodes": []}]}],
        [{"id": "a", "nodes": [{}]}],
    ),
    (
        "TypeBox: a module",
        {
            "$defs": {
                "A": {"$id": "A", "type": "object", "properties": {"b": {"$ref": "B"}}, "required": ["b"]},
                "B": {
                    "$id": "B",
                    "type": "array",
                    "items": [{"const": 1, "type": "number"}, {"type": "null"}],
                    "additionalItems": False,
                    "minItems": 2,
                    "maxItems": 2,
                },
            },
            "$ref": "A",
        },
        [{"b": [1, None]}],
        [{"b": [1]}, {}],
    ),
    (
        "TypeBox: a record",
        {"type": "object", "patternProperties": {"^(.*)$": {"type": "number"}}},
        [{}, {"a": 1, "": 2}],
        [{"a": "1"}],
    ),
    (
        "schemars: sizes of Rust",
        {
            "type": "object",
            "required": ["port", "mode"],
            "properties": {
                "port": {"type": "integer", "format": "uint16", "minimum": 0.0, "maximum": 65535.0},
                "ratio": {"type": ["number", "null"], "format": "float", "default": None},
                "mode": {"oneOf": [{"type": "string", "enum": ["a"]}, {"type": "string", "const": "b"}]},
            },
        },
        [{"port": 80, "mode": "a"}, {"port": 0, "ratio": 0.5, "mode": "b"}, {"port": 0, "ratio": None, "mode": "b"}],
        [{"port": 65536, "mode": "a"}, {"port": 80, "mode": "c"}],
    ),
    (
        "an MCP server in Go, with editors' annotations",
        {
            "type": "object",
            "properties": {
                "paths": {"type": ["null", "array"], "items": {"type": "string", "format": "uri-template"}},
                "sort": {
                    "type": "string",
                    "enum": ["a", "b"],
                    "enumDescriptions": ["A", "B"],
                    "markdownDescription": "*",
                },
            },
            "required": ["paths"],
            "additionalProperties": {},
        },
        [{"paths": None}, {"paths": ["/a"], "sort": "a"}],
        [{"paths": [1]}, {"paths": [], "sort": "c"}],
    ),
    (
        "a bundle of documents, each with its URI",
        {
            "$id": "https://example.com/schemas/order.json",
            "type": "object",
            "properties": {
                "to": {"$ref": "address.json"},
                "from": {"$ref": "/schemas/address.json#street"},
                "item": {"$ref": "https://example.com/schemas/order.json#/$defs/a~1b~0c"},
            },
            "required": ["to", "from", "item"],
            "$defs": {
                "address": {
                    "$id": "address.json",
                    "type": "object",
                    "properties": {"street": {"$ref": "#/$defs/line"}},
                    "required": ["street"],
                    "$defs": {"line": {"$anchor": "street", "type": "string"}},
                },
                "a/b~c": {"type": "integer"},
            },
        },
        [{"to": {"street": "a"}, "from": "b", "item": 1}],
        [{"to": {"street": 1}, "from": "b", "item": 1}, {"to": {"street": "a"}, "from": {}, "item": 1}],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), [row[1:] for row in GENERATED], ids=[row[0] for row in GENERATED])
def test_a_schema_of_a_generator_lets_through_what_fits_it(schema: Any, good: list[Any], bad: list[Any]) -> None:
    grammar = json_grammar(schema)
    assert [value for value in good if not fits(grammar, json.dumps(value))] == []
    assert [value for value in bad if fits(grammar, json.dumps(value))] == []
    assert restated(schema, loose=True) == restated(schema)
    conformance = Conformance(schema)
    assert [value for value in good if conformance.broken(value)] == []
