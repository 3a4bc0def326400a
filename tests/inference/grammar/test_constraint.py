"""Drawing within a grammar: from the policy of the sampler to the bundled model at temperature 1."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference.config import EngineConfig
from inference.engine.sampler import Sampler
from inference.errors import GrammarFailed, InvalidSchema
from inference.generation import Finish, Priority, Sampling, Terms
from inference.grammar.calls import CallableFunction, tool_grammar
from inference.grammar.constraint import DIGITS_MAX, Constraint, Grammar, Vocabulary
from inference.grammar.schema import json_grammar
from inference.model import ChatModel
from inference.prompt import ChatMessage

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
}


# Tokens 0 to 3 are letters, 4 begins what is helped with, 5 has no text and 6 ends the turn. The others end a mark.
PIECES = [b"a", b"b", b"c", b"d", b"<", b"", b"", b"ll>", b"l>", b"ll>a", b"ll>b", b"d<ca", b"<call>", b"<call>b"]
END = 6
VOCABULARY = Vocabulary(PIECES, frozenset({END}))


def constraint(grammar: str, trigger: str = "") -> Constraint:
    return VOCABULARY.compile(grammar, trigger).start()


def sampler(grammar: str, **sampling: Any) -> Sampler:
    return Sampler(Sampling(**sampling), constraint(grammar))


def row(*shares: float) -> NDArray[np.float32]:
    """Likelihoods of the first tokens; the others are most unlikely."""
    filled = np.full(len(PIECES), 1e-6, np.float32)
    filled[: len(shares)] = shares
    logs: NDArray[np.float32] = np.log(filled)
    return logs


ROW = row(0.5, 0.25, 0.15, 0.1)


def test_draws_follow_the_distribution_of_what_is_left() -> None:
    drawing = sampler("start: /[bd]*/", seed=1)
    counts = np.bincount([drawing.draw(ROW) for _ in range(20_000)], minlength=4)[:4] / 20_000
    assert np.allclose(counts, [0, 0.25 / 0.35, 0, 0.1 / 0.35], atol=0.02)


def test_an_unlikely_token_is_found_when_it_alone_fits() -> None:
    vocabulary = Vocabulary([*[b"a"] * 2999, b"b", b""], frozenset({3000}))
    likelihoods = np.linspace(9, 0, 3001).astype(np.float32)
    drawing = Sampler(Sampling(top_k=1, top_p=0.1, min_p=0.5), vocabulary.compile('start: "b"').start())
    assert [drawing.draw(likelihoods) for _ in range(2)] == [2999, 3000]


def test_bias_and_penalties_count_within_the_grammar() -> None:
    drawing = sampler("start: /[bc]*/", temperature=0, presence_penalty=2.0, logit_bias={0: 9.0})
    assert [drawing.draw(ROW) for _ in range(2)] == [1, 2]


LISTS = {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "likely", "written"),
    [
        (LISTS, b"1", b"[["),  # numbers where lists of them must stand
        (LISTS, b" ]", b"[]"),  # an empty list, written wider than here
        ({"type": "array", "maxItems": 0}, b"1", b"[]"),
    ],
)
def test_a_list_is_not_closed_empty_because_its_content_does_not_fit(
    schema: Any, likely: bytes, written: bytes
) -> None:
    pieces = [b"[", b"]", b"1", b" ]", b""]
    grammar = Vocabulary(pieces, frozenset({4})).compile(json_grammar(schema))
    drawing = Sampler(Sampling(temperature=0), grammar.start())
    shares = np.array([0.1, 0.2, 0.01, 0.01, 0.01], np.float32)
    shares[pieces.index(likely)] = 0.6
    drawn = [drawing.draw(np.log(each)) for each in (np.eye(5, dtype=np.float32)[0] + 1e-6, shares)]
    assert b"".join(pieces[token] for token in drawn) == written


DIGITS = [b"3", b"000", b'"', b"a", b".", b"e", b"}", b"{", b"x", b":", b" ", b","]
NUMBERS = Vocabulary([*DIGITS, b""], frozenset({len(DIGITS)}))


def written(schema: Any, likely: bytes, most: int = 200) -> tuple[bytes, bool]:
    """What a model writes that wants nothing but this piece, and otherwise the first ones; and whether it ends."""
    drawing, text = Sampler(Sampling(temperature=0), NUMBERS.compile(json_grammar(schema)).start()), b""
    likelihoods = -np.arange(len(DIGITS) + 1, dtype=np.float32)
    likelihoods[DIGITS.index(likely)] = 9
    for _ in range(most):
        token = drawing.draw(likelihoods)
        if token == len(DIGITS):
            return text, True
        text += NUMBERS.pieces[token]
    return text, False


@pytest.mark.parametrize("schema", [{"type": "number"}, {"type": ["number", "null"]}, {}])
@pytest.mark.parametrize("likely", [b"3", b"000"])
def test_a_number_ends_although_the_model_wants_only_digits(schema: Any, likely: bytes) -> None:
    number = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    text, ends = written(number, likely)
    assert ends and max(map(len, re.findall(rb"\d+", text))) < DIGITS_MAX + 3
    assert isinstance(json.loads(text)["x"], int | float)


def test_digits_in_a_text_are_not_counted() -> None:
    assert written({"type": "string", "pattern": "^[0-9]{64}$"}, b"3") == (b'"' + b"3" * 64 + b'"', True)
    assert written({"type": "string"}, b"3") == (b'"' + b"3" * 199, False)


def test_a_token_without_text_is_never_let_through() -> None:
    started = constraint("start: /[a-c]*/")
    assert started.allowed(np.arange(7)).tolist() == [True, True, True, False, False, False, True]
    assert not started.allows(5) and started.allows(END)


def test_a_text_that_is_complete_can_only_end() -> None:
    started = constraint('start: "a" "b"')
    assert not started.allows(END)
    for token in (0, 1):
        assert started.allows(token)
        started.accept(token)
    assert started.allows(END) and not started.allows(0)
    assert started.allowed(np.arange(7)).nonzero()[0].tolist() == [END]
    started.accept(END)


def test_texts_of_one_grammar_go_their_own_ways() -> None:
    grammar = VOCABULARY.compile('start: "ab" | "cd"')
    one, other = grammar.start(), grammar.start()
    one.accept(0)
    assert one.allows(1) and not one.allows(2)
    assert other.allows(2) and not other.allows(1) and grammar.start().allows(0)


def test_a_token_that_does_not_fit_fails_its_text_alone() -> None:
    grammar = VOCABULARY.compile("start: /[ab]*/")
    one, other = grammar.start(), grammar.start()
    with pytest.raises(GrammarFailed):
        one.accept(3)
    with pytest.raises(GrammarFailed):
        one.allows(0)
    assert other.allows(0)


def test_a_grammar_without_a_way_to_begin_is_refused() -> None:
    with pytest.raises(InvalidSchema, match="cannot be compiled to a grammar"):
        VOCABULARY.compile('start: "x"')  # no token spells it
    with pytest.raises(InvalidSchema, match="cannot be compiled to a grammar"):
        VOCABULARY.compile("nonsense")


def test_a_grammar_that_leaves_nothing_is_said() -> None:
    drawing = sampler('start: "a" "x"', temperature=0)
    assert drawing.draw(ROW) == 0
    with pytest.raises(GrammarFailed, match=r"no token|too many ways"):
        drawing.draw(ROW)


def test_a_long_text_of_tokens_that_fit_never_runs_out_of_fuel() -> None:
    """Without masks nothing refills it, and each place in a text whose length is counted is new to the lexer."""
    started = constraint("start: /[ab]{20000}/")
    for i in range(19_999):
        assert started.allows(i % 2)
        started.accept(i % 2)
    assert not started.allows(END)


def best(token: int) -> NDArray[np.float32]:
    """A row in which this token is by far the likeliest."""
    likely = np.zeros(len(PIECES), np.float32)
    likely[token] = 1
    return likely


def helped(grammar: str) -> Sampler:
    """Held from token 4 on."""
    return Sampler(Sampling(temperature=0), constraint(grammar, "<"))


def test_what_stands_before_its_mark_is_not_followed() -> None:
    drawing = helped('start: "<" "b" /[ab]*/')
    assert [drawing.draw(best(token)) for token in (0, 2, 4, 1)] == [0, 2, 4, 1]
    assert drawing.draw(best(3)) in (0, 1)  # what comes after is held


CALL = 'start: (before "a")* rest\nbefore[lazy]: /(?s:.*)/ "<call>"\nrest: /(?s:.*)/\n'


@pytest.mark.parametrize(
    ("spelt", "right", "wrong"),
    [
        ([4, 2, 0, 7], 0, 1),  # < c a ll>
        ([11, 7], 0, 1),  # d<ca ll>
        ([12], 0, 1),  # the mark as a whole
        ([4, 4, 2, 0, 7], 0, 1),  # <<ca ll>: it begins anew
        ([11, 4, 2, 0, 7], 0, 1),  # d<ca<ca ll>
        ([4, 2, 0], 9, 10),  # the last token goes beyond the mark
        ([11], 9, 10),
        ([], 12, 13),
    ],
)
def test_a_mark_is_known_by_its_text_however_it_is_tokenised(spelt: list[int], right: int, wrong: int) -> None:
    drawing = Sampler(Sampling(temperature=0), constraint(CALL, "<call>"))
    assert [drawing.draw(best(token)) for token in spelt] == spelt
    assert drawing.draw(best(wrong)) != wrong
    again = Sampler(Sampling(temperature=0), constraint(CALL, "<call>"), written=spelt)
    assert again.draw(best(right)) == right


def test_what_looks_like_the_beginning_of_a_mark_is_free() -> None:
    drawing = Sampler(Sampling(temperature=0), constraint(CALL, "<call>"))
    free = [4, 1, 4, 2, 1, 11, 1, 8, 5, 4, 2, 0, 0, 8, 1]
    assert [drawing.draw(best(token)) for token in free] == free


def test_a_written_answer_that_goes_wrong_beyond_its_mark_is_refused() -> None:
    with pytest.raises(GrammarFailed):
        Sampler(Sampling(), constraint(CALL, "<call>"), written=[11, 10])


TOO_MUCH = "(.?){2000}"


def test_help_that_gets_too_much_is_let_go() -> None:
    drawing = helped(f'start: "<" /{TOO_MUCH}/')
    drawn = [drawing.draw(best(token)) for token in [4, *[0] * 500]]
    assert drawn == [4, *[0] * 500]
    assert drawing.draw(best(4)) == 4


def test_help_is_compiled_once_for_each_tenant_and_nothing_else_is_kept() -> None:
    kept = VOCABULARY.compile(CALL, "<call>", salt="one")
    assert VOCABULARY.compile(CALL, "<call>", salt="one") is kept
    assert VOCABULARY.compile(CALL, "<call>", salt="another") is not kept
    assert VOCABULARY.compile('start: "a"') is not VOCABULARY.compile('start: "a"')
    long = CALL + "".join(f'unused{number}: "b"\n' for number in range(1_500))
    assert VOCABULARY.compile(long, "<call>") is not VOCABULARY.compile(long, "<call>")


def test_help_whose_texts_fill_its_lexer_is_compiled_for_each_turn() -> None:
    many = 'start: before "a" /(.*a.{11}b)?[ab]*/\nbefore[lazy]: /(?s:.*)/ "<call>"\n'
    chance, turns = random.Random(1), list[Grammar]()
    while not (turns and turns[-1].outgrown):
        assert len(turns) < 100
        turns.append(VOCABULARY.compile(many, "<call>", salt="fills it"))
        text = turns[-1].start()
        for token in (12, 0, *chance.choices((0, 1), k=200)):
            assert text.allows(token)
            text.accept(token)
    assert len(set(turns)) == 1 < len(turns)  # all used the same one
    alone = VOCABULARY.compile(many, "<call>", salt="fills it")
    assert alone not in turns and alone is not VOCABULARY.compile(many, "<call>", salt="fills it")
    text = alone.start()
    text.accept(12)
    assert text.allows(0) and not text.allows(3)


@pytest.mark.parametrize("grammar", ['start: "<" "x"', 'start: "b" "<"'], ids=["it leads nowhere", "another beginning"])
def test_help_that_has_nothing_to_say_is_let_go(grammar: str) -> None:
    drawing = helped(grammar)
    assert [drawing.draw(best(token)) for token in (4, 0, 0)] == [4, 0, 0]


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=4, resident=2))
    await model.start()
    yield model
    await model.close()


async def say(model: ChatModel, grammar: str | None, seed: int = 1, **sampling: Any) -> tuple[str, Finish | None]:
    prompt = model.encode(model.render([ChatMessage("user", "Tell me about Ada.")]))
    prepared = model.prepare(grammar) if grammar else None
    asked = Sampling(**{"max_tokens": 400, "seed": seed, **sampling, "grammar": prepared})
    generation = model.generate(prompt, asked)
    return "".join([delta.text async for delta in generation]), generation.finish


async def test_the_bundled_model_stays_within_a_schema_at_temperature_1(model: ChatModel) -> None:
    said = await asyncio.gather(*(say(model, json_grammar(PERSON), seed) for seed in range(12)))
    assert {finish for _, finish in said} == {Finish.STOP}
    for value in (json.loads(text) for text, _ in said):
        assert value.keys() == {"name", "age"} and len(value["name"]) <= 20 and 0 <= value["age"] <= 150
    assert len(set(said)) > 1


@pytest.mark.any_answer("the grammar holds whatever is drawn")
async def test_high_temperature_bias_and_penalties_break_no_grammar(model: ChatModel) -> None:
    wild: list[dict[str, Any]] = [
        {"temperature": 2.0},
        {"temperature": 0, "top_k": 1},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repeat_penalty": 2.0},
        {"logit_bias": dict.fromkeys(range(0, 300, 7), 100.0)},
    ]
    for text, finish in [await say(model, json_grammar(PERSON), **sampling) for sampling in wild]:
        assert finish is Finish.STOP and json.loads(text).keys() == {"name", "age"}


async def test_a_forced_call_is_a_call(model: ChatModel) -> None:
    grammar = tool_grammar([CallableFunction("save_person", PERSON, strict=True)], required=True, calls_max=1)
    text, finish = await say(model, grammar)
    call = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert finish is Finish.STOP and call["name"] == "save_person" and call["arguments"].keys() == {"name", "age"}


async def test_the_token_limit_still_ends_an_answer(model: ChatModel) -> None:
    assert (await say(model, json_grammar(PERSON), max_tokens=3))[1] is Finish.LENGTH


async def test_a_request_that_gave_its_place_up_goes_on_within_its_grammar() -> None:
    """One place: the interactive request takes it in the middle of the other's answer."""
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=1, resident=1))
    await model.start()
    prompt = model.encode(model.render([ChatMessage("user", "Tell me about Ada.")]))
    many = {"type": "array", "items": PERSON, "minItems": 5, "maxItems": 5}
    held = Sampling(max_tokens=600, seed=3, grammar=model.prepare(json_grammar(many)))
    low = model.generate(prompt, held, Terms(priority=Priority.BATCH))
    deltas = low.__aiter__()
    text = (await anext(deltas)).text
    high = model.generate(prompt, Sampling(max_tokens=5, temperature=0), Terms(priority=Priority.INTERACTIVE))
    async for _ in high:
        pass
    text += "".join([delta.text async for delta in deltas])
    assert model.stats()["preempted_total"] == 1
    assert low.finish is Finish.STOP and len(json.loads(text)) == 5
    await model.close()


