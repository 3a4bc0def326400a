"""Drawing within a grammar: from the policy of the sampler to the bundled model at temperature 1."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference import constraint as constraint_module
from inference.config import EngineConfig
from inference.constraint import Constraint, Grammars, Help
from inference.errors import GrammarFailed, InvalidSchema
from inference.grammar import CallableFunction, json_grammar, tool_grammar
from inference.model import ChatModel
from inference.sampler import Sampler
from inference.sequence import ChatMessage, Finish, Priority, Sampling

ROW = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
}


@dataclass
class ListedMask:
    """Lets the same tokens through at every place."""

    tokens: frozenset[int]
    checked: list[int] = field(default_factory=list)  # how many tokens each check took
    accepted: list[int] = field(default_factory=list)

    def clone(self) -> ListedMask:
        return ListedMask(self.tokens)

    def allows(self, token: int) -> bool:
        return bool(self.allowed(np.array([token]))[0])

    def allowed(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        self.checked.append(len(tokens))
        return np.isin(tokens, list(self.tokens))

    def accept(self, token: int) -> None:
        assert token in self.tokens
        self.accepted.append(token)


class RefusingMask(ListedMask):
    """As llama.cpp's, it takes no token that it does not allow. After its first token nothing fits."""

    def allowed(self, tokens: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        return super().allowed(tokens) & (not self.accepted)

    def accept(self, token: int) -> None:
        if not self.allows(token):
            raise ValueError(token)
        super().accept(token)


def sampler(mask: ListedMask, vocabulary: int = 4, **sampling: Any) -> Sampler:
    return Sampler(Sampling(**sampling), Constraint(mask, np.ones(vocabulary, np.bool_)))


def test_a_draw_that_fits_costs_one_check() -> None:
    mask = ListedMask(frozenset({0}))
    assert sampler(mask, temperature=0).draw(ROW) == 0
    assert (mask.checked, mask.accepted) == ([1], [0])


def test_draws_follow_the_distribution_of_what_is_left() -> None:
    drawing = sampler(ListedMask(frozenset({1, 3})), seed=1)
    counts = np.bincount([drawing.draw(ROW) for _ in range(20_000)], minlength=4) / 20_000
    assert np.allclose(counts, [0, 0.25 / 0.35, 0, 0.1 / 0.35], atol=0.02)


def test_an_unlikely_token_is_found_when_it_alone_fits() -> None:
    row = np.linspace(9, 0, 3000).astype(np.float32)
    mask = ListedMask(frozenset({2999}))
    assert sampler(mask, 3000, top_k=1, top_p=0.1, min_p=0.5).draw(row) == 2999
    assert mask.checked == [1, 256, 3000]


def test_bias_and_penalties_count_within_the_grammar() -> None:
    drawing = sampler(ListedMask(frozenset({1, 2})), temperature=0, presence_penalty=2.0, logit_bias={0: 9.0})
    assert [drawing.draw(ROW) for _ in range(2)] == [1, 2]


def test_a_grammar_that_leaves_nothing_is_said() -> None:
    with pytest.raises(GrammarFailed, match="no token"):
        sampler(ListedMask(frozenset())).draw(ROW)


def test_a_token_without_text_is_never_let_through() -> None:
    mask = ListedMask(frozenset({0, 1}))
    grammars = Grammars(lambda _: mask, [b"", b"a", b"", b""], frozenset({2}))
    started = grammars.start("any")
    assert started.allowed(np.arange(4)).tolist() == [False, True, False, False]
    assert not started.allows(0)


def test_a_grammar_is_compiled_once_and_the_latest_are_kept() -> None:
    compiled: list[str] = []

    def compile(text: str) -> ListedMask:
        compiled.append(text)
        return ListedMask(frozenset())

    grammars = Grammars(compile, [b"a"], frozenset())
    for text in ["a", "a", *map(str, range(constraint_module.GRAMMARS_KEPT)), "a"]:
        grammars.start(text)
    assert compiled.count("a") == 2 and len(compiled) == constraint_module.GRAMMARS_KEPT + 2


class Copied:
    """Counts the copies of a grammar."""

    def __init__(self) -> None:
        self.made = 0

    def compile(self, _text: str) -> ListedMask:
        copied = self

        class Mask(ListedMask):
            def clone(self) -> ListedMask:
                copied.made += 1
                return ListedMask(self.tokens)

        return Mask(frozenset({0}))


def test_what_was_prepared_starts_without_being_copied() -> None:
    grammars = Grammars((copied := Copied()).compile, [b"a"], frozenset())
    for _ in range(3):  # requests that arrive together
        grammars.prepare("any")
    assert copied.made == 3
    started = [grammars.start("any") for _ in range(3)]
    assert copied.made == 3 and len({id(each._mask) for each in started}) == 3
    assert grammars.start("any").allows(0) and copied.made == 4


def test_copies_of_requests_that_never_start_are_bounded() -> None:
    grammars = Grammars((copied := Copied()).compile, [b"a"], frozenset())
    for _ in range(constraint_module.READY_MAX + 5):
        grammars.prepare("any")
    for _ in range(constraint_module.READY_MAX):
        grammars.start("any")
    made = copied.made
    grammars.start("any")
    assert copied.made == made + 1


def test_a_grammar_that_gets_slow_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_module, "CHECK_S_MAX", -1.0)
    with pytest.raises(GrammarFailed, match="too many ways"):
        sampler(ListedMask(frozenset({0}))).draw(ROW)


