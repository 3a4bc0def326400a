"""References within a schema: where they lead, another validator sees the same, and so does ours of finished values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from inference.errors import InvalidSchema
from inference.grammar.conformance import Conformance
from inference.grammar.keywords import URI_CHARS_MAX, References
from inference.grammar.schema import json_grammar, restated
from tests.inference.grammar.test_grammar import fits

URI = "https://example.com/schemas/a.json"
NAMES: Any = {
    "Page<User>": {"type": "integer"},
    "a/b": {"type": "null"},
    "a~b": {"type": "boolean"},
    "a%b": {"type": "string"},
    "list": {"anyOf": [{"const": "x"}, {"type": "array", "prefixItems": [{"const": "y"}, {"const": "z"}]}]},
    "anchored": {"$anchor": "here", "const": "anchored"},
    "named": {"$id": "b.json", "const": "b", "$defs": {"inner": {"$anchor": "here", "const": "inner"}}},
    "urn": {"$id": "urn:example:c", "const": "c", "$defs": {"inner": {"const": "urn"}}},
    "": {"const": "nameless"},
}
VALUES: list[Any] = [
    1,
    None,
    True,
    "s",
    "x",
    "y",
    "z",
    "anchored",
    "b",
    "inner",
    "c",
    "urn",
    "nameless",
    {"p": {}},
    ["y", "z"],
]


LOCAL = [
    "#/$defs/Page<User>", "#/$defs/Page%3CUser%3E", "#/%24defs/Page%3cUser%3e", "#/$defs/a~1b", "#/$defs/a~0b",
    "#/$defs/a%7E1b", "#/$defs/a%25b", "#/$defs/", "#/$defs/list/anyOf/0", "#/$defs/list/anyOf/1",
    "#/$defs/list/anyOf/1/prefixItems/1", "#here", "b.json", "b.json#here", "urn:example:c",
    "urn:example:c#/$defs/inner",
]  # fmt: skip
BY_URI = [
    *LOCAL, "./b.json#/$defs/inner", "/schemas/b.json", "https://example.com/schemas/b.json#", f"{URI}#here",
    f"{URI}#/$defs/list/anyOf/1/prefixItems/0",
]  # fmt: skip


@pytest.mark.parametrize(("own", "reference"), [*((None, each) for each in LOCAL), *((URI, each) for each in BY_URI)])
def test_a_reference_leads_to_where_another_validator_finds_it(own: str | None, reference: str) -> None:
    schema: Any = {"$defs": NAMES, "type": "object", "properties": {"p": {"$ref": reference}}, "required": ["p"]}
    schema |= {"$id": own} if own else {}
    grammar, other, own_check = json_grammar(schema), Draft202012Validator(schema), Conformance(schema)
    fitting = [value for value in VALUES if fits(grammar, json.dumps({"p": value}))]
    assert fitting and fitting == [value for value in VALUES if other.is_valid({"p": value})]
    assert fitting == [value for value in VALUES if own_check.broken({"p": value}) is None]


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/nowhere", "#/$defs/list/anyOf/2", "#/$defs/list/anyOf/-1", "#/$defs/list/anyOf/1x", "#nowhere",
        "#/$defs/list/anyOf/²", f"#/$defs/list/anyOf/{'9' * 5_000}", "#/$defs/list/anyOf/0/const/0", "#/$defs/a%2",
        "c.json", "https://example.com/other.json", "http://[", "file:///etc/passwd", "a" * (URI_CHARS_MAX + 1),
        "0/p", "http://json-schema.org/draft-07/schema#", 5, None,
    ],
)  # fmt: skip
def test_a_reference_to_nothing_in_the_schema_is_refused_with_its_place_and_shortly(reference: Any) -> None:
    with pytest.raises(InvalidSchema) as refused:
        json_grammar({"$id": URI, "$defs": NAMES, "properties": {"p": {"$ref": reference}}})
    assert refused.value.path == "properties.p.$ref" and len(str(refused.value)) < 250


def test_a_schema_in_a_document_of_its_own_refers_to_that_document() -> None:
    inner = {"$id": "b.json", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"const": "inner"}}}
    schema = {"$id": URI, "properties": {"p": inner}, "$defs": {"a": {"const": "outer"}}}
    grammar = json_grammar(schema)
    assert fits(grammar, '{"p": {"x": "inner"}}') and not fits(grammar, '{"p": {"x": "outer"}}')


def test_only_schemas_have_a_name() -> None:
    """Not what is a value of theirs, nor a property that is called so."""
    decoys = {"const": {"$anchor": "a"}, "default": {"$id": "a"}, "properties": {"$anchor": {"type": "string"}}}
    assert References({"$defs": {"x": decoys}}).find("#a", "") is None
    named = {"properties": {"enum": {"$anchor": "a"}, "const": {"$id": "b"}}}
    assert [References(named).find(reference, "") is None for reference in ("#a", "b")] == [False, False]


def test_references_in_a_circle_are_refused_and_through_text_are_recursion() -> None:
    ways: list[Any] = [
        {"$defs": {"a": {"$ref": "#/%24defs/a"}}, "$ref": "#/$defs/a"},
        {"$defs": {"a": {"$anchor": "x", "anyOf": [{"type": "null"}, {"$ref": "#x"}]}}, "$ref": "#/$defs/a"},
        {"anyOf": [{"$ref": "#/anyOf/1"}, {"anyOf": [{"$ref": "#/anyOf/0"}]}]},
    ]
    for schema in ways:
        with pytest.raises(InvalidSchema, match="leads to itself"):
            json_grammar(schema)
    tree = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/anyOf/1"}}]}
    assert fits(json_grammar(tree), "[[], [[]]]") and not fits(json_grammar(tree), "[null]")


def test_what_many_references_lead_to_is_written_once() -> None:
    """Each of these schemas contains the next one, and references lead to all of them."""
    levels, names = 25, [f"name_{i}" for i in range(200)]
    schema: Any = {"enum": names}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"c": schema}}
    ways = {f"r{i}": {"$ref": "#" + "/properties/c" * (i + 1)} for i in range(levels)}
    schema["properties"] |= ways
    for loose in (False, True):
        assert json.dumps(restated(schema, loose=loose)).count('"name_7"') == 1
