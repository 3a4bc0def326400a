"""What the configuration says is read before the first question."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from agents.agent import Agent
from agents.definition import AgentRegistry, Definition
from agents.events import EventList
from agents.toolbox import Toolbox
from agents.tools import builtin_toolbox
from agents.turn import FileSearch, Turn
from inference.config import EngineConfig
from inference.errors import EnginesAway
from inference.generation import Delta, Sampling
from inference.model import ChatModel
from inference.trace import Trace
from tests.agents.test_agent_model import run
from tests.agents.turns import ShelfSearcher, asked, passage, user
from tests.scripted import ScriptedGeneration, ScriptedModel
from worker.lifecycle.prewarm import PAGE, prefill_shared_prefixes, read_answered_questions

SUPPORT = Definition(instructions="You answer questions about the handbook of a small shop, and nothing else. " * 8)
ROSTER = AgentRegistry({"support": SUPPORT})


@pytest.fixture
async def model() -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(parallel=2))
    await model.start()
    yield model
    await model.close()


def question(model: ChatModel) -> Turn:
    return SUPPORT.applied(Turn(uuid4(), (user("Hello"),), sampling=Sampling(max_tokens=1)))


@pytest.mark.any_answer("here the question is what was read before")
async def test_the_first_question_to_an_agent_finds_what_the_second_of_another_tenant_finds(model: ChatModel) -> None:
    await prefill_shared_prefixes(Agent(model, None, builtin_toolbox(None)), ROSTER)
    first, other = [(await run(model, question(model))).finished.usage for _ in range(2)]
    assert first.cached_tokens == other.cached_tokens > 100


@pytest.mark.any_answer("here the question is what was read before")
async def test_a_start_does_not_wait_for_a_model_that_reads_slowly(model: ChatModel) -> None:
    await prefill_shared_prefixes(Agent(model, None, builtin_toolbox(None)), ROSTER, within_s=0.0)
    await run(model, question(model))
    again = await run(model, question(model))
    assert again.finished.usage.cached_tokens > 100  # it is shared all the same


def test_the_page_asks_with_the_tools_that_are_read_for_it() -> None:
    script = (Path(__file__).parents[3] / "worker" / "static" / "chat" / "turn.js").read_text()
    listed = re.search(r"const TOOLS = (\[.*?\]);", script)
    assert listed is not None and json.loads(listed[1]) == PAGE.tools


@pytest.mark.any_answer("here the question is what was read before")
async def test_the_first_question_on_the_page_finds_its_tools_read(model: ChatModel) -> None:
    await prefill_shared_prefixes(Agent(model, None, builtin_toolbox(None)), AgentRegistry())
    asked = PAGE.applied(Turn(uuid4(), (user("Hello"),), sampling=Sampling(max_tokens=1)))
    usage = (await run(model, asked)).finished.usage
    assert usage.input_tokens - usage.cached_tokens < 16 < usage.cached_tokens


class _Absent(ScriptedGeneration):
    async def stream(self, receive: Callable[[Delta], None]) -> None:
        raise EnginesAway("none of the engines answers")


class StartsLater(ScriptedModel):
    """Its engine is not there for the first two readings."""

    def prefill_ahead(self, prompt: Sequence[int], *, salt: str = "", exact: bool = False) -> ScriptedGeneration | None:
        reading = super().prefill_ahead(prompt, salt=salt, exact=exact)
        return _Absent("", len(prompt), Sampling(), 1) if len(self.ahead) <= 2 else reading


async def test_a_worker_that_is_there_before_its_engine_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EnginesAway, "retry_after_s", 0.0)
    model = StartsLater([""])
    await prefill_shared_prefixes(Agent(model, None, builtin_toolbox(None)), ROSTER)
    assert len(model.ahead) == 5 and len(set(model.ahead)) == 3


async def test_answered_questions_are_read_one_by_one_as_long_as_the_worker_runs() -> None:
    model, heard = ScriptedModel(["Fact 1 [1]."] * 2), asyncio.Event()
    agent = Agent(model, ShelfSearcher([passage(1)]), Toolbox())
    reading = asyncio.create_task(read_answered_questions(agent, heard.set))
    for place in ("Bremen", "Lisbon"):
        heard.clear()
        await agent.run(asked(f"A harbour in {place}?", file_search=FileSearch(("docs",))), Trace(), EventList())
        await heard.wait()
        assert place in model.ahead[-1]
    reading.cancel()
