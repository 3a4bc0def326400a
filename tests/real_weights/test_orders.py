"""Every order of messages that the three APIs allow reaches a model with every template, and nothing gets lost.

What a template takes shows in the prompt. Reading one takes a model long, so of each order one model does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import BadRequestError, OpenAI

from tests.real_weights.behaviours import MODELS, OWN, asking

QUERIES = ("fox",)
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"q": "fox"}'}}
# `call` is an assistant's message with a call, `tool` is its result.
ORDERS = {
    "a system message before every question": "system user assistant system user",
    "a system message that is not the first": "user assistant system user",
    "a developer message between two questions": "user developer user",
    "a system message as the last one": "user system",
    "instructions alone": "system",
    "two kinds of instructions": "system developer user",
    "a system message after a result": "user call tool system",
    "a result": "user call tool",
    "a result, its answer and another question": "user call tool assistant user",
    "two questions in a row": "user user",
    "two answers in a row": "user assistant assistant user",
    "a greeting before the first question": "assistant user",
    "an answer as the last one": "user assistant",
}
ITEMS = {
    "a developer item between two questions": "user developer user",
    "a developer item after a result": "user call tool developer",
    "two results and another question": "user call tool call tool user",
    "a greeting before the first question": "assistant user",
}


def words_of(order: str) -> list[str]:
    """A word for each message, which the others do not have."""
    return [f"{role}-{number}" for number, role in enumerate(order.split())]


def chat_of(order: str) -> list[Any]:
    messages: list[Any] = []
    for role, word in zip(order.split(), words_of(order), strict=True):
        match role:
            case "call":
                messages.append({"role": "assistant", "content": word, "tool_calls": [CALL]})
            case "tool":
                messages.append({"role": "tool", "tool_call_id": "call_1", "content": word})
            case _:
                messages.append({"role": role, "content": word})
    return messages


def items_of(order: str) -> list[Any]:
    items: list[Any] = []
    for role, word in zip(order.split(), words_of(order), strict=True):
        match role:
            case "call":
                items.append({"type": "function_call", "call_id": word, "name": "look_up", "arguments": "{}"})
            case "tool":
                items.append({"type": "function_call_output", "call_id": items[-1]["call_id"], "output": word})
            case _:
                items.append({"role": role, "content": word})
    return items


def prompt_of(client: OpenAI, model: str, messages: list[Any], tools: list[Any] | None = None) -> str:
    """The text that the model reads."""
    url = str(client.base_url).removesuffix("v1/")
    body = {"model": model, "messages": messages, "tools": tools}
    told: Any = client.post(f"{url}tokenize", body=body, cast_to=httpx.Response).json()
    text = client.post(f"{url}detokenize", body={"model": model, "tokens": told["tokens"]}, cast_to=httpx.Response)
    return str(text.json()["content"])


def reader(orders: Mapping[str, str], order: str) -> str:
    """The model that reads this order: in turn, each of them."""
    return MODELS[list(orders.values()).index(order) % len(MODELS)]


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())
def test_a_chat_reaches_every_template_whole_and_in_its_order(client: OpenAI, order: str) -> None:
    messages, wrong = chat_of(order), {}
    client.chat.completions.create(model=reader(ORDERS, order), messages=messages, max_tokens=1)
    for model in MODELS:
        try:
            prompt = prompt_of(client, model, messages)
        except BadRequestError as error:
            wrong[model] = str(error)
            continue
        lost = [word for word in (*words_of(order), *QUERIES[: "call" in order]) if prompt.count(word) != 1]
        spoken = [word for word in words_of(order) if not word.startswith(("system", "developer")) and word not in lost]
        if lost or sorted(spoken, key=prompt.index) != spoken:
            wrong[model] = prompt
    assert not wrong, wrong


@pytest.mark.parametrize("order", ITEMS.values(), ids=ITEMS.keys())
def test_items_of_a_response_reach_every_template(client: OpenAI, order: str) -> None:
    wrong = {}
    asked: dict[str, Any] = {"input": items_of(order), "instructions": "Be brief."}
    client.responses.create(model=reader(ITEMS, order), **asked, max_output_tokens=1, store=False)
    for model in MODELS:
        try:
            client.responses.input_tokens.count(model=model, **asked)
        except BadRequestError as error:
            wrong[model] = str(error)
    assert not wrong, wrong


def test_messages_with_a_later_system_message_reach_every_template(anthropic: Anthropic) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"q": "fox"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "It is red."}
    messages: Any = [
        {"role": "user", "content": "Look it up."},
        {"role": "assistant", "content": [{"type": "text", "text": "At once."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "Thanks."}]},
        {"role": "system", "content": "The user is in a hurry."},
        {"role": "user", "content": "And now?"},
        {"role": "user", "content": "Well?"},
    ]
    wrong = {}
    anthropic.messages.create(model=OWN, system="Be brief.", messages=messages, max_tokens=1)
    for model in MODELS:
        try:
            anthropic.messages.count_tokens(model=model, system="Be brief.", messages=messages)
        except Exception as error:
            wrong[model] = str(error)
    assert not wrong, wrong


@asking("hermes", "strict", "alternating")  # the others take messages as "hermes" does, or in any order
def test_what_the_worker_adds_to_a_turn_breaks_no_template(client: OpenAI, model: str) -> None:
    """A turn whose steps are spent is told to conclude; a format and a demand for a call are told in words."""
    schema: Any = {"type": "json_schema", "name": "sum", "schema": {"type": "object", "properties": {}}}
    usual: Any = {"input": "What is 2+2?", "temperature": 0, "max_output_tokens": 40, "store": False}
    asked: list[Any] = [
        {"tools": [{"type": "firsttoken:calculator"}], "tool_choice": "required", "metadata": {"max_steps": "1"}},
        {"text": {"format": schema}, "max_output_tokens": 1},
    ]
    for each in asked:
        assert client.responses.create(**{**usual, **each}, model=model).output


def test_a_model_without_instructions_has_the_default_of_its_template(client: OpenAI) -> None:
    prompt = prompt_of(client, "own", [{"role": "user", "content": "Hi"}])
    assert "You are a helpful AI assistant named SmolLM" in prompt and prompt.count("<|im_start|>system") == 1
