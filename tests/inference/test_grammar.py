"""Grammars through the eyes of llama.cpp: what they let through fits, and what does not fit is kept out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.bundled import CHAT_MODEL
from inference.errors import EngineStopped, InvalidSchema
from inference.grammar import CallableFunction, Thought, json_grammar, tool_grammar
from inference.grammar.numbers import decimals, integers
from inference.llama import LlamaModel

MODEL = LlamaModel.load(CHAT_MODEL, weights=False)
END = min(MODEL.end_tokens())
ADD = CallableFunction("add", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, True)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def fits(grammar: str, text: str) -> bool:
    """Whether the text is a whole one of the grammar."""
    mask = MODEL.grammar(grammar)
    for token in MODEL.tokenize(text, parse_special=True):
        if not mask.allows(token):
            return False
        mask.accept(token)
    return mask.allows(END)


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
        ({"type": "string", "pattern": "a", "maxLength": 3}, "pattern"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [tagged("cat"), tagged("cat")]}, "oneOf"),
        ({"prefixItems": [{}]}, ""),
        ({"prefixItems": [], "items": False}, "prefixItems"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf"),
        ({"properties": {"a": {"items": {"not": {}}}}}, "properties.a.items.not"),
        ({"oneOf": []}, "oneOf"),
        ({"anyOf": [{"type": "integer"}, {"type": "colour"}]}, "anyOf[1].type"),
        ({"anyOf": []}, "anyOf"),
        ({"$ref": "#/$defs/nowhere"}, "$ref"),
        ({"$ref": "https://example.com/schema"}, "$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}}, "#/$defs/a.anyOf[0].$ref"),
        ({"type": "string", "maxLength": 1_000_000}, "maxLength"),
        ({"type": "string", "minLength": -1}, "minLength"),
        ({"type": "number", "minimum": 0.5}, "minimum"),
        ({"type": "string", "format": "phone"}, "format"),
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
    for _ in range(40):
        deep = {"items": deep}
    many = {"properties": {str(i): {"type": "string", "maxLength": 2000} for i in range(20)}}
    wide: dict[str, Any] = {"properties": {str(i): {} for i in range(3000)}}
    impossible: list[Any] = [{"type": "integer", "minimum": 2, "maximum": 1}, {"enum": []}, 5]
    for schema in (deep, many, wide, *impossible):
        with pytest.raises(InvalidSchema):
            json_grammar(schema)


def whole(expression: str, number: int | float) -> bool:
    return fits(f"root ::= {expression}\n", json.dumps(number))


@settings(max_examples=60, deadline=None)
@given(st.integers(-1200, 1200), st.integers(0, 1500), st.integers(-3000, 3000))
def test_ranges_of_whole_numbers_hold_exactly_their_numbers(least: int, span: int, number: int) -> None:
    for each in (number, least, least + span, least - 1, least + span + 1):
        assert whole(integers(least, least + span), each) == (least <= each <= least + span)


@settings(max_examples=60, deadline=None)
@given(st.integers(-30, 30), st.integers(1, 40), st.integers(-9000, 9000), st.booleans(), st.booleans())
def test_ranges_of_decimals_hold_exactly_their_numbers(
    least: int, span: int, hundredths: int, above: bool, below: bool
) -> None:
    grammar, most = decimals(least, least + span, above=above, below=below), least + span
    for each in (hundredths / 100, least, most, least + 0.25, most - 0.25, most + 0.25, least - 0.25):
        inside = (least < each or (each == least and not above)) and (each < most or (each == most and not below))
        assert whole(grammar, each) == inside


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
    grammar = tool_grammar([ADD], answer_schema={"const": 1})
    assert fits(grammar, "1") and fits(grammar, CALL) and not fits(grammar, "Hello")


def test_a_function_that_is_not_strict_takes_any_object_where_its_schema_cannot_be_held() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}}
    assert fits(tool_grammar([CallableFunction("add", odd)], required=True), CALL)
    with pytest.raises(InvalidSchema, match=r"add.parameters.properties.a.multipleOf"):
        tool_grammar([CallableFunction("add", odd, strict=True)])


def test_a_thought_may_come_first() -> None:
    free = json_grammar({"const": 1}, Thought("<think>", "</think>"))
    begun = json_grammar({"const": 1}, Thought("<think>", "</think>", begun=True))
    assert fits(free, "1") and fits(free, "<think>a < b</think>\n\n1") and not fits(free, "hm</think>1")
    assert fits(begun, "hm</think>1") and not fits(begun, "1")


def test_a_token_that_does_not_fit_is_never_passed_on() -> None:
    mask = MODEL.grammar(json_grammar({"const": 1}))
    (other,) = MODEL.tokenize("<tool_call>", parse_special=True)
    with pytest.raises(ValueError, match="does not fit"):
        mask.accept(other)
    assert mask.allowed(np.arange(MODEL.vocabulary_size)).sum() == 1


def test_a_clone_goes_its_own_way() -> None:
    mask = MODEL.grammar(json_grammar({"type": "boolean"}))
    clone = mask.clone()
    clone.accept(MODEL.tokenize("true", parse_special=False)[0])
    assert not mask.allows(END)
    assert mask.allows(MODEL.tokenize("false", parse_special=False)[0])


def test_a_closed_model_compiles_nothing() -> None:
    model = LlamaModel.load(CHAT_MODEL, weights=False)
    model.close()
    with pytest.raises(EngineStopped):
        model.grammar(json_grammar(True))


def test_a_grammar_that_llama_refuses_leaves_the_process_alive() -> None:
    script = (
        "from inference.bundled import CHAT_MODEL; from inference.llama import LlamaModel\n"
        "from inference.errors import InvalidSchema\n"
        "model = LlamaModel.load(CHAT_MODEL, weights=False)\n"
        "for text in ('root ::= root', 'root ::= nowhere', 'nonsense'):\n"
        "    try: model.grammar(text); print('compiled')\n"
        "    except InvalidSchema: print('refused')\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout.split()) == (0, ["refused"] * 3), ran.stderr
