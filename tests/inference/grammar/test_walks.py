"""Random walks through what the grammar of a schema lets through: where they end, another validator finds no fault."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from inference.errors import GrammarFailed, InvalidSchema
from inference.grammar.schema import json_grammar
from tests.inference.grammar.test_grammar import END, MODEL, VOCABULARY

PIECES = MODEL.pieces()
EVERY = np.arange(len(PIECES))
WALK_TOKENS = 300
# Tokens that bring a value nearer to its end are taken this often: most walks are to come to theirs.
ENDING = 0.5
ENDINGS = tuple(b'"}],0')

WORDS = st.text("abcdeä ", min_size=1, max_size=5)
SCALARS = (
    st.builds(
        lambda n, span: {"type": "integer", "minimum": n, "maximum": n + span}, st.integers(-99, 99), st.integers(0, 50)
    )
    | st.builds(lambda n: {"type": "string", "maxLength": n, "minLength": n // 2}, st.integers(0, 6))
    | st.sampled_from(
        [{"type": "string", "pattern": p} for p in ("^[a-c]{2,4}$", "^a|b$", "x+y?", "^(ab|cd)*$", "[^a]$")]
    )
    | st.sampled_from(
        [{"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}, {"type": "boolean"}, {"type": "null"}]
    )
    | st.lists(WORDS | st.integers(-9, 9) | st.none(), min_size=1, max_size=4).map(lambda options: {"enum": options})
    | st.just({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100})
)


def _object(properties: dict[str, Any], required: int, more: Any) -> dict[str, Any]:
    names = [name for i, name in enumerate(properties) if required >> i & 1]
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": more}


def _larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.builds(_object, st.dictionaries(WORDS, inner, max_size=4), st.integers(0, 15), st.booleans() | inner)
        | st.builds(
            lambda item, n: {"type": "array", "items": item, "minItems": n, "maxItems": n + 2}, inner, st.integers(0, 2)
        )
        | st.builds(
            lambda first, rest: {"type": "array", "prefixItems": first, "items": rest, "maxItems": 5},
            st.lists(inner, min_size=1, max_size=2),
            inner,
        )
        | st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches})
        | st.builds(lambda one: {"$ref": "#/$defs/a", "$defs": {"a": one}}, SCALARS)
    )


def schema_of(drawn: Any) -> dict[str, Any]:
    """References lead to the root's definitions."""
    definitions = {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 2}}
    return {**_without_definitions(drawn), "$defs": definitions}


def _without_definitions(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_definitions(each) for key, each in value.items() if key != "$defs"}
    return [_without_definitions(each) for each in value] if isinstance(value, list) else value


SCHEMAS = st.recursive(SCALARS, _larger, max_leaves=6).map(schema_of)
SEEDS = st.integers(0, 2**32 - 1)


def walk(schema: dict[str, Any], seed: int) -> None:
    try:
        place = VOCABULARY.compile(json_grammar(schema)).start()
    except InvalidSchema:
        return
    random, text = np.random.default_rng(seed), b""
    try:
        for _ in range(WALK_TOKENS):
            fitting = np.flatnonzero(place.allowed(EVERY)).tolist()
            assert fitting, "a way that leads nowhere"
            if END in fitting:
                event("came to its end")
                Draft202012Validator(schema).validate(json.loads(text))
                return
            ending = [token for token in fitting if PIECES[token][:1] and PIECES[token][0] in ENDINGS]
            token = int(random.choice(ending if ending and random.random() < ENDING else fitting))
            place.accept(token)
            text += PIECES[token]
    except GrammarFailed:
        pass


@settings(deadline=None)
@given(schema=SCHEMAS, seed=SEEDS)
def test_a_walk_that_comes_to_its_end_is_an_instance_of_the_schema(schema: dict[str, Any], seed: int) -> None:
    walk(schema, seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=20_000, deadline=None)
@given(schema=SCHEMAS, seed=SEEDS)
def test_many_walks_that_come_to_their_ends_are_instances(schema: dict[str, Any], seed: int) -> None:
    walk(schema, seed)
