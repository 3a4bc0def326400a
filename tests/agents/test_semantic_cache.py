"""Answers that are given again to similar questions: to which, to whom, and how often they would have been wrong."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.agent import Agent
from agents.answer_cache import (
    LOOKED_AT_MAX,
    QUESTION_CHARS_MAX,
    CachedAnswer,
    SemanticCache,
    SemanticQuery,
    Vector,
    particulars,
)
from agents.function_tool import FunctionTool
from agents.message import Message
from agents.router import Candidate, ModelRegistry
from agents.routing.policy import Cascade
from agents.toolbox import Toolbox
from agents.turn import FileSearch, Turn
from inference.generation import Finish, Sampling
from inference.picture import Picture, Pixels
from inference.prompt import PlacedPicture
from inference.testing import ScriptedModel
from tests.agents.test_answer_cache import run
from tests.agents.turns import ShelfSearcher, asked, double, passage, user

GREEDY = Sampling(temperature=0)
WORDS = ("refund", "money back", "capital", "weather")


async def embed(text: str, salt: str) -> Vector:
    """By the words that it knows: a refund is money back."""
    found = np.array([word in text.casefold() for word in WORDS] + [0.1], np.float32)
    found[0] += found[1]
    return found / np.float32(np.linalg.norm(found))


def never(**rest: object) -> SemanticCache:
    """Nothing is checked."""
    return SemanticCache(100_000, 0.8, embed, checked_share=0.0, **rest)  # type: ignore[arg-type]


def agent_with(model: ScriptedModel, similar: SemanticCache) -> Agent:
    return Agent(model, ShelfSearcher([passage(1)]), Toolbox([double]), similar=similar)


def greedy(question: str, **rest: object) -> Turn:
    return asked(question, sampling=GREEDY, **rest)


async def test_a_similar_question_of_the_tenant_gets_the_answer_that_was_given() -> None:
    model, similar = ScriptedModel(["In 14 days.", "No."]), never()
    agent = agent_with(model, similar)
    first = await run(agent, greedy("When do I get a refund?"))
    second = await run(agent, greedy("How do I get a refund, my money back?"))
    assert (first.answer, second.answer, len(model.prompts)) == ("In 14 days.", "In 14 days.", 1)
    (span,) = [span for span in second.trace.spans if span.name == "semantic_cache"]
    assert span.attributes["hit"] is True and 0.8 <= float(str(span.attributes["similarity"])) <= 1
    assert "semantic_cache_miss" in [span.name for span in first.trace.spans]
    told = similar.stats()
    assert (told["semantic_cache_hits_total"], told["semantic_cache_misses_total"]) == (1, 1)
    assert told["semantic_cache_saved_tokens_total"] > 0


async def test_the_same_words_about_another_picture_are_another_question() -> None:
    async def see(tenant_id: UUID, picture: Picture) -> Pixels:
        return Pixels(1, 1, b"rgb")

    model = ScriptedModel(["A cat.", "A dog."], sees=True)
    agent = Agent(model, None, Toolbox(), similar=never(), see=see)
    answers = []
    for data in (b"cat", b"dog"):
        shown = (PlacedPicture(0, Picture.of("image/png", data)),)
        turn = replace(greedy(""), input=(Message("user", "What refund is that?", pictures=shown),))
        answers.append((await run(agent, turn)).answer)
    assert answers == ["A cat.", "A dog."]


@pytest.mark.parametrize(
    "change",
    [
        lambda turn: replace(turn, tenant_id=UUID(int=8)),
        lambda turn: replace(turn, instructions="Be brief."),
        lambda turn: replace(turn, history=(user("Hello"), Message("assistant", "Hello."))),
        lambda turn: replace(turn, file_search=FileSearch(("docs",))),
        lambda turn: replace(turn, server_tools=("double",)),
        lambda turn: replace(turn, input=(user("When do I get no refund?"),)),
        lambda turn: replace(turn, input=(user("When do I get a refund of 12 euros?"),)),
        lambda turn: replace(turn, input=(user("How is the weather?"),)),
        lambda turn: replace(turn, input=(user("When do I get a refund? Say that Bob pays it."),)),
        lambda turn: replace(turn, input=(user("You know a joke! When do I get a refund?"),)),
        lambda turn: replace(turn, input=(user("When do I get a refund\nsay that Bob pays it"),)),
        lambda turn: replace(turn, input=(user("refund " * QUESTION_CHARS_MAX),)),
        lambda turn: replace(turn, sampling=Sampling(temperature=1)),
        lambda turn: replace(turn, sampling=replace(GREEDY, max_tokens=3)),
    ],
    ids=[
        "tenant",
        "instructions",
        "history",
        "passages",
        "tools",
        "denied",
        "number",
        "other",
        "order behind it",
        "order before it",
        "order on a line",
        "long",
        "drawn",
        "length",
    ],
)
async def test_whatever_else_an_answer_follows_from_must_be_the_same(change: Callable[[Turn], Turn]) -> None:
    model = ScriptedModel(["In 14 days.", "Otherwise."])
    agent = agent_with(model, never())
    await run(agent, greedy("When do I get a refund?"))
    await run(agent, change(greedy("When do I get a refund?")))
    assert len(model.prompts) == 2


async def test_tools_that_are_shown_and_may_not_be_called_are_a_part_of_what_is_around_it() -> None:
    model = ScriptedModel(["In 14 days.", "Otherwise."])
    agent = agent_with(model, never())
    for description in ("Pay money back", "Pay nothing back"):
        tool = FunctionTool("pay", description, {"type": "object"})
        await run(agent, greedy("When do I get a refund?", functions=(tool,), allowed_tools=frozenset({"file_search"})))
    assert len(model.prompts) == 2


async def test_the_same_passages_and_conversation_are_no_obstacle() -> None:
    model = ScriptedModel(["In 14 days [1].", "No."])
    agent = agent_with(model, never())
    around = {"file_search": FileSearch(("docs",)), "history": (user("Hello"), Message("assistant", "Hello."))}
    await run(agent, greedy("When do I get a refund?", **around))
    second = await run(agent, greedy("When is the refund there?", **around))
    assert second.answer == "In 14 days [1]." and len(model.prompts) == 1


async def test_a_sample_of_the_hits_is_generated_and_compared_and_what_differs_is_counted() -> None:
    model = ScriptedModel(["In 14 days.", "In 14 days.", "Ask Ada about that."])
    similar = replace(never(), checked_share=1.0)
    agent = agent_with(model, similar)
    for number, way in enumerate(("When", "How", "Where")):
        ran = await run(agent, greedy(f"{way} do I get a refund?"))
        assert ran.answer == model.replies[number]
    assert [span.name for span in ran.trace.spans if span.name.startswith("semantic")] == ["semantic_cache_check"]
    told = similar.stats()
    assert (told["semantic_cache_checked_total"], told["semantic_cache_wrong_total"]) == (2, 1)
    assert told["semantic_cache_hits_total"] == 0


async def test_what_a_cascade_handed_over_may_get_the_answer_to_a_similar_question() -> None:
    large = ScriptedModel(["In 14 days.", "No."], name="large")
    small = ScriptedModel(["Sorry, no."] * 2, name="small")
    route = Cascade(policy="cascade", first="small", then="large")
    models = ModelRegistry({"small": Candidate(small, 0.1), "large": Candidate(large)}, {"auto": route}, "auto")
    agent = Agent(models, None, Toolbox([]), similar=never())
    first = await run(agent, greedy("When do I get a refund?"))
    second = await run(agent, greedy("How do I get a refund, my money back?"))
    assert (first.answer, second.answer, len(large.prompts)) == ("In 14 days.", "In 14 days.", 1)


async def test_nobody_waits_long_for_a_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    async def embed_later(text: str, salt: str) -> Vector:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("agents.answer_cache.PATIENCE_S", 0.01)
    similar = SemanticCache(100_000, 0.8, embed_later)
    ran = await run(agent_with(ScriptedModel(["In 14 days."]), similar), greedy("When do I get a refund?"))
    assert ran.answer == "In 14 days." and similar.saved.misses == 1


def test_about_one_hit_of_twenty_is_checked() -> None:
    share = SemanticCache(1, 0.9, embed).checked_share
    chance = random.Random(1)
    assert 30 < sum(chance.random() < share for _ in range(1000)) < 70


def kept(question: str, text: str = "Fine.", context: bytes = b"c") -> tuple[SemanticQuery, CachedAnswer]:
    return SemanticQuery(context, question, np.full(4, 0.5, np.float32)), CachedAnswer(text, (1, 2), Finish.STOP)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.text(max_size=200)), max_size=60))
def test_it_never_holds_more_than_it_may(puts: list[tuple[str, str]]) -> None:
    similar = SemanticCache(6_000, 0.9, embed)
    for question, text in puts:
        similar.put(*kept(question, text))
        assert 0 <= similar.stats()["semantic_cache_bytes"] <= 6_000


def test_of_one_context_a_limited_number_is_looked_at() -> None:
    similar = SemanticCache(10_000_000, 0.9, embed)
    for number in range(LOOKED_AT_MAX + 50):
        similar.put(*kept(f"question {number}"))
    assert repr(similar).startswith(f"<SemanticCache {LOOKED_AT_MAX} answers")


@pytest.mark.parametrize("finish", [Finish.CANCELLED, Finish.DEADLINE, Finish.ERROR])
def test_what_was_cut_off_is_no_answer(finish: Finish) -> None:
    similar, (question, answer) = SemanticCache(10_000, 0.9, embed), kept("a")
    similar.put(question, replace(answer, finish=finish))
    similar.put(question, replace(answer, text=" "))
    assert similar.stats()["semantic_cache_bytes"] == 0


def test_numbers_and_denials_tell_questions_apart() -> None:
    assert particulars("Is it 3.5 or 12:30?") == ("3.5", "12:30")
    assert particulars("Why don\N{RIGHT SINGLE QUOTATION MARK}t we?") == ("don't",)
    assert particulars("Kann ich das nicht?") != particulars("Kann ich das?")


def test_what_is_said_beside_a_question_decides_too() -> None:
    assert particulars("What is due? Say: Bob.") == ("say:", "bob.")
    assert particulars("多少钱？用英语回答。") == ("用英语回答。",)
    assert particulars("Tell me what is due.") == particulars("what is due? ") == particulars("") == ()
    assert particulars("Tell me. Or do it.") == ("tell me.", "or do it.")
