"""The loop on the bundled model: what only a real tokenizer, template and KV cache can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agents.agent import Agent
from agents.events import EventList, TextDelta
from agents.message import FunctionCall, Message
from agents.tools import builtin_toolbox
from agents.turn import Turn
from inference.config import EngineConfig
from inference.generation import Sampling
from inference.model import ChatModel
from inference.trace import Span, Trace
from tests.agents.turns import TENANT, Ran, check_order, user

GREEDY = Sampling(temperature=0.0, max_tokens=128)
TOOLS = ("calculator", "current_time", "convert_units")


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[ChatModel]:
    model = await asyncio.to_thread(ChatModel.load, EngineConfig())
    await model.start()
    yield model
    await model.close()


async def run(model: ChatModel, turn: Turn) -> Ran:
    trace = Trace()
    told = EventList()
    await Agent(model, None, builtin_toolbox(None)).run(turn, trace, told)
    check_order(told.events)
    return Ran(told.events, trace)


async def test_a_sum_is_calculated_and_told(model: ChatModel) -> None:
    ran = await run(model, Turn(TENANT, (user("What is 12 * 7?"),), server_tools=TOOLS, sampling=GREEDY))
    assert [(call.name, call.arguments) for call in ran.calls] == [("calculator", '{"expression": "12 * 7"}')]
    assert "84" in ran.answer


@pytest.mark.any_answer("whatever it says, it is no call")
async def test_who_may_call_nothing_more_answers_in_words(model: ChatModel) -> None:
    """This model begins with a call to what asks for one, also where it is offered none."""
    ran = await run(model, Turn(TENANT, (user("What is 12 * 7?"),), sampling=GREEDY))
    assert sum(isinstance(event, TextDelta) for event in ran.events) > 3 and "{" not in ran.answer


async def test_the_second_step_prefills_only_the_result(model: ChatModel) -> None:
    turn = Turn(TENANT, (user("Convert 5 miles to kilometers"),), server_tools=TOOLS, sampling=GREEDY)
    ran = await run(model, turn)
    first, second = (span for span in ran.trace.spans if span.name == "prefill")
    decode = next(span for span in ran.trace.spans if span.name == "decode")
    before = number(first, "new_tokens") + number(first, "cached_tokens") + number(decode, "tokens")
    assert number(second, "cached_tokens") == before
    assert isinstance(ran.output[0], FunctionCall)


async def test_the_next_turn_of_a_conversation_prefills_only_what_is_new(model: ChatModel) -> None:
    first = await run(model, Turn(TENANT, (user("Hello"),), sampling=GREEDY))
    history = (user("Hello"), *first.output)
    second = await run(model, Turn(TENANT, (user("Thank you"),), history, sampling=GREEDY))
    assert isinstance(second.output[0], Message)
    before = first.finished.usage
    assert second.finished.usage.cached_tokens == before.input_tokens + before.output_tokens


async def test_a_date_in_the_system_text_is_found_out(model: ChatModel) -> None:
    def turn(date: str) -> Turn:
        instructions = f"You are the helpful assistant of a small shop. Today is {date}. Be brief and friendly."
        return Turn(TENANT, (user("Hello"),), instructions=instructions, sampling=GREEDY)

    first, again, edited = [await run(model, turn(date)) for date in ("Friday", "Friday", "Saturday")]
    assert verdict(first)[1] == "first_use"
    assert verdict(again) == (None, None)
    assert verdict(edited) == ("system", "edited")


def verdict(ran: Ran) -> tuple[object, object]:
    attributes = next(span.attributes for span in ran.trace.spans if span.name == "prefill")
    return attributes.get("cache.segment"), attributes.get("cache.cause")


def number(span: Span, name: str) -> int:
    value = span.attributes[name]
    assert isinstance(value, int)
    return value
