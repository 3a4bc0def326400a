"""Schemas as zod 4 and pydantic 2 write them: the documents that fit are let through, and what is let through fits."""

from __future__ import annotations

import ipaddress
import json
from datetime import date, datetime, time, timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import numpy as np
import pytest
from pydantic import UUID4, UUID7, AnyUrl, BaseModel, Field, SecretStr, TypeAdapter

from inference.grammar.schema import json_grammar
from tests.inference.grammar.test_grammar import END, MODEL, VOCABULARY, fits

PIECES = MODEL.pieces()
CLOSING = {b'"', b"}", b"]", b'"}', b'"]', b'",', b"}}", b"]}"}
SAFE = 2**53 - 1

# As `z.toJSONSchema` has them; the patterns are zod's own.
ZOD: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("int", {"type": "integer", "minimum": -SAFE, "maximum": SAFE}, [0, -7, SAFE, -SAFE], [SAFE + 1, 1.5, "1"]),
    ("int64", {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, [12], [1.5]),
    (
        "email",
        {
            "type": "string",
            "format": "email",
            "pattern": "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@"
            "([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$",
        },
        ["ada@example.com", "a.b-c@mail.example.org"],
        ["ada", "ada@", "@example.com", "a b@example.com"],
    ),
    (
        "uuid",
        {
            "type": "string",
            "format": "uuid",
            "pattern": "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12})$",
        },
        ["3f2c8a54-09b1-4c6e-9f7a-2b1d0c9e8f7a"],
        ["3f2c8a54", "3f2c8a54-09b1-4c6e-9f7a-2b1d0c9e8f7"],
    ),
    (
        "date",
        {
            "type": "string",
            "format": "date",
            "pattern": "^(?:(?:\\d\\d[2468][048]|\\d\\d[13579][26]|\\d\\d0[48])-02-29|"
            "\\d{4}-(?:(?:0[13578]|1[02])-31))$",
        },
        ["2024-02-29", "2026-12-31"],
        ["2023-02-29", "2026-13-01", "22.11.2026"],
    ),
    ("datetime", {"type": "string", "format": "date-time"}, ["2026-11-22T13:05:00Z"], ["2026-11-22", "13:05"]),
    (
        "url",
        {"type": "string", "format": "uri"},
        ["https://example.com/a?b=c#d", "http://x:8080"],
        ["example.com", "a b"],
    ),
    ("ipv4", {"type": "string", "format": "ipv4"}, ["127.0.0.1", "255.255.255.255"], ["256.1.1.1", "1.1.1"]),
    ("ipv6", {"type": "string", "format": "ipv6"}, ["::1", "2001:db8::1", "fe80::"], [":::", "g::1"]),
    ("duration", {"type": "string", "format": "duration"}, ["P1DT2H", "PT5M", "P2W"], ["P", "1D", "PT"]),
    (
        "cuid2, a format of its own",
        {"type": "string", "format": "cuid2", "pattern": "^[0-9a-z]+$"},
        ["tz4a98xxat96iws9"],
        ["TZ", ""],
    ),
    (
        "base64",
        {
            "type": "string",
            "format": "base64",
            "contentEncoding": "base64",
            "pattern": "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$",
        },
        ["aGk=", "", "YWJj"],
        ["a", "a==="],
    ),
    ("pattern and length", {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8}, ["abc"], ["", "abcdefghi", "A"]),
    (
        "decimal of pydantic 2.12",
        {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"},
        ["1.50", "-3", "+0.1"],
        ["", ".", "1,5"],
    ),
    ("fractional bounds", {"type": "number", "minimum": 0.25, "maximum": 0.75}, [0.25, 0.7, 0.5, 0.75], [0.2, 0.8, 1]),
    ("nonnegative", {"type": "number", "minimum": 0}, [0, 0.5, 12.25], [-1, -0.5]),
    ("positive share", {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, [0.01, 1], [0, 1.5]),
    ("halves", {"type": "number", "multipleOf": 0.5}, [0.5, 3, -1.5], [0.25, 1.1]),
    ("multiples", {"type": "integer", "multipleOf": 5, "exclusiveMinimum": 0}, [5, 100], [0, 7, -5]),
    (
        "record",
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
        [{}, {"a": 1, "b": 2.5}],
        [{"a": "1"}, []],
    ),
    (
        "record of an enum",
        {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["red", "blue"]},
            "additionalProperties": {"type": "boolean"},
        },
        [{"red": True}, {"red": True, "blue": False}, {}],
        [{"green": True}],
    ),
    (
        "record of a pattern",
        {"type": "object", "propertyNames": {"pattern": "^x_"}, "additionalProperties": {"type": "boolean"}},
        [{"x_a": True}, {}],
        [{"a": True}, {"x_a": 1}],
    ),
    (
        "record of names with a length",
        {
            "type": "object",
            "propertyNames": {"type": "string", "minLength": 2, "maxLength": 3},
            "additionalProperties": {"type": "boolean"},
        },
        [{"ab": True, "abc": False}, {}],
        [{"a": True}, {"abcd": True}, {"ab": 1}],
    ),
    (
        "record of dates",
        {
            "type": "object",
            "propertyNames": {"type": "string", "format": "date", "pattern": "^.*$"},
            "additionalProperties": {"type": "boolean"},
        },
        [{"2026-11-22": True}],
        [{"2026-13-22": True}, {"a": True}],
    ),
    (
        "record of a literal",
        {"type": "object", "propertyNames": {"const": "a"}, "additionalProperties": {"type": "boolean"}},
        [{"a": True}, {}],
        [{"b": True}],
    ),
    (
        "tuple",
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}]},
        [["a", 1]],
        [["a"], [1, "a"], ["a", 1, 2]],
    ),
    (
        "tuple with a rest",
        {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "number"}},
        [["a"], ["a", 1, 2]],
        [["a", "b"]],
    ),
    (
        "tuple of draft 7",
        {"type": "array", "items": [{"type": "string"}, {"type": "number"}]},
        [["a", 1]],
        [["a"], [1, "a"], ["a", 1, 2]],
    ),
    (
        "tuple of draft 7 with a rest",
        {"type": "array", "items": [{"type": "string"}], "additionalItems": {"type": "number"}},
        [["a"], ["a", 1, 2]],
        [["a", "b"]],
    ),
    (
        "closed tuple of draft 7",
        {"type": "array", "items": [{"type": "string"}], "additionalItems": False, "minItems": 1, "maxItems": 1},
        [["a"]],
        [[], ["a", "b"]],
    ),
    (
        "nullable and optional",
        {
            "type": "object",
            "properties": {
                "a": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
                "b": {"default": 3, "type": "integer"},
            },
            "required": ["a"],
            "additionalProperties": False,
        },
        [{"a": None}, {"a": "x", "b": 3}],
        [{"b": 3}, {"a": 1}, {"a": None, "c": 1}],
    ),
    (
        "discriminated union",
        {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": k}, k: {}}, "required": ["kind", k]}
                for k in ("circle", "square")
            ]
        },
        [{"kind": "circle", "circle": 1}],
        [{"kind": "circle", "square": 1}, {"kind": "x"}],
    ),
    (
        "intersection",
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]},
            ]
        },
        [{"a": 1, "b": True}],
        [{"a": 1}, {"b": True}, {"a": True, "b": True}],
    ),
    (
        "at least one of two",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
        [{}, {"a": "x"}],
    ),
    (
        "notes of other tools",
        {"type": "string", "x-order": 3, "x-enum-varnames": ["A"], "enum": ["a", "b"]},
        ["a"],
        ["c"],
    ),
    (
        "recursive",
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
            "required": ["name", "children"],
            "additionalProperties": False,
        },
        [{"name": "a", "children": [{"name": "b", "children": []}]}],
        [{"name": "a", "children": [{}]}],
    ),
]