async def test_a_request_without_a_way_on_fails_alone(model: ChatModel) -> None:
    free = asyncio.create_task(say(model, json_grammar(PERSON)))
    with pytest.raises(GrammarFailed):
        await say(model, 'start: "a" never\nnever: never "b"')
    assert (await free)[1] is Finish.STOP


scalars = st.sampled_from(
    [
        {"type": "string", "maxLength": 8},
        {"type": "string", "format": "date"},
        {"type": "integer", "minimum": -20, "maximum": 99},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 10},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["red", 1, None, [2]]},
    ]
)


def larger(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.builds(
        lambda item, n: {"type": "array", "items": item, "minItems": n, "maxItems": n + 1}, inner, st.integers(0, 2)
    )
    unions = st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, min_size=1, max_size=3))
    return arrays | unions | st.builds(as_object, st.lists(inner, max_size=4), st.integers(0, 15))


def as_object(inner: list[dict[str, Any]], required: int) -> dict[str, Any]:
    names = [f"p{i}" for i in range(len(inner))]
    chosen = [name for i, name in enumerate(names) if required >> i & 1]
    return {"type": "object", "properties": dict(zip(names, inner, strict=True)), "required": chosen}


def fits(schema: dict[str, Any], value: Any) -> bool:
    """A validator of these schemas that shares nothing with the converter."""
    if "anyOf" in schema:
        return any(fits(branch, value) for branch in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "object":
            named = isinstance(value, dict) and set(schema["required"]) <= value.keys() <= schema["properties"].keys()
            return named and all(fits(schema["properties"][name], inner) for name, inner in value.items())
        case "array":
            counted = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
            return counted and all(fits(schema["items"], inner) for inner in value)
        case "string":
            return isinstance(value, str) and len(value) <= schema.get("maxLength", 10)
        case "integer":
            return type(value) is int and -20 <= value <= 99
        case "number":
            return type(value) in (int, float) and 0 <= value < 10
        case "boolean":
            return type(value) is bool
    return value is None


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=st.recursive(scalars, larger, max_leaves=8), seed=st.integers(0, 2**32 - 1))
async def test_whatever_the_schema_the_bundled_model_fits_it(
    model: ChatModel, schema: dict[str, Any], seed: int
) -> None:
    text, finish = await say(model, json_grammar(schema), seed, max_tokens=900)
    if finish is Finish.STOP:
        assert fits(schema, json.loads(text)), text
    else:
        assert finish is Finish.LENGTH
