"""The evaluation as a suite: its cases as lines that `firsttoken eval suite` asks of any server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from inference.prompt import ChatMessage
from training.cases import CATEGORIES, Case, Category
from training.conversations.generator import Generator
from training.evaluate import TOKENS_MAX

NAME = "bundled"


def lines(generator: Generator, count: int, categories: Sequence[Category] = CATEGORIES) -> Iterator[str]:
    """`count` cases of each category; one that is asked for several messages is several cases."""
    yield json.dumps({"suite": {"name": NAME, "max_tokens": TOKENS_MAX}})
    for category in categories:
        slug = re.sub(r"[^a-z]+", "-", category.name)
        for number, case in enumerate(islice(category.cases(generator), count), 1):
            for at in case.at:
                id = f"{slug}-{number}" + (f"-{at}" if len(case.at) > 1 else "")
                yield json.dumps(_told(id, category.name, case, at), ensure_ascii=False)


def _told(id: str, group: str, case: Case, at: int) -> dict[str, Any]:
    tools = [_tool(schema["function"]) for schema in case.schemas]
    messages = _messages(case.prompt(at))
    return {"id": id, "group": group, "messages": messages, "tools": tools, "expect": _expected(case.expected(at))}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    return {name: function[name] for name in ("name", "description", "parameters") if name in function}


def _expected(message: ChatMessage) -> dict[str, Any]:
    if message.tool_calls:
        calls = [{"name": each.name, "arguments": json.loads(each.arguments)} for each in message.tool_calls]
        return {"calls": calls, "ordered": True}
    return {"exact": message.content}


def _messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """As chat completions have them: results are told apart by the ids of their calls, in order."""
    told: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for message in messages:
        each: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            ids = [f"call_{len(told)}_{number}" for number in range(len(message.tool_calls))]
            open_calls += ids
            each["tool_calls"] = [
                {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for id, call in zip(ids, message.tool_calls, strict=True)
            ]
        elif message.role == "tool":
            each["tool_call_id"] = open_calls.pop(0)
        told.append(each)
    return told