@pytest.mark.parametrize(("schema", "good", "bad"), [row[1:] for row in ZOD], ids=[row[0] for row in ZOD])
def test_a_schema_of_zod_lets_through_what_fits_it(schema: Any, good: list[Any], bad: list[Any]) -> None:
    grammar = json_grammar(schema)
    assert [value for value in good if not fits(grammar, json.dumps(value))] == []
    assert [value for value in bad if fits(grammar, json.dumps(value))] == []


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Money(BaseModel):
    amount: Annotated[float, Field(ge=0)]
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "EUR"


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: Annotated[float, Field(gt=0, le=1)]


class Square(BaseModel):
    kind: Literal["square"]
    side: Annotated[int, Field(ge=1, multiple_of=5, lt=1000)]


class Tree(BaseModel):
    label: Annotated[str, Field(min_length=1, max_length=5)]
    children: Annotated[list[Tree], Field(max_length=2)] = []


TYPES: list[Any] = [
    int, float, bool, str, bytes, date, time, datetime, timedelta, UUID, UUID4, UUID7, SecretStr, AnyUrl, Color,
    Path, Money, Tree, Circle | Square, list[int], dict[str, int], tuple[int, str], dict[Color, bool], int | None,
    list[Money | None], ipaddress.IPv4Address, ipaddress.IPv6Address, Literal["a", 1, None],
    Annotated[list[date], Field(min_length=2)], Annotated[Circle | Square, Field(discriminator="kind")],
    dict[Annotated[str, Field(pattern="^[a-z]{2}$")], Color],
    Annotated[str, Field(pattern=r"^\d{3}-[A-F]+$", max_length=6)], Annotated[float, Field(ge=-0.75, lt=0.3)],
]  # fmt: skip


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_what_a_schema_of_pydantic_lets_through_is_valid(type: Any) -> None:
    adapter = TypeAdapter[Any](type)
    grammar = json_grammar(adapter.json_schema())
    for seed in range(6):
        text = walked(grammar, seed)
        assert text is not None
        adapter.validate_json(text)


def walked(grammar: str, seed: int, tokens_max: int = 10_000) -> str | None:
    """A text of the grammar, at random but for a liking of what closes things; None if it does not come to an end."""
    random, place, text = np.random.default_rng(seed), VOCABULARY.compile(grammar).start(), b""
    for _ in range(tokens_max):
        fitting = np.flatnonzero(place.allowed(np.arange(len(PIECES)))).tolist()
        if END in fitting and (len(fitting) == 1 or random.random() < 0.5):
            return text.decode()
        others = [token for token in fitting if token != END]
        closing = [token for token in others if PIECES[token] in CLOSING]
        token = int(random.choice(closing if closing and random.random() < 0.5 else others))
        assert place.allows(token)
        place.accept(token)
        text += PIECES[token]
    return None
