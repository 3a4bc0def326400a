"""Schemas that were made to cost much: they are refused or held within limits of work, and others go on meanwhile."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from time import thread_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.config import EngineConfig
from inference.errors import GrammarFailed, InvalidSchema
from inference.generation import Finish, Sampling
from inference.grammar.lark import grammar, value_of
from inference.grammar.schema import json_grammar, restated
from inference.model import ChatModel
from inference.prompt import ChatMessage
from tests.inference.grammar.test_grammar import END, MODEL, VOCABULARY

PIECES = MODEL.pieces()


def objects_of_constants(count: int, names: int) -> dict[str, Any]:
    """Every branch names its values, and no one property is the same in two of them."""
    branches = []
    for i in range(count):
        properties = {f"n{j}": {"const": f"{i}x{j}"} for j in range(names)}
        branches.append({"type": "object", "properties": properties, "required": [*properties]})
    return {"oneOf": branches}


def many_references(count: int) -> dict[str, Any]:
    """Each would be a definition of its own, though they lead to the same place."""

    def spelt(name: str, i: int) -> str:
        return "".join(f"%{ord(letter):02x}" if i >> place & 1 else letter for place, letter in enumerate(name))

    return {
        "$defs": {"place-of-all": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,50}$"}}},
        "properties": {f"p{i}": {"$ref": f"#/$defs/{spelt('place-of-all', i)}"} for i in range(count)},
    }


def referred_to_at_every_level(levels: int, names: int) -> dict[str, Any]:
    """Whatever is at the end would be repeated for each reference to what surrounds it."""
    schema: dict[str, Any] = {"enum": [f"name {i}" for i in range(names)]}
    for _ in range(levels):
        schema = {"properties": {"c": schema}}
    schema["properties"] |= {f"r{i}": {"$ref": "#" + "/properties/c" * i} for i in range(1, levels)}
    return schema


def wrong_at_every_level(levels: int) -> dict[str, Any]:
    """Each level is tried several times, where nobody insists on it."""
    schema: dict[str, Any] = {"type": "string"}
    for i in range(levels):
        wrong = {"minProperties": "many", "required": "all", "additionalProperties": 1, "type": f"kind {i}"}
        schema = {**wrong, "properties": {"a": schema}, "items": schema if i > levels - 10 else {}}
    return schema


def uris_upon_uris(levels: int) -> dict[str, Any]:
    """Each makes the ones within it longer."""
    schema: dict[str, Any] = {"$anchor": "end"}
    for i in range(levels):
        schema = {"$id": f"{'a' * 200}/", "$anchor": f"n{i}", "properties": {"a": schema, "b": {"$ref": "#end"}}}
    return {"$id": "https://example.com/", **schema}


def chain(length: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{length}": {}}}


# Compiled, and too much at the second token of a text.
MANY_WAYS_TO_SKIP: dict[str, Any] = {"type": "string", "pattern": "^" + "x.*" * 30 + "$", "maxLength": 3000}
ATTACKS: dict[str, Any] = {
    "nullable groups 2,000 times": {"type": "string", "pattern": "(.?){2000}"},
    "nullable groups 200 times": {"type": "string", "pattern": "(.?){200}"},
    "20 kB of constants": objects_of_constants(60, 20),
    "60 kB of constants that differ nowhere": {"oneOf": [{"enum": [f"v{j}" for j in range(200)]}] * 40},
    "references to one place by many names": many_references(600),
    "a chain of references": chain(700),
    "references to all that surrounds a place": referred_to_at_every_level(28, 500),
    "wrong at every level": wrong_at_every_level(28),
    "URIs upon URIs": uris_upon_uris(28),
    "thousands of anchors": {
        "$defs": {f"d{i}": {"$anchor": f"a{i}", "$id": f"b{i}"} for i in range(3000)},
        "properties": {f"p{i}": {"$ref": f"b{i % 3000}#a{i}"} for i in range(900)},
    },
    "references in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "a pattern of exponentially many states": {"type": "string", "pattern": "(a|b)*a(a|b){30}"},
    "stars within stars": {"type": "string", "pattern": "((a*)*)*b", "maxLength": 2000},
    "repetitions of repetitions": {"type": "string", "pattern": "((.{1000}){1000}){1000}"},
    "many ways to skip": MANY_WAYS_TO_SKIP,
    "groups as deep as can be": {"type": "string", "pattern": "(" * 900 + "a" + ")" * 900},
    "six thousand properties": {
        "properties": {f"{i}": {"properties": {f"{j}": {} for j in range(600)}} for i in range(10)}
    },
    "a hundred million items": {"type": "array", "items": {"type": "integer"}, "minItems": 10**8},
    "texts of a gigabyte": {"type": "string", "minLength": 10**9},
    "steps of four billion": {"type": "integer", "multipleOf": 4_294_967_295},
    "branches of thousands of required properties": {
        "oneOf": [
            {
                "type": "object",
                "properties": {f"p{i}": {} for i in range(4000)},
                "required": [f"p{i}" for i in range(4000)],
            }
        ]
        * 2
    },
    "two thousand optional properties": {"properties": {f"p{i}": {"type": "integer"} for i in range(2000)}},
    "300 arrays at once": {
        "anyOf": [{"type": "array", "items": {"type": "integer", "minimum": i}} for i in range(250)]
    },
    "unions of unions": {"allOf": [{"anyOf": [{"properties": {f"k{i}{j}": {}}} for j in range(10)]} for i in range(8)]},
    "names that must not be others": {
        "type": "object",
        "patternProperties": {f"^(a|b)*a(a|b){{12}}{i}$": {"type": "integer"} for i in range(10)},
    },
}


@pytest.mark.parametrize("schema", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_costs_little_to_refuse_or_to_follow(schema: Any) -> None:
    """In what an everyday schema takes to compile, a millisecond; without limits these take 3,000 times as much to for
    ever."""
    ordinary = min(compile_s(json_grammar({"properties": {"a": {"type": "integer"}}})) for _ in range(5))
    started = thread_time()
    try:
        try:
            grammar = json_grammar(schema)
        finally:
            assert thread_time() - started < 100 * ordinary
        assert compile_s(grammar) < 1_000 * ordinary
        assert slowest_token_s(grammar, seed=1) < 200 * ordinary
    except InvalidSchema as error:
        assert len(str(error)) < 500


@pytest.mark.parametrize("schema", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_costs_little_where_nobody_insists_on_the_schema(schema: Any) -> None:
    """What is left of it is at most a few times as long."""
    ordinary = min(compile_s(json_grammar({"properties": {"a": {"type": "integer"}}})) for _ in range(5))
    for outline in (False, True):
        started = thread_time()
        grammar = grammar_of(restated(schema, loose=True, outline=outline))
        assert thread_time() - started < 300 * ordinary
        assert len(grammar) < 10 * len(json.dumps(schema)) + 10_000
        try:
            assert compile_s(grammar) < 1_000 * ordinary
        except InvalidSchema as error:
            assert len(str(error)) < 500


def grammar_of(document: dict[str, Any]) -> str:
    return grammar("value", {"value": value_of(document)})


def compile_s(grammar: str) -> float:
    started = thread_time()
    VOCABULARY.compile(grammar)
    return thread_time() - started


def slowest_token_s(grammar: str, seed: int) -> float:
    """Of a text at random, until it ends or is too much."""
    random, place, slowest = np.random.default_rng(seed), VOCABULARY.compile(grammar).start(), 0.0
    everything = np.arange(len(PIECES))
    for _ in range(300):
        started = thread_time()
        try:
            fitting = np.flatnonzero(place.allowed(everything))
            fitting = fitting[fitting != END]
            if not fitting.size:
                break
            token = int(random.choice(fitting))
            assert place.allows(token)
            place.accept(token)
        except GrammarFailed:
            break
        finally:
            slowest = max(slowest, thread_time() - started)
    return slowest


@pytest.mark.parametrize(
    ("schema", "tokens"),
    [
        # 250 ms a token with four times the fuel.
        pytest.param(ATTACKS["many ways to skip"], 3, id="a step looks at too much"),
        # 30 ms a token, and megabytes, with eight times as many.
        pytest.param({"type": "string", "pattern": "^.*(a.{60}|b.{61}|c.{62}).*$"}, 100, id="too many states"),
    ],
)
def test_a_text_that_gets_too_much_is_not_gone_on_with(schema: Any, tokens: int) -> None:
    with pytest.raises(GrammarFailed):
        say(json_grammar(schema), tokens)


def say(grammar: str, tokens: int) -> None:
    """A text at random."""
    random, place, everything = np.random.default_rng(1), VOCABULARY.compile(grammar).start(), np.arange(len(PIECES))
    for _ in range(tokens):
        fitting = np.flatnonzero(place.allowed(everything))
        token = int(random.choice(fitting[fitting != END]))
        assert place.allows(token)
        place.accept(token)


def test_nothing_of_a_grammar_stays_when_its_turn_is_over() -> None:
    """Some keep megabytes of states, and whoever asks chooses which."""
    grammar = VOCABULARY.compile(json_grammar(objects_of_constants(20, 10)))
    place = grammar.start()
    kept, held = weakref.ref(grammar), weakref.ref(place)
    del grammar, place
    assert kept() is None
    assert held() is None


def test_a_refusal_keeps_the_schema_to_itself(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    secret = {"properties": {"secret": {"type": "string", "pattern": "(^secret|b$)c"}}}
    with pytest.raises(InvalidSchema):
        VOCABULARY.compile(json_grammar(secret))
    place = VOCABULARY.compile('start: "secret" never\nnever: never "b"').start()
    with pytest.raises(GrammarFailed) as failed:
        for token in MODEL.tokenize("secret", parse_special=False):
            assert place.allows(token)
            place.accept(token)
        place.allowed(np.arange(len(PIECES)))
    assert "secret" not in str(failed.value)
    assert capfd.readouterr() == ("", "") and not caplog.records


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=4))
    await model.start()
    yield model
    await model.close()


async def said(model: ChatModel, grammar: str | None = None, tokens: int = 120) -> Finish | None:
    prepared = await asyncio.to_thread(model.prepare, grammar) if grammar else None
    prompt = model.encode(model.render([ChatMessage("user", "Tell me about Ada.")]))
    generation = model.generate(prompt, Sampling(max_tokens=tokens, seed=1, grammar=prepared))
    async for _ in generation:
        pass
    return generation.finish


@pytest.mark.parametrize("pattern", ["(.?){2000}", "^" + "x.*" * 30 + "$", "([a-z]?|x*|.)*" * 50])
async def test_a_grammar_that_is_too_much_ends_its_own_request_alone(model: ChatModel, pattern: str) -> None:
    others = [asyncio.create_task(said(model)) for _ in range(2)]
    attack = asyncio.create_task(said(model, json_grammar({"type": "string", "pattern": pattern, "minLength": 400})))
    assert {await other for other in others} <= {Finish.STOP, Finish.LENGTH}
    try:
        assert await attack in (Finish.STOP, Finish.LENGTH)
    except (GrammarFailed, InvalidSchema) as error:
        assert "too many ways" in str(error) or "to a grammar" in str(error)
    assert await said(model, json_grammar({"enum": ["Ada"]})) is Finish.STOP


KEYWORDS = ["type", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems",
            "anyOf", "oneOf", "allOf", "$ref", "$defs", "enum", "const", "minimum", "exclusiveMaximum", "multipleOf",
            "minLength", "maxLength", "pattern", "format", "propertyNames", "patternProperties", "not"]  # fmt: skip
TEXTS = [
    "string",
    "object",
    "array",
    "integer",
    "number",
    "null",
    "#",
    "#/$defs/a",
    "#/$defs/b",
    "a",
    "date",
    "uri",
    "",
]
PATTERNS = st.lists(
    st.sampled_from(
        ["a", ".", "[a-z]", "\\d", "(", ")", "(?:", "|", "*", "+", "?", "{2,5}", "{999}", "^", "$", "\\", "]"]
    ),
    max_size=12,
).map("".join)
LEAVES = (
    st.sampled_from(TEXTS)
    | PATTERNS
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.booleans()
    | st.none()
    | st.text(max_size=3)
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYWORDS, "a", "b"]), inner, max_size=4)
    ),
    max_leaves=12,
)
NEAR_SCHEMAS = st.recursive(
    st.fixed_dictionaries({"type": st.sampled_from(TEXTS[:6])}, optional=dict.fromkeys(KEYWORDS[15:22], ANYTHING)),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "required": st.lists(st.sampled_from("abc"), max_size=2),
            "additionalProperties": inner | st.booleans(),
            "items": inner,
            "prefixItems": st.lists(inner, max_size=2),
            "anyOf": st.lists(inner, max_size=3),
            "allOf": st.lists(inner, max_size=3),
            "oneOf": st.lists(inner, max_size=3),
            "$ref": st.sampled_from(TEXTS[6:9]),
            "$defs": st.fixed_dictionaries({"a": inner, "b": inner}),
            "minItems": st.integers(0, 5),
            "maxProperties": st.integers(0, 5),
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        },
    ),
    max_leaves=8,
)


@given(schema=NEAR_SCHEMAS | ANYTHING, seed=st.integers(0, 2**32 - 1))
def test_any_schema_is_refused_or_held(schema: Any, seed: int) -> None:
    """And what is held and comes to its end is JSON. Where nobody insists on it, it is never refused."""
    loose = restated(schema, loose=True)
    restated(schema, outline=True)
    with suppress(InvalidSchema):
        assert restated(schema) == loose
    try:
        grammar = VOCABULARY.compile(grammar_of(loose))
    except InvalidSchema:
        return
    random, place, text = np.random.default_rng(seed), grammar.start(), b""
    everything = np.arange(len(PIECES))
    try:
        for _ in range(60):
            fitting = np.flatnonzero(place.allowed(everything))
            if END in fitting:
                json.loads(text)
                break
            token = int(random.choice(fitting))
            assert place.allows(token)
            place.accept(token)
            text += PIECES[token]
    except GrammarFailed:
        pass