def helped(mask: ListedMask) -> Sampler:
    """Held from token 3 on."""
    return Sampler(Sampling(temperature=0), Help(mask, np.ones(4, np.bool_), opening=3))


def best(token: int) -> NDArray[np.float32]:
    row = np.zeros(4, np.float32)
    row[token] = 1
    return row


def test_what_stands_before_its_mark_is_not_followed() -> None:
    drawing = helped(mask := ListedMask(frozenset({1, 3})))
    assert [drawing.draw(best(token)) for token in (0, 2, 3, 1)] == [0, 2, 3, 1]
    assert mask.accepted == [3, 1]
    assert drawing.draw(best(0)) == 1  # what comes after is held


def test_help_that_gets_slow_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_module, "CHECK_S_MAX", -1.0)
    drawing = helped(mask := ListedMask(frozenset({1, 3})))
    assert [drawing.draw(best(token)) for token in (3, 0, 3, 0)] == [3, 0, 3, 0]
    assert mask.accepted == [3]


@pytest.mark.parametrize("allowed", [{3}, {1}], ids=["it leads nowhere", "it knows no such beginning"])
def test_help_that_has_nothing_to_say_is_let_go(allowed: set[int]) -> None:
    drawing = helped(RefusingMask(frozenset(allowed)))
    assert [drawing.draw(best(token)) for token in (3, 0, 0)] == [3, 0, 0]


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=4, resident=2))
    await model.start()
    yield model
    await model.close()


async def say(model: ChatModel, grammar: str | None, seed: int = 1, **sampling: Any) -> tuple[str, Finish | None]:
    prompt = model.encode(model.render([ChatMessage("user", "Tell me about Ada.")]))
    asked = Sampling(**{"max_tokens": 400, "seed": seed, **sampling, "grammar": grammar})
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


async def test_a_mark_of_several_tokens_holds_nothing(model: ChatModel) -> None:
    free = await say(model, 'root ::= "a"', grammar_from="Ada and nobody else")
    assert free[0] != "a" and free == await say(model, None)


async def test_a_stop_string_and_the_token_limit_still_end_an_answer(model: ChatModel) -> None:
    assert await say(model, json_grammar(PERSON), stop=('"age"',)) != await say(model, json_grammar(PERSON))
    assert (await say(model, json_grammar(PERSON), max_tokens=3))[1] is Finish.LENGTH


async def test_a_request_that_gave_its_place_up_goes_on_within_its_grammar() -> None:
    """One place: the interactive request takes it in the middle of the other's answer."""
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=1, resident=1))
    await model.start()
    prompt = model.encode(model.render([ChatMessage("user", "Tell me about Ada.")]))
    many = {"type": "array", "items": PERSON, "minItems": 5, "maxItems": 5}
    held = Sampling(max_tokens=600, seed=3, grammar=json_grammar(many))
    low = model.generate(prompt, held, priority=Priority.BATCH)
    deltas = low.__aiter__()
    text = (await anext(deltas)).text
    high = model.generate(prompt, Sampling(max_tokens=5, temperature=0), priority=Priority.INTERACTIVE)
    async for _ in high:
        pass
    text += "".join([delta.text async for delta in deltas])
    assert model.stats()["preempted_total"] == 1
    assert low.finish is Finish.STOP and len(json.loads(text)) == 5
    await model.close()


async def test_a_request_without_a_way_on_fails_alone(model: ChatModel) -> None:
    free = asyncio.create_task(say(model, json_grammar(PERSON)))
    with pytest.raises(GrammarFailed):
        await say(model, 'root ::= "a" [\\x00]\n')  # no token spells the second character
    assert (await free)[1] is Finish.STOP


async def test_a_grammar_that_does_not_compile_is_refused_before_it_is_queued(model: ChatModel) -> None:
    with pytest.raises(InvalidSchema):
        model.prepare("root ::= root")


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


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=st.recursive(scalars, larger, max_leaves=8), seed=st.integers(0, 2**32 - 1))
async def test_whatever_the_schema_the_bundled_model_fits_it(
    model: ChatModel, schema: dict[str, Any], seed: int
) -> None:
    text, finish = await say(model, json_grammar(schema), seed, max_tokens=900)
    if finish is Finish.STOP:
        assert fits(schema, json.loads(text)), text
    else:
        assert finish is Finish.LENGTH
