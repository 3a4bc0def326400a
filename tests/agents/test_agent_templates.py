"""The loop on real weights under the templates of other families: nothing that the API takes or that the loop adds is
refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from agents.agent import Agent
from agents.errors import InvalidTurn
from agents.events import EventList
from agents.function_tool import FunctionTool
from agents.message import FunctionCall, FunctionCallOutput, Message
from agents.toolbox import Toolbox
from agents.tools import builtin_toolbox
from agents.turn import Limits, Turn
from inference.bundled import CHAT_MODEL
from inference.config import EngineConfig
from inference.generation import Sampling
from inference.message_fitting import Capabilities
from inference.model import ChatModel
from inference.trace import Trace
from tests.agents.turns import TENANT, Ran, asked, call, check_order, double, run, user
from tests.inference.families import FAMILIES
from tests.inference.variants import TEMPLATE, write_variant
from tests.scripted import ScriptedModel

SHORT = Sampling(temperature=0.0, max_tokens=24)
STRICT = ("Qwen 3.5", "Mistral, v7 tokenizer", "Gemma 2", "SmolLM2")
LOOK = FunctionTool("look_up", "Finds words.", {"type": "object", "properties": {"q": {"type": "string"}}})
UNTAUGHT = pytest.mark.any_answer("the bundled model was not trained on this template")


@pytest.fixture(scope="module", params=STRICT)
async def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChatModel]:
    path = tmp_path_factory.mktemp("models") / "variant.gguf"
    await asyncio.to_thread(write_variant, CHAT_MODEL, path, {TEMPLATE: FAMILIES[request.param]})
    model = await asyncio.to_thread(ChatModel.load, EngineConfig(model_path=path))
    await model.start()
    yield model
    await model.close()


async def ran(model: ChatModel, turn: Turn) -> Ran:
    trace, told = Trace(), EventList()
    await Agent(model, None, builtin_toolbox(None)).run(replace(turn, sampling=SHORT), trace, told)
    check_order(told.events)
    ran = Ran(told.events, trace)
    assert ran.finished.status in ("completed", "incomplete")
    return ran


@UNTAUGHT
async def test_everyday_orders_are_answered_and_the_trace_tells_what_was_rewritten(model: ChatModel) -> None:
    hi = user("Hi")
    result = FunctionCallOutput("c", "1")
    later = await ran(model, Turn(TENANT, (hi, Message("developer", "Be brief."), hi), instructions="You are Ada."))
    for items in (
        (Message("assistant", "Hello."), hi, hi),
        (hi, FunctionCall("c", "look_up", ""), result, Message("system", "Be brief.")),
        (Message("system", "Greet the user."),),
    ):
        await ran(model, Turn(TENANT, items))
    (assembling,) = (span for span in later.trace.spans if span.name == "assemble")
    told = str(assembling.attributes.get("rewritten", ""))
    assert ("system_as_user, turns_joined" in told) == (model.capabilities.system != "anywhere")


@UNTAUGHT
async def test_a_turn_that_must_call_and_may_not_go_on_is_concluded(model: ChatModel) -> None:
    turn = asked("What is 2+2?", server_tools=("calculator",), tool_choice="required", limits=Limits(steps=1))
    assert (await ran(model, turn)).finished.budget == "steps"


@UNTAUGHT
async def test_the_next_turn_reuses_all_of_the_one_before(model: ChatModel) -> None:
    first = asked("How far is it?", functions=(LOOK,), instructions="You are Ada.")
    before = await ran(model, first)
    next_turn = replace(
        first, history=(*first.input, *before.output), input=(Message("developer", "Short."), user("So?"))
    )
    usage, used = (await ran(model, next_turn)).finished.usage, before.finished.usage
    assert usage.cached_tokens >= used.input_tokens - 8  # the answer's opening may differ from the prompt's end


async def test_a_model_without_tools_is_held_to_those_that_its_prompt_shows() -> None:
    llama = "<|start_header_id|>"  # its calls have another form, if it shows tools
    model = ScriptedModel([call("double", x=2), "4"], capabilities=Capabilities(tools=False), chat_template=llama)
    ran = await run(model, asked(server_tools=("double",), tool_choice="required"), [double])
    assert ran.results == ["4"]
    assert "double" in model.prompts[0] and "double" in model.grammars[0].text and not model.grammars[0].trigger


async def test_tools_are_refused_by_name_where_there_is_no_way_to_show_them() -> None:
    model = ScriptedModel(["Hi"], chat_template="<|channel|>", capabilities=Capabilities(tools=False))
    with pytest.raises(InvalidTurn) as refused:
        await Agent(model, None, Toolbox([double])).run(asked(server_tools=("double",)), Trace(), EventList())
    assert refused.value.param == "tools"
