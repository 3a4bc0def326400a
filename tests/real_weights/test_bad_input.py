"""What no API allows is refused by the name of the field, whichever template would have to render it."""

from __future__ import annotations

from typing import Any

import anthropic as claude
import pytest
from anthropic import Anthropic
from openai import BadRequestError, OpenAI

from tests.real_weights.behaviours import MODELS

HI: dict[str, Any] = {"role": "user", "content": "Hi"}
CHATS = {
    "an invented role": ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages[0].role"),
    "a role that is no text": ({"messages": [{"role": 7, "content": "Hi"}]}, "messages[0]"),
    "a content that is a number": ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    "no messages": ({"messages": []}, "messages"),
    "a temperature in words": ({"temperature": "hot"}, "temperature"),
    "half a token": ({"max_tokens": 0.5}, "max_tokens"),
    "tools that are no list": ({"tools": "look_up"}, "tools"),
    "a tool without a name": ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    "a choice that is not offered": (
        {"tool_choice": {"type": "function", "function": {"name": "look_up"}}},
        "tool_choice",
    ),
    "a result without a call": (
        {"messages": [HI, {"role": "tool", "tool_call_id": "call_9", "content": "It is red."}]},
        "messages",
    ),
    "a stop string that is a number": ({"stop": 7}, "stop"),
    "an invented format": ({"response_format": {"type": "poem"}}, "response_format"),
}
ITEMS = {
    "an invented role": ({"input": [{"role": "wizard", "content": "Hi"}]}, "input[0]"),
    "an invented item": ({"input": [{"type": "spell", "text": "Hi"}]}, "input[0]"),
    "a result without a call": (
        {"input": [HI, {"type": "function_call_output", "call_id": "call_9", "output": "It is red."}]},
        "input",
    ),
}


@pytest.mark.parametrize(("asked", "field"), CHATS.values(), ids=CHATS.keys())
def test_a_bad_chat_is_refused_by_its_field(client: OpenAI, asked: dict[str, Any], field: str) -> None:
    for model in MODELS:
        with pytest.raises(BadRequestError) as refused:
            client.chat.completions.create(**{"model": model, "messages": [HI], **asked})
        assert (refused.value.param or "").startswith(field), model


@pytest.mark.parametrize(("asked", "field"), ITEMS.values(), ids=ITEMS.keys())
def test_a_bad_response_is_refused_by_its_field(client: OpenAI, asked: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model="strict", **asked)
    assert (refused.value.param or "").startswith(field)


def test_a_bad_message_is_refused_by_its_field(anthropic: Anthropic) -> None:
    wizard: Any = {"role": "wizard", "content": "Hi"}
    with pytest.raises(claude.BadRequestError, match=r"messages\[0\].*role"):
        anthropic.messages.create(model="strict", messages=[wizard], max_tokens=4)
    with pytest.raises(claude.BadRequestError, match="max_tokens"):
        anthropic.messages.create(model="strict", messages=[HI], max_tokens=0)  # type: ignore[list-item]
