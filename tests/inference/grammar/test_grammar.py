"""Grammars through the eyes of llguidance: what they let through fits, and what does not fit is kept out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.bundled import CHAT_MODEL
from inference.errors import InvalidSchema
from inference.grammar.calls import CallableFunction, tool_grammar
from inference.grammar.constraint import Vocabulary
from inference.grammar.lark import ReasoningMarks, by_token, grammar, up_to
from inference.grammar.schema import json_grammar, restated
from inference.llama import LlamaModel

MODEL = LlamaModel.load(CHAT_MODEL, weights=False)
VOCABULARY = Vocabulary(MODEL.pieces(), MODEL.end_tokens())
END = min(MODEL.end_tokens())
ADD = CallableFunction("add", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, True)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def fits(grammar: str, text: str) -> bool:
    """Whether the text is a whole one of the grammar."""
    place = VOCABULARY.compile(grammar).start()
    for token in MODEL.tokenize(text, parse_special=True):
        if not place.allows(token):
            return False
        place.accept(token)
    return place.allows(END)


def accepts(schema: Any, value: Any) -> bool:
    return fits(json_grammar(schema), json.dumps(value, ensure_ascii=False))


def tagged(kind: str) -> Any:
    return {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ["", 'a "quoted" \\ line\n', "ä€😀"], [1, None]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "a\nb"], ["a", "abcd"]),
        (
            {"type": "string", "format": "date"},
            ["2024-02-29", "2000-02-29"],
            ["2023-02-29", "1900-02-29", "2024-04-31"],
        ),
        ({"type": "integer", "minimum": -3, "exclusiveMaximum": 12}, [-3, 0, 11], [-4, 12, 120]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, [0.01, 0.5, 1], [0, 1.5, -0.5]),
        ({"type": "number"}, [0, -1.5, 1e20], ["1"]),
        ({"type": ["boolean", "null"]}, [True, None], [0]),
        ({"enum": ["red", 3, None]}, ["red", 3, None], ["blue"]),
        ({"const": {"a": [1]}}, [{"a": [1]}], [{"a": [2]}]),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2},
            [[None], [None] * 2],
            [[], [None] * 3],
        ),
        ({"type": "object"}, [{}, {"a": {"b": [1]}}], [[]]),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, [{"x": True}], [{"x": 1}]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [1.5, None]),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [1.5, None]),
        ({"oneOf": [tagged("cat"), tagged("dog")]}, [{"kind": "cat"}, {"kind": "dog"}], [{"kind": "cow"}, {}]),
        (
            {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 1},
            [[1], [1, "a"]],
            [[], ["a"], [1, "a", 2]],
        ),
        ({"prefixItems": [{"type": "integer"}] * 2, "minItems": 2, "maxItems": 2}, [[1, 2]], [[], [1], [1, 2, 3]]),
        ({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}, ["AB-1", "XY-2024"], ["ab-1", "AB-", "AB-1x"]),
        ({"required": ["a"], "properties": {"a": {}, "b": {}}}, [{"a": 1}, {"a": [], "b": {}}], [{}, {"b": 1}]),
        (True, [1, "a", None, [{}]], []),
        ({"type": "integer", "format": "int32"}, [1, 2**31 - 1, -(2**31)], ["1", 2**31]),
        ({"type": "integer", "format": "uint8", "nullable": True, "minimum": 9}, [9, 255, None], [8, 256]),
        ({"type": "integer", "format": "int8", "enum": [1000]}, [1000], [1]),
        ({"type": ["number", "null"], "format": "float"}, [1.5, None], ["1"]),
        (
            {"type": "object", "properties": {"a": {"type": "boolean", "format": "x"}}, "format": "y"},
            [{"a": True}],
            [[]],
        ),
        ({"type": "array", "items": {"type": "null", "format": "date"}, "format": "table"}, [[None]], [["2024-02-29"]]),
        ({"type": "string", "format": "phone"}, ["any"], [1]),
        ({"type": ["string", "integer"], "format": "date"}, ["2024-02-29", 3], ["any"]),
        ({"format": "int64"}, [1, "a"], []),
        ({"format": "date"}, ["2024-02-29"], ["any"]),
        ({"enum": ["2024-02-30"], "format": "date"}, ["2024-02-30"], ["2024-02-29"]),
        ({"type": "string", "nullable": True, "enum": ["a", None]}, ["a", None], ["b"]),
        ({"type": ["string", "integer"], "nullable": True}, ["a", 1, None], [True]),
        ({"type": "string", "nullable": False}, ["a"], [None]),
        (
            {"type": "number", "minimum": 1, "exclusiveMinimum": True, "maximum": 3, "exclusiveMaximum": False},
            [2, 3],
            [1, 4],
        ),
        ({"properties": {"a": False, "b": {}}, "required": ["b"]}, [{"b": 1}], [{"a": 1, "b": 1}]),
        ({"oneOf": [{"not": {}}, {"type": "string"}, {"type": "null"}]}, ["a", None], [1]),
    ],
)
def test_a_schema_lets_through_what_fits_it(schema: Any, good: list[Any], bad: list[Any]) -> None:
    assert [value for value in good if not accepts(schema, value)] == []
    assert [value for value in bad if accepts(schema, value)] == []


def test_optional_properties_may_be_left_out_in_any_combination() -> None:
    schema = {"properties": {name: {"type": "null"} for name in "abc"}, "required": ["b"]}
    every = [{"a", "b", "c"}, {"a", "b"}, {"b", "c"}, {"b"}, {"a"}, {"c"}, {"a", "c"}, set[str]()]
    values = [{name: None for name in "abc" if name in names} for names in every]
    assert [accepts(schema, value) for value in values] == [True] * 4 + [False] * 4


def test_a_schema_may_contain_itself() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node | {"required": ["next"]}}}
    assert accepts(schema, {"next": {"next": {"next": None}}})
    assert not accepts(schema, {"next": {}})


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "(?=a)"}}}, "properties.a.pattern"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [tagged("cat"), tagged("cat")]}, "oneOf"),
        ({"prefixItems": [{}], "minItems": 2}, ""),
        ({"prefixItems": [], "items": False}, "prefixItems"),
        ({"type": "integer", "multipleOf": 0}, "multipleOf"),
        ({"type": "number", "multipleOf": 0.07}, "multipleOf"),
        ({"type": "integer", "multipleOf": 4294967295}, "multipleOf"),
        ({"type": "array", "items": {}, "contains": {}}, "contains"),
        ({"type": "array", "uniqueItems": 1}, "uniqueItems"),
        ({"propertyNames": {"not": {}}}, "propertyNames"),
        ({"properties": {"a": {"enum": ["x\u0001"]}}}, "properties.a"),
        ({"properties": {"a": {}}, "patternProperties": {"^x": {}}}, "patternProperties"),
        (
            {"properties": {"a": {"enum": [1]}}, "anyOf": [{"additionalProperties": {"not": {}}, "required": ["a"]}]},
            "anyOf[0].additionalProperties",
        ),
        ({"$ref": "#1/$defs/a", "$defs": {"a": {}}}, "$ref"),
        ({"type": "string", "unknown": 1}, "unknown"),
        ({"properties": {"a": {"items": {"not": {}}}}}, "properties.a.items.not"),
        ({"oneOf": []}, "oneOf"),
        ({"anyOf": [{"type": "integer"}, {"type": "colour"}]}, "anyOf[1].type"),
        ({"anyOf": []}, "anyOf"),
        ({"$ref": "#/$defs/nowhere"}, "$ref"),
        ({"$ref": "https://example.com/schema"}, "$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}}, "#/$defs/a.anyOf[0].$ref"),
        ({"type": "string", "maxLength": 1_000_000}, "maxLength"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"type": "number", "minimum": "0"}, "minimum"),
        ({"type": "integer", "minimum": 1e30}, ""),
        ({"type": "string", "format": 5}, "format"),
        ({"properties": {"a": {"not": {}}}, "required": ["a"]}, "required"),
        ({"anyOf": [False, {"not": True}]}, "anyOf"),
        ({"required": ["a"], "additionalProperties": False}, "required"),
        ({"properties": {"a": []}}, "properties.a"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_with_its_place(schema: Any, path: str) -> None:
    with pytest.raises(InvalidSchema) as refused:
        json_grammar(schema)
    assert refused.value.path == path


def test_contradictions_and_excess_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"items": deep}
    wide = {"anyOf": [{"const": i} for i in range(300)]}
    chain: dict[str, Any] = {str(i): {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(100)} | {"100": {}}
    far = {"$ref": "#/$defs/0", "$defs": chain}
    impossible: list[Any] = [{"type": "integer", "minimum": 2, "maximum": 1}, {"enum": []}, 5]
    for schema in (deep, wide, far, *impossible):
        with pytest.raises(InvalidSchema):
            json_grammar(schema)


@settings(max_examples=60, deadline=None)
@given(st.integers(-1200, 1200), st.integers(0, 1500), st.integers(-3000, 3000))
def test_ranges_of_whole_numbers_hold_exactly_their_numbers(least: int, span: int, number: int) -> None:
    schema = {"type": "integer", "minimum": least, "exclusiveMaximum": least + span + 1}
    for each in (number, least, least + span, least - 1, least + span + 1):
        assert accepts(schema, each) == (least <= each <= least + span)


@settings(max_examples=60, deadline=None)
@given(st.integers(-3000, 3000), st.integers(1, 400), st.integers(-9000, 9000), st.booleans(), st.booleans())
def test_ranges_of_decimals_hold_exactly_their_numbers(
    least: int, span: int, hundredths: int, above: bool, below: bool
) -> None:
    low, high = least / 100, (least + span) / 100
    schema = {
        "type": "number",
        "exclusiveMinimum" if above else "minimum": low,
        "exclusiveMaximum" if below else "maximum": high,
    }
    for each in (hundredths / 100, low, high, low + 0.25, high - 0.25, high + 0.25, low - 0.25):
        each = round(each, 2)
        each = int(each) if each.is_integer() else each
        inside = (low < each or (each == low and not above)) and (each < high or (each == high and not below))
        assert accepts(schema, each) == inside


def test_calls_are_forced_or_free() -> None:
    required, auto = tool_grammar([ADD], required=True), tool_grammar([ADD])
    assert fits(required, CALL) and fits(required, f"{CALL}\n{CALL}")
    assert not fits(required, "Hello") and not fits(required, "")
    assert fits(auto, "Less < more <tool") and fits(auto, f"First:\n{CALL}") and fits(auto, "")
    for broken in (CALL.replace("1", '"one"'), CALL.replace("add", "sub"), "<tool_call>now", "a <<tool_call>"):
        assert not fits(auto, broken) and not fits(required, broken)


def test_one_call_is_all_where_only_one_may_be_made() -> None:
    assert not fits(tool_grammar([ADD], required=True, calls_max=1), f"{CALL}\n{CALL}")


def test_an_answer_in_a_format_may_be_a_call_instead() -> None:
    grammar = tool_grammar([ADD], answer=restated({"const": 1}))
    assert fits(grammar, "1") and fits(grammar, CALL) and not fits(grammar, "Hello")


def test_a_function_that_is_not_strict_is_held_to_what_a_grammar_can_hold() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 2}}}, "required": ["a"]}
    loose = tool_grammar([CallableFunction("add", odd)], required=True)
    assert (
        fits(loose, CALL)
        and not fits(loose, CALL.replace("1", '"one"'))
        and not fits(loose, CALL.replace('"a"', '"b"'))
    )
    with pytest.raises(InvalidSchema, match=r"add.parameters.properties.a.not"):
        tool_grammar([CallableFunction("add", odd, strict=True)])


@pytest.mark.parametrize("parameters", [{}, {"not": {}}, {"$ref": "#/nowhere"}, {"description": "what you like"}])
def test_arguments_are_an_object_whatever_the_schema_says(parameters: dict[str, Any]) -> None:
    grammar = tool_grammar([CallableFunction("add", parameters)], required=True)
    assert fits(grammar, CALL) and not fits(grammar, CALL.replace('{"a": 1}', "1"))


def test_a_thought_may_come_first() -> None:
    free = json_grammar({"const": 1}, ReasoningMarks("<think>", "</think>"))
    begun = json_grammar({"const": 1}, ReasoningMarks("<think>", "</think>", begun=True))
    assert fits(free, "1") and fits(free, "<think>a < b</think>\n\n1") and not fits(free, "hm</think>1")
    assert fits(begun, "hm</think>1") and not fits(begun, "1")


def test_control_tokens_in_texts_are_told_by_their_ids_and_in_json_and_patterns_stay() -> None:
    rules = {"body": r'"\n{" arguments "}\n</call>"', "arguments": '%json {"const": "<call>"}', "ID": r'/"<call>"/'}
    told = by_token(grammar('"<call>" body ID', rules), {"<call>": 3, "</call>": 4})
    assert told.splitlines()[:4] == [
        r'body: "\n{" arguments ("}\n" <[4]>)',
        'arguments: %json {"const": "<call>"}',
        r'ID: /"<call>"/',
        "start: (<[3]>) body ID",
    ]


def test_what_ends_with_a_control_token_needs_not_be_lazy() -> None:
    written = grammar("answer", {"before[lazy]": up_to("<call>"), "said[lazy]": up_to('"')})
    assert by_token(written, {"<call>": 3}).splitlines()[:2] == [
        "before: ANYTHING (<[3]>)",
        r'said[lazy]: ANYTHING "\""',
    ]
    assert by_token(written, {}) == written
