"""Query rewriting: what a question that leans on others is searched for as, and what happens when that cannot be found
out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agents import search
from agents.agent import Agent
from agents.events import EventList
from agents.message import FileSearchCall, Message
from agents.router import Candidate, ModelRegistry
from agents.toolbox import Toolbox
from agents.turn import FileSearch, Limits, Prices, Turn
from inference.errors import QueueFull
from inference.generation import Delta
from inference.trace import Trace
from tests.agents.test_router import POLICY
from tests.agents.turns import TENANT, Ran, ShelfSearcher, asked, passage, user
from tests.scripted import ScriptedGeneration, ScriptedModel

DOCS = FileSearch(("docs",), max_num_results=3, score_threshold=0.4)
ROUTE = {"policy": "steps", "tools": "large", "answer": "large", "queries": "small"}
FOLLOWS = Turn(
    TENANT,
    (user("And what does it cost?"),),
    (user("Is there a red bicycle?"), Message("assistant", "Yes, one with gears.")),
    file_search=DOCS,
)


def model(name: str, *replies: str, **rest: Any) -> ScriptedModel:
    return ScriptedModel(list(replies), name=name, **rest)


async def run(small: ScriptedModel, turn: Turn, **of_small: Any) -> tuple[Ran, ShelfSearcher]:
    shelf, trace, told = ShelfSearcher([passage(1)]), Trace(), EventList()
    candidates = {"small": Candidate(small, **of_small), "large": Candidate(model("large", "Fact 1 [1]."))}
    models = ModelRegistry(candidates, {"auto": POLICY.validate_python(ROUTE)}, "auto")
    await Agent(models, shelf, Toolbox(), Prices(output=1000.0)).run(turn, trace, told)
    return Ran(told.events, trace), shelf


def outcome(ran: Ran) -> dict[str, Any]:
    (span,) = [span for span in ran.trace.spans if span.name == "rewrite"]
    return dict(span.attributes)


async def test_a_question_that_leans_on_others_is_searched_for_in_other_words() -> None:
    small = model("small", "What does the\nred bicycle cost? ")
    ran, shelf = await run(small, FOLLOWS)
    assert [query for query, _ in shelf.queries] == ["What does the red bicycle cost?"]
    search = ran.output[0]
    assert isinstance(search, FileSearchCall) and search.queries == ("What does the red bicycle cost?",)
    assert "user: Is there a red bicycle?" in small.prompts[0] and "Yes, one with gears." in small.prompts[0]
    assert outcome(ran) == {"model": "small", "used": True}


async def test_the_model_answers_the_question_as_it_was_asked_and_its_tokens_alone_are_told() -> None:
    small = model("small", "What does the red bicycle cost?")
    ran, _ = await run(small, FOLLOWS)
    assert ran.answer == "Fact 1 [1]."
    written, told = len(small.generations[0].ids), ran.finished.usage.output_tokens
    assert written > told > 0
    assert ran.trace.attributes["firsttoken.cost"] == told + written, "the query's tokens cost too"


async def test_a_first_question_is_searched_for_as_it_is() -> None:
    small = model("small", "No.")
    _, shelf = await run(small, asked("Which fact?", file_search=DOCS))
    assert [query for query, _ in shelf.queries] == ["Which fact?"] and not small.prompts


class FullModel(ScriptedModel):
    def generate(self, *arguments: Any, **options: Any) -> ScriptedGeneration:
        raise QueueFull("no place", 1.0)


@pytest.mark.parametrize(
    ("small", "reason"),
    [
        (model("small", " \n"), "no question"),
        (model("small", "user: Is there a red bicycle? assistant: Yes."), "no question"),
        (model("small", "It costs a lot. " * 20), "length"),
        (FullModel(["No."], name="small"), "QueueFull"),
    ],
)
async def test_what_is_no_question_is_not_searched_for(small: ScriptedModel, reason: str) -> None:
    ran, shelf = await run(small, FOLLOWS)
    assert [query for query, _ in shelf.queries] == ["And what does it cost?"]
    assert outcome(ran) == {"model": "small", "used": False, "reason": reason}


class StuckGeneration(ScriptedGeneration):
    async def stream(self, receive: Callable[[Delta], None]) -> None:
        await asyncio.Event().wait()


class StuckModel(ScriptedModel):
    def generate(self, *arguments: Any, **options: Any) -> ScriptedGeneration:
        generation = super().generate(*arguments, **options)
        generation.__class__ = StuckGeneration
        return generation


@pytest.mark.parametrize("retrieval_ms", [float("inf"), 20.0])
async def test_one_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch, retrieval_ms: float) -> None:
    if retrieval_ms == float("inf"):
        monkeypatch.setattr(search, "REWRITING_MS_MAX", 10.0)
    small = StuckModel(["No."], name="small")
    turn = Turn(TENANT, FOLLOWS.input, FOLLOWS.history, file_search=DOCS, limits=Limits(retrieval_ms=retrieval_ms))
    ran, shelf = await run(small, turn)
    assert [query for query, _ in shelf.queries] == ["And what does it cost?"]
    assert outcome(ran)["reason"] == "late"
    assert small.generations[0].cancelled, "its place is free again"


async def test_a_long_conversation_is_cut_to_its_newest_messages() -> None:
    questions = (user(f"Question {number}? " + "x" * 5000) for number in range(10))
    history = tuple(each for question in questions for each in (question, Message("assistant", "Answered.")))
    small = model("small", "What?")
    await run(small, Turn(TENANT, FOLLOWS.input, history, file_search=DOCS))
    assert "Answered." in small.prompts[0] and "Question 7?" in small.prompts[0]
    assert "Question 6?" not in small.prompts[0] and len(small.prompts[0]) < 5000


class Away:
    """A model that is not loaded."""

    is_loaded = False

    def __init__(self) -> None:
        self.foreseen = 0

    def foresee(self) -> None:
        self.foreseen += 1


async def test_a_model_that_is_not_loaded_is_loaded_for_the_next_time() -> None:
    away, small = Away(), model("small", "No.")
    _, shelf = await run(small, FOLLOWS, on_demand=away)
    assert [query for query, _ in shelf.queries] == ["And what does it cost?"]
    assert away.foreseen == 1 and not small.prompts
