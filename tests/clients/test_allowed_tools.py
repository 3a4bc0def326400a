"""Tools that a request shows to the model but does not allow."""

from __future__ import annotations

from typing import Any

from openai import OpenAI

from tests.clients.conftest import MODEL


def tool(name: str, description: str) -> Any:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "name": name, "description": description, "parameters": parameters}


TOOLS = [tool("get_weather", "Get the weather for a city."), tool("get_time", "Get the time in a city.")]
ASK: Any = {"model": MODEL, "input": "Get the weather for Oslo.", "tools": TOOLS}


def allowing(name: str, mode: str) -> Any:
    return {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name}]}


def test_a_tool_that_is_not_allowed_is_never_called(client: OpenAI) -> None:
    free = client.responses.create(**ASK, temperature=0)
    assert [getattr(item, "name", None) for item in free.output] == ["get_weather"]
    for mode, temperature in (("auto", 0.0), ("required", 0.0), ("auto", 1.5), ("required", 1.5)):
        choice = allowing("get_time", mode)
        held = client.responses.create(**ASK, temperature=temperature, tool_choice=choice, max_output_tokens=64)
        called = {item.name for item in held.output if item.type == "function_call"}
        assert called <= {"get_time"}
        assert mode == "auto" or called


def test_the_limit_leaves_the_prompt_in_the_cache(client: OpenAI) -> None:
    ask = {**ASK, "instructions": "You know about cities."}
    free = client.responses.create(**ask, temperature=0)
    held = client.responses.create(**ask, temperature=0, tool_choice=allowing("get_time", "auto"))
    assert free.usage is not None and held.usage is not None
    assert held.usage.input_tokens == free.usage.input_tokens
    assert held.usage.input_tokens_details.cached_tokens == free.usage.input_tokens
