"""Answers that are given again: to whom, when not, and what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.agent import Agent
from agents.answer_cache import AnswerCache, CachedAnswer, CachedGeneration
from agents.events import Event, EventList, TextDelta
from agents.router import Candidate, ModelRegistry
from agents.toolbox import Toolbox
from agents.turn import Turn
from inference.generation import ANY_TERMS, Delta, Finish, Sampling, Terms
from inference.trace import Trace
from tests.agents.turns import Ran, asked, call, check_order, double
from tests.scripted import ScriptedGeneration, ScriptedModel

GREEDY = Sampling(temperature=0)


def answered(text: str = "Paris.", finish: Finish = Finish.STOP) -> CachedAnswer:
    return CachedAnswer(text, tuple(range(len(text))), finish)


async def run(agent: Agent, turn: Turn) -> Ran:
    told, trace = EventList(), Trace()
    await agent.run(turn, trace, told)
    check_order(told.events)
    return Ran(told.events, trace)


def agent_with(model: ScriptedModel, cache: AnswerCache) -> Agent:
    return Agent(model, None, Toolbox([double]), answers=cache)


async def test_the_same_prompt_of_a_tenant_gets_the_same_answer_without_the_model() -> None:
    model, cache = ScriptedModel(["Paris.", "Rome."]), AnswerCache(100_000)
    agent = agent_with(model, cache)
    first, second = await run(agent, asked(sampling=GREEDY)), await run(agent, asked(sampling=GREEDY))
    assert (first.answer, second.answer, len(model.prompts)) == ("Paris.", "Paris.", 1)
    assert second.finished.status == "completed" and second.finished.usage == first.finished.usage.__class__(
        first.finished.usage.input_tokens, first.finished.usage.input_tokens, first.finished.usage.output_tokens
    )
    names = [span.name for span in second.trace.spans]
    assert "answer_cache" in names and "answer_cache" not in [span.name for span in first.trace.spans]
    assert cache.stats()["answer_cache_hits_total"] == 1
    assert cache.stats()["answer_cache_saved_tokens_total"] == first.finished.usage.output_tokens


async def test_a_model_that_takes_the_place_of_another_gives_its_own_answers() -> None:
    models = ModelRegistry.of(ScriptedModel(["Paris."]))
    agent = Agent(models, None, Toolbox([double]), answers=AnswerCache(100_000))
    first = await run(agent, asked(sampling=GREEDY))
    models.replace(ModelRegistry.of(ScriptedModel(["Rome."])))
    second = await run(agent, asked(sampling=GREEDY))
    assert (first.answer, second.answer) == ("Paris.", "Rome.")


@pytest.mark.parametrize(
    "other",
    [
        asked("Hello?", sampling=GREEDY),
        asked(sampling=replace(GREEDY, seed=1)),
        asked(sampling=replace(GREEDY, max_tokens=3)),
        replace(asked(sampling=GREEDY), tenant_id=UUID(int=8)),
        asked(sampling=GREEDY, instructions="Be brief."),
        asked(sampling=GREEDY, server_tools=("double",)),
    ],
    ids=["question", "seed", "length", "tenant", "instructions", "tools"],
)
async def test_anything_else_gets_an_answer_of_its_own(other: Turn) -> None:
    model = ScriptedModel(["Paris.", "Rome."])
    agent = agent_with(model, AnswerCache(100_000))
    await run(agent, asked(sampling=GREEDY))
    await run(agent, other)
    assert len(model.prompts) == 2


async def test_another_model_answers_for_itself() -> None:
    models = {name: Candidate(ScriptedModel([f"I am {name}."], name=name)) for name in ("one", "two")}
    agent = Agent(ModelRegistry(models), None, Toolbox(), answers=AnswerCache(100_000))
    for name in ("one", "two", "one"):
        assert (await run(agent, asked(sampling=GREEDY, model=name))).answer == f"I am {name}."
    assert [len(each.model.prompts) for each in models.values() if isinstance(each.model, ScriptedModel)] == [1, 1]


async def test_steps_with_tools_are_given_again_and_the_tools_run() -> None:
    model = ScriptedModel([call("double", x=4), "Eight."])
    agent = agent_with(model, AnswerCache(100_000))
    turn = asked(sampling=GREEDY, server_tools=("double",))
    first, second = await run(agent, turn), await run(agent, turn)
    assert first.results == second.results == ["8"] and second.answer == "Eight."
    assert len(model.prompts) == 2


async def test_who_draws_without_a_seed_gets_another_answer_each_time() -> None:
    model = ScriptedModel(["Paris.", "Rome."])
    agent = agent_with(model, AnswerCache(100_000))
    drawn = [(await run(agent, asked(sampling=Sampling(temperature=1)))).answer for _ in range(2)]
    seeded = [(await run(agent, asked(sampling=Sampling(temperature=1, seed=5)))).answer for _ in range(2)]
    assert (drawn, seeded, len(model.prompts)) == (["Paris.", "Rome."], ["Rome.", "Rome."], 3)


async def test_likelihoods_are_computed_and_not_remembered() -> None:
    model = ScriptedModel(["Paris.", "Paris."])
    agent = agent_with(model, AnswerCache(100_000))
    for _ in range(2):
        await run(agent, asked(sampling=replace(GREEDY, top_logprobs=1)))
    assert len(model.prompts) == 2


class Ahead(ScriptedGeneration):
    """Its engine is done before its reader is, as engines are."""

    async def stream(self, receive: Callable[[Delta], None]) -> None:
        try:
            await super().stream(receive)
        finally:
            self.ids, self.finish = list(range(len(self._pieces))), Finish.STOP


class AheadModel(ScriptedModel):
    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> ScriptedGeneration:
        return Ahead(self.replies[0], len(prompt), sampling, self.piece_chars)


class Broken(EventList):
    """Cannot tell the second piece of an answer."""

    pieces = 0

    def write(self, events: Sequence[Event]) -> None:
        super().write(events)
        for event in events:
            self.pieces += isinstance(event, TextDelta)
            if self.pieces == 2 and isinstance(event, TextDelta):
                raise RuntimeError("it cannot be told")


async def test_half_an_answer_is_not_given_again_although_its_engine_wrote_all_of_it() -> None:
    cache = AnswerCache(100_000)
    agent = agent_with(AheadModel(["Paris is the capital."]), cache)
    assert (await agent.run(asked(sampling=GREEDY), Trace(), Broken())).status == "failed"
    assert (await run(agent, asked(sampling=GREEDY))).answer == "Paris is the capital."
    assert cache.stats()["answer_cache_hits_total"] == 0


async def test_without_a_cache_every_answer_is_generated() -> None:
    model = ScriptedModel(["Paris."])
    agent = Agent(model, None, Toolbox())
    for _ in range(2):
        ran = await run(agent, asked(sampling=GREEDY))
        assert not [span for span in ran.trace.spans if span.name.startswith("answer_cache")]
    assert len(model.prompts) == 2


@pytest.mark.parametrize("finish", [Finish.CANCELLED, Finish.DEADLINE, Finish.ERROR])
def test_what_was_cut_off_is_no_answer(finish: Finish) -> None:
    cache = AnswerCache(100_000)
    cache.put(b"key", answered(finish=finish))
    assert cache.get(b"key") is None


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.text(max_size=200)), max_size=60))
def test_it_never_holds_more_than_it_may_and_its_sum_is_right(puts: list[tuple[bytes, str]]) -> None:
    cache = AnswerCache(5_000)
    for key, text in puts:
        cache.put(key, answered(text))
        assert cache.stats()["answer_cache_bytes"] <= 5_000
        kept = [answer for name in {name for name, _ in puts} if (answer := cache.get(name))]
        assert cache.stats()["answer_cache_bytes"] == sum(answer.size for answer in kept)


def test_the_answer_that_was_not_asked_for_longest_leaves_first() -> None:
    cache = AnswerCache(3 * answered().size)
    for key in (b"1", b"2", b"3"):
        cache.put(key, answered())
    cache.get(b"1")
    cache.put(b"4", answered())
    assert [key for key in (b"1", b"2", b"3", b"4") if cache.get(key)] == [b"1", b"3", b"4"]
    assert repr(cache).startswith("<AnswerCache 3 answers")


async def test_one_that_is_cancelled_before_it_is_told_says_nothing() -> None:
    told: list[object] = []
    generation = CachedGeneration(answered(), 5)
    generation.cancel()
    await generation.stream(told.append)
    assert not told and generation.finish is Finish.CANCELLED
