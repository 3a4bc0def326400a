"""litellm: its documented loop of tools, and its ways to the other surfaces."""

from __future__ import annotations

from typing import Any

import litellm
from pydantic import BaseModel, Field
from scenarios import API_KEY, BASE_URL, MODEL, run

ADDRESS: dict[str, Any] = {"api_base": BASE_URL, "api_key": API_KEY}
HELLO = [{"role": "user", "content": "hello"}]
ASKED = [{"role": "user", "content": "Get the weather for Oslo."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}


class Plan(BaseModel):
    title: str = Field(max_length=12)
    hours: int = Field(ge=0, le=24)


def complete(messages: list[Any], **options: Any) -> Any:
    options = {"model": f"openai/{MODEL}", "temperature": 0, "max_tokens": 100, **ADDRESS, **options}
    return litellm.completion(messages=messages, **options)


def loop(streamed: bool) -> dict[str, Any]:
    """As the documentation has it: the message goes back as the object that it came in."""
    messages: list[Any] = list(ASKED)
    calls = []
    for _ in range(3):
        answer = complete(messages, tools=[TOOL], tool_choice="auto", stream=streamed)
        if streamed:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            calls.append(call.function.arguments)
            result = {"tool_call_id": call.id, "role": "tool", "name": call.function.name, "content": "rain"}
            messages.append(result)
    return {"calls": calls, "text": message.content}


def typed() -> dict[str, Any]:
    answer = complete(HELLO, response_format=Plan)
    return Plan.model_validate_json(answer.choices[0].message.content).model_dump()


def refused() -> dict[str, Any]:
    try:
        complete(HELLO, temperature=9)
    except litellm.BadRequestError as error:
        return {"status": error.status_code, "text": str(error)}
    return {}


def messages_api() -> str:
    """By Anthropic's API."""
    answer = complete(HELLO, model=f"anthropic/{MODEL}", api_base=BASE_URL.removesuffix("/v1"))
    return str(answer.choices[0].message.content)


def responses() -> str:
    answer = litellm.responses(model=f"openai/{MODEL}", input="hello", temperature=0, **ADDRESS)
    return str(answer.output[0].content[0].text)


def embedding() -> int:
    return len(litellm.embedding(model="openai/minilm-l6-v2", input=["a", "b"], **ADDRESS).data)


def text_completion() -> int:
    asked = {"model": f"text-completion-openai/{MODEL}", "prompt": "Once", "max_tokens": 4}
    return int(litellm.text_completion(**asked, **ADDRESS).usage.completion_tokens)


run(
    loop=lambda: loop(False),
    loop_streamed=lambda: loop(True),
    typed=typed,
    refused=refused,
    messages_api=messages_api,
    responses=responses,
    embedding=embedding,
    text_completion=text_completion,
)
