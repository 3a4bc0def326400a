"""The Agents SDK with a tool, over responses, chat completions and a WebSocket, and with a typed answer."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from scenarios import API_KEY, BASE_URL, MODEL, run

from agents import (
    Agent,
    AgentOutputSchema,
    ModelSettings,
    OpenAIProvider,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)

set_tracing_disabled(True)
GREEDY = ModelSettings(temperature=0, max_tokens=100)


class Plan(BaseModel):
    title: str = Field(max_length=12)
    hours: int = Field(ge=0, le=24)
    done: bool | None = None


async def ask(streamed: bool, **options: Any) -> dict[str, Any]:
    """Two turns of a conversation that the SDK keeps."""
    calls: list[str] = []

    @function_tool
    def get_weather(city: str) -> str:
        """Get the weather for a city.

        Args:
            city: The city
        """
        calls.append(city)
        return '{"weather": "rain"}'

    provider = OpenAIProvider(api_key=API_KEY, base_url=BASE_URL, **options)
    agent = Agent(name="Weather", model=MODEL, tools=[get_weather], model_settings=GREEDY)
    session = SQLiteSession("test")
    texts = []
    for asked in ("Get the weather for Oslo.", "hello"):
        told: Any = {"session": session, "run_config": RunConfig(model_provider=provider)}
        if streamed:
            result: Any = Runner.run_streamed(agent, asked, **told)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, asked, **told)
        texts.append(result.final_output)
    return {"calls": calls, "texts": texts}


async def websocket() -> dict[str, Any]:
    def over_http(*_: Any, **__: Any) -> None:
        raise AssertionError("this goes over HTTP")

    with patch.object(AsyncOpenAI, "request", over_http):
        return await ask(True, use_responses_websocket=True)


async def typed() -> dict[str, Any]:
    provider = OpenAIProvider(api_key=API_KEY, base_url=BASE_URL)
    agent = Agent(name="Planner", model=MODEL, output_type=AgentOutputSchema(Plan), model_settings=GREEDY)
    result = await Runner.run(agent, "Plan my day.", run_config=RunConfig(model_provider=provider))
    return result.final_output_as(Plan).model_dump()


run(
    responses=lambda: ask(False),
    responses_streamed=lambda: ask(True),
    chat=lambda: ask(False, use_responses=False),
    chat_streamed=lambda: ask(True, use_responses=False),
    websocket=websocket,
    typed=typed,
)
