"""Values against the schemas that clients insist on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.grammar.conformance import Conformance

NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}, "id": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string"}, "77812", (77812, "type of the whole")),
        ({"properties": {"n": {"type": "integer"}}}, {"n": 3}, ({"n": "3"}, "type of n")),
        ({"required": ["n"]}, {"n": None}, ({}, "required of the whole")),
        ({"properties": {}, "additionalProperties": False}, {}, ({"n": 1}, "n is not allowed")),
        ({"properties": {"n": True}, "additionalProperties": {"type": "null"}}, {"n": 1}, ({"m": 1}, "type of m")),
        ({"items": {"enum": ["a", "b"]}}, ["a", "b"], (["a", "c"], "enum of [1]")),
        ({"prefixItems": [{"type": "null"}], "items": False}, [None], ([None, 1], "[1] is not allowed")),
        ({"items": [{"type": "null"}], "additionalItems": {"const": 1}}, [None, 1], ([None, 2], "const of [1]")),
        ({"patternProperties": {"^a": {"type": "null"}}}, {"ab": None, "b": 1}, ({"ab": 1}, "type of ab")),
        ({"anyOf": [{"type": "null"}, {"uniqueItems": True}]}, None, ([1, 1], "uniqueItems of the whole")),
        ({"uniqueItems": True}, [1, 2], ([1, 1], "uniqueItems of the whole")),
        ({"minimum": 1, "maximum": 9}, 3, (10, "maximum of the whole")),
        ({"pattern": "^a+$"}, "aa", ("b", "pattern of the whole")),
        ({"type": ["string", "null"]}, None, (1, "type of the whole")),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, (1, "anyOf of the whole")),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, 1.5, (1, "oneOf of the whole")),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, 1, (3, "maximum of the whole")),
        (
            {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
            {"id": "a", "next": {"id": "b", "next": None}},
            ({"id": "a", "next": {"id": 1}}, "anyOf of next"),
        ),
    ],
)
def test_a_value_that_does_not_fit_is_told_with_its_place(schema: Any, right: Any, wrong: tuple[Any, str]) -> None:
    assert Conformance(schema).broken(right) is None
    assert Conformance(schema).broken(wrong[0]) == wrong[1]


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(?=a)b"},
        {"type": "no such type"},
        {"$ref": "#/nothing"},
        {"$ref": "#"},
        {"enum": 3},
        {"format": "date"},
        {"patternProperties": {"^(?=a)b": {"type": "null"}}, "additionalProperties": False},
    ],
)
def test_what_cannot_be_checked_counts_as_met(schema: Any) -> None:
    assert Conformance(schema).broken({"ab": 1}) is None


def test_a_union_of_references_to_itself_takes_bounded_work() -> None:
    """Otherwise this would take years."""
    branch = {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}
    value: Any = 1
    for _ in range(31):
        value = {"n": value}
    assert Conformance({"anyOf": [branch] * 40 + [{"type": "null"}]}).broken(value) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("nxy"), inner, max_size=3),
    max_leaves=8,
)


@given(value=json_values, schema=json_values)
def test_nothing_that_clients_send_as_a_schema_is_an_error(value: Any, schema: Any) -> None:
    kinds = {"properties": schema, "items": schema, "anyOf": schema, "prefixItems": schema, "enum": schema}
    for each in ({keyword: part} for keyword, part in kinds.items()):
        Conformance(each).broken(value)
