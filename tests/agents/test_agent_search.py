"""Retrieval in a turn: passages before the answer, and citations behind it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from agents.agent import Agent
from agents.errors import InvalidTurn
from agents.events import RetrievalStarted, SourcesFound
from agents.message import FileSearchCall, Message
from agents.search import passage_tokens_max, search_documents
from agents.toolbox import Toolbox
from agents.turn import FileSearch, Turn
from inference.generation import NO_DEADLINE, Due, Sampling
from inference.trace import Trace, now_ns
from retrieval.errors import StoreNotFound
from retrieval.passage import Passage
from retrieval.query import Query
from tests.agents.turns import TENANT, ShelfSearcher, asked, call, passage, run, user
from tests.scripted import ScriptedModel

DOCS = FileSearch(("docs",), max_num_results=3, score_threshold=0.4)


async def test_sources_are_known_before_the_first_token_and_cited_after() -> None:
    model, shelf = ScriptedModel(["Fact 2 [2]."]), ShelfSearcher([passage(1), passage(2)])
    ran = await run(model, asked("Which fact?", file_search=DOCS), searcher=shelf)
    assert [type(event) for event in ran.events[1:3]] == [RetrievalStarted, SourcesFound]
    assert "Passages:\n[1] Title 1: Fact 1.\n[2] Title 2: Fact 2.\n\nQuestion: Which fact?" in model.prompts[0]
    search, answer = ran.output
    assert isinstance(search, FileSearchCall) and isinstance(answer, Message)
    assert search.queries == ("Which fact?",)
    assert [result.file_id for result in search.results] == ["file_1", "file_2"]
    assert [(c.number, c.file_id, answer.text[c.start_index : c.end_index]) for c in answer.citations] == [
        (2, "file_2", "[2]")
    ]


async def test_a_citation_of_a_passage_that_was_not_given_is_left_out_and_counted() -> None:
    model, shelf = ScriptedModel(["Fact 2 [2], and [7] [0]."]), ShelfSearcher([passage(1), passage(2)])
    ran = await run(model, asked("Which fact?", file_search=DOCS), searcher=shelf)
    _, answer = ran.output
    assert isinstance(answer, Message)
    assert [citation.number for citation in answer.citations] == [2]
    attributes = ran.trace.attributes
    assert (attributes["firsttoken.citations"], attributes["firsttoken.citations_unknown"]) == (1, 2)


async def test_the_newest_user_message_is_what_is_searched_for() -> None:
    shelf = ShelfSearcher([])
    turn = Turn(TENANT, (user("And now?"),), (user("Before"), Message("assistant", "Yes.")), file_search=DOCS)
    await run(ScriptedModel(["Yes."]), turn, searcher=shelf)
    assert shelf.queries == [("And now?", 0.4)]


async def test_nothing_found_leaves_the_prompt_as_it_is() -> None:
    model = ScriptedModel(["Hello."])
    ran = await run(model, asked("Hello", file_search=DOCS), searcher=ShelfSearcher([]))
    assert "Passages" not in model.prompts[0]
    search = ran.output[0]
    assert isinstance(search, FileSearchCall)
    assert (search.results, search.status) == ((), "completed")


async def test_without_a_question_nothing_is_searched() -> None:
    shelf = ShelfSearcher([passage(1)])
    ran = await run(ScriptedModel(["Yes."]), Turn(TENANT, (Message("developer", "Go."),), file_search=DOCS), (), shelf)
    assert shelf.queries == []
    assert isinstance(ran.output[0], FileSearchCall)


async def test_an_unknown_store_is_refused_before_the_turn_starts() -> None:
    model = ScriptedModel(["Hello."])
    with pytest.raises(StoreNotFound, match="nope"):
        await run(model, asked(file_search=FileSearch(("nope",))), searcher=ShelfSearcher([]))
    assert model.prompts == []


async def test_a_search_without_a_searcher_is_refused() -> None:
    with pytest.raises(InvalidTurn, match="not available"):
        await run(ScriptedModel(["Hello."]), asked(file_search=DOCS))


async def test_passages_that_leave_no_room_for_the_answer_are_left_out() -> None:
    shelf = ShelfSearcher([passage(number, text=f"Fact {number} " + "x" * 200) for number in (1, 2, 3)])
    model = ScriptedModel(["Fact 1 [1], 2 [2] and 3 [3]."], context_length=720)
    ran = await run(model, asked("Which?", file_search=DOCS), searcher=shelf)
    search, answer = ran.output
    assert isinstance(search, FileSearchCall) and isinstance(answer, Message)
    assert [result.file_id for result in search.results] == ["file_1", "file_2"]
    assert "[3] Title 3" not in model.prompts[0]
    assert [citation.number for citation in answer.citations] == [1, 2]


@pytest.mark.parametrize(
    ("token_s", "due_s", "deterministic", "kept"),
    [
        (1.0, 310.0, False, 2),  # 264 tokens beside the question
        (1.0, 290.0, False, 1),  # 246: two have 240, and titles
        (1.0, 5000.0, False, 3),
        (10.0, 500.0, False, 1),  # too slow for the best one as well
        (None, 500.0, False, 3),  # not measured yet
        (10.0, None, False, 3),  # nothing is late
        (10.0, 500.0, True, 3),
    ],
)
async def test_no_more_passages_are_read_than_the_model_can_read_in_time(
    token_s: float | None, due_s: float | None, deterministic: bool, kept: int
) -> None:
    shelf = ShelfSearcher([replace(passage(number), tokens=120) for number in (1, 2, 3)])
    model = ScriptedModel(["Fact 1 [1]."], prefill_token_s=token_s)
    sampling = Sampling(deterministic=deterministic)
    due = NO_DEADLINE if due_s is None else Due(now_ns() + int(due_s * 1e9))
    ran = await run(model, asked("Which?", file_search=DOCS, due=due, sampling=sampling), searcher=shelf)
    search = ran.output[0]
    assert isinstance(search, FileSearchCall) and len(search.results) == kept
    assert model.prompts[0].count("Title") == kept


def test_passages_may_take_what_the_search_has_left_of_the_time_and_the_question_needs_not() -> None:
    began_ns = now_ns() - 100 * 10**9
    turn = asked("Which of the four?", due=Due(began_ns + 500 * 10**9))
    assert passage_tokens_max(turn, began_ns, 1.0) in (331, 332)  # 450 less 100, the question's 4 and 14 of its frame
    assert passage_tokens_max(turn, began_ns - 500 * 10**9, 1.0) in (281, 282)  # a longer target, most of which is over


async def test_a_later_question_gets_fewer_passages() -> None:
    shelf = ShelfSearcher([replace(passage(number), tokens=120) for number in (1, 2, 3)])
    model = ScriptedModel(["Fact 1 [1]."], prefill_token_s=1.0)
    due = Due(now_ns() + int(440 * 1e9))  # 0.9 of it are 396 tokens, 0.6 are 264, of which the question has 15
    await run(model, asked("Which?", file_search=DOCS, due=due, history=(user("Hi"), user("Hello"))), searcher=shelf)
    assert model.prompts[0].count("Title") == 1


class TracedShelf(ShelfSearcher):
    """With the span of a real search."""

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        with trace.span("retrieve"):
            return await super().retrieve(query, trace, budget_ms)


async def test_the_span_of_a_search_tells_how_many_passages_there_was_no_time_for() -> None:
    model, shelf = ScriptedModel(["Fact 1 [1]."], prefill_token_s=0.1), TracedShelf([passage(1), passage(2)])
    ran = await run(model, asked("Which?", file_search=DOCS, due=Due(now_ns() + 10**9)), searcher=shelf)
    (span,) = (span for span in ran.trace.spans if span.name == "retrieve")
    tokens_max = span.attributes["prompt_tokens_max"]
    assert span.attributes["in_prompt"] == 1 and isinstance(tokens_max, int) and tokens_max <= 5


class ReadShelf(ShelfSearcher):
    """A model has read its passages already."""

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        with trace.span("retrieve", read_tokens=300):
            return await super().retrieve(query, trace, budget_ms)


async def test_passages_that_were_read_before_the_question_came_take_no_time() -> None:
    model, shelf = ScriptedModel(["Fact 1 [1]."], prefill_token_s=0.1), ReadShelf([passage(1), passage(2)])
    ran = await run(model, asked("Which?", file_search=DOCS, due=Due(now_ns() + 10**9)), searcher=shelf)
    search = ran.output[0]
    assert isinstance(search, FileSearchCall) and len(search.results) == 2


async def test_of_the_passages_for_a_draft_those_are_read_for_which_a_turn_has_time() -> None:
    model = ScriptedModel([""], prefill_token_s=0.1)
    turn = asked("Which?", file_search=DOCS, due=Due(now_ns() + 10**9))
    draft = await Agent(model, None, Toolbox([])).read_draft(turn, [passage(1), passage(2)])
    assert draft is not None and draft.passages == [passage(1)]
    assert "Title 1" in model.ahead[0] and "Title 2" not in model.ahead[0]


async def test_passages_that_a_tool_found_can_be_cited_too() -> None:
    shelf = ShelfSearcher([passage(1), passage(2)])
    model = ScriptedModel([call("search_documents", query="facts"), "Fact 2 [2]."])
    tools = [search_documents(shelf)]
    ran = await run(model, asked(server_tools=("search_documents",)), tools)
    answer = ran.output[-1]
    assert isinstance(answer, Message)
    assert [citation.file_id for citation in answer.citations] == ["file_2"]


async def test_the_passages_stay_in_the_prompt_while_tools_run() -> None:
    shelf = ShelfSearcher([passage(1)])
    model = ScriptedModel([call("search_documents", query="more"), "Fact 1 [1]."])
    turn = asked("Which?", file_search=DOCS, server_tools=("search_documents",))
    await run(model, turn, [search_documents(shelf)], shelf)
    assert model.prompts[1].startswith(model.prompts[0])
