"""The beginning of a prompt is read while retrieval runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from agents.agent import ANSWERED_MAX, Agent
from agents.events import EventList
from agents.function_tool import FunctionTool, function_schema
from agents.message import FunctionCall, FunctionCallOutput, Item, Message
from agents.prompt import UNANSWERED, assemble, before_missing, before_question
from agents.prompt_builder import ENCODE_CHARS_MAX
from agents.step import MOMENT_S
from agents.tool import tool
from agents.toolbox import Toolbox
from agents.turn import FileSearch, Turn
from inference.bundled import CHAT_MODEL
from inference.generation import Priority
from inference.llama import LlamaModel
from inference.prompt import Segment
from inference.template import ChatTemplate
from inference.tokenizer import Tokenizer
from inference.trace import Trace
from retrieval.errors import StoreNotFound
from retrieval.passage import Passage
from retrieval.query import Query
from tests.agents.turns import TENANT, ShelfSearcher, asked, call, double, passage, run, user
from tests.scripted import ScriptedGeneration, ScriptedModel

DOCS = FileSearch(("docs",))
HISTORY: tuple[Item, ...] = (
    user("What is <|im_end|>?"),
    FunctionCall("call_1", "look", '{"word": "<|im_end|>"}'),
    FunctionCallOutput("call_1", "A mark."),
    Message("assistant", "It is a mark."),
)
TOOLS = [function_schema("look", "Look a word up", {"type": "object", "properties": {"word": {"type": "string"}}})]

# Where models differ: the system text inside of the first user message, and the tools in front of the last one.
INSIDE_USER = (
    "{% set system = messages[0].role == 'system' %}{% for m in (messages[1:] if system else messages) %}"
    "<start>{{ m.role }}\n{% if loop.first and system %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content | trim }}<end>\n{% endfor %}<start>model\n"
)
TOOLS_LAST = (
    "{% for m in messages %}{% if loop.last %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
)


@pytest.fixture(scope="module")
def weights() -> LlamaModel:
    return LlamaModel.load(CHAT_MODEL)


@pytest.mark.parametrize("source", [None, INSIDE_USER, TOOLS_LAST], ids=["bundled", "inside user", "tools last"])
@pytest.mark.parametrize("history", [(), HISTORY], ids=["first turn", "later turn"])
def test_what_is_read_ahead_begins_every_prompt_of_the_turn(
    weights: LlamaModel, source: str | None, history: tuple[Item, ...]
) -> None:
    template, tokenizer = ChatTemplate(source or weights.chat_template), Tokenizer(weights)
    turn = Turn(TENANT, (user("And what is this?"),), history, instructions="You are terse.")
    prefix = tokenizer.encode(before_question(template.render(assemble(turn), TOOLS)))
    for passages in ([], [passage(1)], [passage(1), passage(2, text="<|im_start|>user")]):
        prompt = tokenizer.encode(template.render(assemble(turn, passages=passages), TOOLS))
        assert prompt[: len(prefix)] == prefix
    text = "".join(segment.text for segment in before_question(template.render(assemble(turn), TOOLS)))
    assert "You are terse." in text
    assert ("It is a mark." in text) == bool(history)
    assert "And what is this?" not in text


@pytest.mark.parametrize("source", [None, TOOLS_LAST], ids=["bundled", "tools last"])
def test_what_is_read_of_the_results_begins_the_prompt_of_all_of_them(weights: LlamaModel, source: str | None) -> None:
    template, tokenizer = ChatTemplate(source or weights.chat_template), Tokenizer(weights)
    calls = [FunctionCall(f"call_{n}", "look", '{"word": "x"}') for n in range(3)]
    results = [FunctionCallOutput(f"call_{n}", f"<|im_end|> It is number {n}.") for n in range(3)]
    turn = Turn(TENANT, (user("What are these?"),))

    def encoded(*found: Item, missing: int = 0) -> list[int]:
        segments = template.render(assemble(turn, (*calls, *found)), TOOLS)
        return tokenizer.encode(before_missing(segments, missing) if missing else segments)

    whole, two = encoded(*results), encoded(*results[:2], missing=1)
    one = encoded(results[0], missing=2)
    assert len(one) < len(two) < len(whole)
    assert whole[: len(two)] == two and two[: len(one)] == one
    assert encoded(replace(results[0], output=UNANSWERED), missing=2)[: len(one)] != one


def test_a_template_that_hides_its_results_has_nothing_to_read() -> None:
    assert before_missing([Segment("Hello", trusted=False), Segment(UNANSWERED, trusted=True)], 1) == []


class Noticed(ScriptedModel):
    """Tells when it is given something to read ahead."""

    def __init__(self, *replies: str) -> None:
        super().__init__(replies)
        self.noticed = asyncio.Event()

    def prefill_ahead(self, prompt: Sequence[int], *, salt: str = "", exact: bool = False) -> ScriptedGeneration | None:
        self.noticed.set()
        return super().prefill_ahead(prompt, salt=salt, exact=exact)


class SlowShelf(ShelfSearcher):
    """Comes back when it is let go, by the model as soon as that reads."""

    def __init__(self, model: Noticed, passages: Sequence[Passage]) -> None:
        super().__init__(passages)
        self.searching, self.go = asyncio.Event(), model.noticed

    async def retrieve(self, query: Query, trace: Trace, budget_ms: float = inf) -> list[Passage]:
        self.searching.set()
        await self.go.wait()
        return list(self.passages)


async def test_the_beginning_is_read_while_the_search_runs() -> None:
    model = Noticed("Fact 1 [1].")
    shelf = SlowShelf(model, [passage(1)])
    ran = await run(model, asked("Which?", history=HISTORY, file_search=DOCS), searcher=shelf)
    ahead = model.ahead[0]
    assert "It is a mark." in ahead and "Which?" not in ahead
    assert model.prompts[0].startswith(ahead)
    assert model.generations[0].cancelled, "the prompt goes on from there"
    lane = [(span.name, set(span.attributes)) for span in ran.trace.spans if span.lane == "prefix"]
    assert lane == [("prefill_prefix", {"new_tokens", "cached_tokens"})]


async def test_what_the_turn_itself_read_ahead_does_not_count_as_cached() -> None:
    class Warm(Noticed):
        def generate(self, *args: Any, **rest: Any) -> Any:
            generation = super().generate(*args, **rest)
            self.generations[0].facts.cached_tokens, generation.facts.cached_tokens = 10, 25
            return generation

    model = Warm("Fact 1 [1].")
    ran = await run(model, asked("Which?", file_search=DOCS), searcher=SlowShelf(model, [passage(1)]))
    assert ran.finished.usage.cached_tokens == 10
    [span] = [span for span in ran.trace.spans if span.lane == "prefix"]
    assert span.attributes == {"new_tokens": 15, "cached_tokens": 10}


@pytest.mark.parametrize("searches", [None, DOCS])
async def test_without_a_search_nothing_is_read_ahead(searches: FileSearch | None) -> None:
    model = ScriptedModel(["Hello."])
    turn = Turn(TENANT, (Message("developer", "Go."),), file_search=searches)
    await run(model, turn, searcher=ShelfSearcher([]))
    assert model.ahead == []


async def test_who_leaves_during_the_search_stops_the_reading() -> None:
    model = Noticed("Fact 1 [1].")
    shelf = SlowShelf(model, [passage(1)])
    shelf.go = asyncio.Event()
    running = asyncio.create_task(Agent(model, shelf, Toolbox()).run(asked(file_search=DOCS), Trace(), EventList()))
    await asyncio.gather(shelf.searching.wait(), model.noticed.wait())
    [reading] = model.generations
    assert not reading.cancelled
    running.cancel()
    await asyncio.wait([running])
    assert reading.cancelled


class NoShelf(ShelfSearcher):
    async def retrieve(self, *_: Any, **__: Any) -> list[Passage]:
        raise StoreNotFound("notes")


async def test_a_search_that_fails_leaves_no_reading_behind() -> None:
    """The prompt is long enough to be encoded beside the event loop, and the search is over first."""
    model = ScriptedModel(["Fact 1 [1]."])
    with pytest.raises(StoreNotFound):
        await run(model, asked(instructions="Be terse. " * ENCODE_CHARS_MAX, file_search=DOCS), searcher=NoShelf([]))
    [reading] = model.generations
    assert reading.cancelled


async def test_what_comes_from_the_configuration_is_shared_without_a_word_of_the_question() -> None:
    model = ScriptedModel(["An answer."])
    turn = Turn(TENANT, (), instructions="You know the handbook.")
    await Agent(model, None, Toolbox([])).share(turn)
    await run(model, replace(turn, input=(user("A secret?"),)))
    (shared,), (prompt,) = model.shared, model.prompts
    assert prompt.startswith(shared) and "handbook" in shared and "?" not in shared


@tool
async def sleep() -> str:
    """Come back later."""
    await asyncio.sleep(4 * MOMENT_S)
    return "Late."


@tool
async def look() -> str:
    """Look at once."""
    return "A long view."


async def test_a_result_is_read_while_the_tool_behind_it_runs() -> None:
    model = Noticed(call("look") + call("wait"), "Seen.")

    @tool
    async def wait() -> str:
        """Come back once the model reads."""
        await model.noticed.wait()
        return "It read."

    ran = await run(model, asked(server_tools=("look", "wait")), [look, wait])
    [ahead] = model.ahead
    assert "A long view." in ahead and "It read." not in ahead and UNANSWERED not in ahead
    assert model.prompts[1].startswith(ahead)
    assert ran.answer == "Seen." and model.generations[1].cancelled


async def test_nothing_is_read_for_a_caller_who_has_to_run_a_function_first() -> None:
    mine = FunctionTool("mine", "", {"type": "object", "properties": {}})
    model = ScriptedModel([call("look") + call("sleep") + call("mine")])
    await run(model, asked(server_tools=("look", "sleep"), functions=(mine,)), [look, sleep])
    assert model.ahead == []


@pytest.mark.parametrize("calls", [call("look"), call("look") + call("double", x=1)])
async def test_results_that_are_there_at_once_are_read_at_once(calls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agents.step.MOMENT_S", 60.0)  # one of them comes from a thread
    model = ScriptedModel([calls, "Seen."])
    await run(model, asked(server_tools=("look", "double")), [look, double])
    assert model.ahead == []


async def test_an_answered_question_is_read_again_as_the_next_prompt_has_it() -> None:
    model, shelf = ScriptedModel(["Fact 1 [1].", "Fact 2 [1]."]), ShelfSearcher([passage(1)])
    first = asked("Which?", history=HISTORY, file_search=DOCS)
    agent, told = Agent(model, shelf, Toolbox()), EventList()
    ran = await agent.run(first, Trace(), told)
    assert not any("Which?" in ahead for ahead in model.ahead), "its end is told first"
    await agent.read_answered(agent.answered.get_nowait())
    read = model.ahead[-1]
    assert "Which?" in read and "Fact 1 [1]." in read and "Title 1" not in read
    then = asked("And then?", history=(*HISTORY, *first.input, *ran.output), file_search=DOCS)
    await run(model, then, searcher=shelf)
    assert model.prompts[1].startswith(read) and "Title 1" in model.prompts[1]


@pytest.mark.parametrize(
    ("reply", "passages", "rest", "is_free"),
    [
        pytest.param("Hello.", [], {}, True, id="its prompt is in the cache as it is"),
        pytest.param(call("mine"), [passage(1)], {}, True, id="the caller's result is missing"),
        pytest.param("Fact 1 [1].", [passage(1)], {"priority": Priority.BATCH}, True, id="nobody is going to ask"),
        pytest.param("Fact 1 [1].", [passage(1)], {}, False, id="others wait for the model"),
    ],
)
async def test_a_turn_is_not_read_again_in_vain(
    reply: str, passages: list[Passage], rest: dict[str, Any], is_free: bool
) -> None:
    mine = FunctionTool("mine", "", {"type": "object", "properties": {}})
    model = ScriptedModel([reply])
    agent = Agent(model, ShelfSearcher(passages), Toolbox(), is_free=lambda: is_free)
    await agent.run(asked("Which?", file_search=DOCS, functions=(mine,), **rest), Trace(), EventList())
    while not agent.answered.empty():
        await agent.read_answered(agent.answered.get_nowait())
    assert not any("Which?" in ahead for ahead in model.ahead)


async def test_an_answer_ends_when_more_questions_wait_to_be_read_again_than_are_kept() -> None:
    turn = asked("Which?", file_search=DOCS)
    agent = Agent(ScriptedModel(["Fact 1 [1]."] * (ANSWERED_MAX + 1)), ShelfSearcher([passage(1)]), Toolbox())
    ended = [await agent.run(turn, Trace(), EventList()) for _ in range(ANSWERED_MAX + 1)]
    assert {each.status for each in ended} == {"completed"}
    assert agent.answered.qsize() == ANSWERED_MAX
