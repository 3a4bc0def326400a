"""A well-known framework on top of the API: LangChain's chat model running a loop of tools, whole and streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import httpx
import pytest
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.clients.conftest import MODEL

Model = Runnable[LanguageModelInput, AIMessage]
QUESTION = "What is 140 + 2?"


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression and return the number.

    Args:
        expression: The expression
    """
    terms = [int(term) for term in expression.split("+")]
    return str(sum(terms))


class Weather(BaseModel):
    """What the weather is like. The bounds hold a model of eleven million weights, which does not know when to stop."""

    city: Annotated[str, Field(max_length=30)]
    celsius: Annotated[int, Field(ge=-90, le=60)]


def said_at_once(model: Model, messages: list[BaseMessage]) -> AIMessage:
    return model.invoke(messages)


def said_in_pieces(model: Model, messages: list[BaseMessage]) -> AIMessage:
    """The pieces added up; a program would show them as they come."""
    pieces = [piece for piece in model.stream(messages) if isinstance(piece, AIMessageChunk)]
    return add_ai_message_chunks(*pieces)


@pytest.fixture(scope="module", params=[False, True], ids=["chat completions", "responses"])
def model(server: Mapping[str, Any], request: pytest.FixtureRequest) -> Iterator[ChatOpenAI]:
    with httpx.Client(timeout=60) as http:  # nobody would close its own one
        yield ChatOpenAI(
            model=MODEL,
            base_url=f"{server['url']}/v1",
            api_key=server["api_key"],
            temperature=0,
            max_retries=0,
            stream_usage=True,
            use_responses_api=request.param,
            http_client=http,
        )


@pytest.mark.parametrize("said", [said_at_once, said_in_pieces])
def test_a_loop_of_tools_comes_to_an_answer(
    model: ChatOpenAI, said: Callable[[Model, list[BaseMessage]], AIMessage]
) -> None:
    agent = model.bind_tools([calculator])
    messages: list[BaseMessage] = [HumanMessage(QUESTION)]
    while (answer := said(agent, messages)).tool_calls:
        assert len(messages) < 8, "the loop does not come to an end"
        messages.append(answer)
        messages += [calculator.invoke(call) for call in answer.tool_calls]
    assert len(messages) == 3
    assert "142" in answer.text
    assert answer.usage_metadata is not None and answer.usage_metadata["output_tokens"] > 0


def test_a_structured_answer_is_an_object_of_its_class(model: ChatOpenAI) -> None:
    weather = model.with_structured_output(Weather).invoke("Say something about the weather of Oslo.")
    assert isinstance(weather, Weather)
