"""Turns stored answers into cases: the request, and the expectation that a new answer resembles the accepted one.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from agents.store.answered import Answered
from worker.evals.case import CALLS_MAX, TOKENS
from worker.evals.redaction import redacted

ASKING = ("user", "system", "assistant", "developer")


def case_of(answer: Answered, judged: bool) -> dict[str, Any] | None:
    """As a line of a file, redacted; None for an answer that cannot become a case, such as one about files.

    `judged`: a model decides whether a new answer says the same, instead of counting shared words.
    """
    messages = [each for item in answer.input if (each := _message(item)) is not None]
    output = answer.body.get("output") or []
    calls = [item for item in output if item["type"] == "function_call"]
    text = said_in(answer)
    tools = [_tool(tool) for tool in answer.body.get("tools") or () if tool.get("type") == "function"]
    if len(messages) != len(answer.input) or not any(each["role"] == "user" for each in messages):
        return None
    if not tools and calls:  # only server tools, whose results led to the text
        calls = []
    if not (text or calls) or len(calls) > CALLS_MAX:
        return None
    stores = [
        store
        for tool in answer.body.get("tools") or ()
        if tool.get("type") == "file_search"
        for store in tool.get("vector_store_ids") or ()
    ]
    case: dict[str, Any] = {"id": answer.id[-24:], "messages": messages, "max_tokens": TOKENS}
    if instructions := answer.body.get("instructions"):
        case["instructions"] = redacted(str(instructions))
    if tools:
        case["tools"] = tools
    if stores:
        case["stores"] = stores
    return {**case, "expect": _expected(calls, text, judged)}


def said_in(answer: Answered) -> str:
    """Its text, redacted."""
    return redacted(_text(item for item in answer.body.get("output") or () if item["type"] == "message")).strip()


def _expected(calls: list[Mapping[str, Any]], text: str, judged: bool) -> dict[str, Any]:
    if calls:
        return {"calls": [{"name": each["name"], "arguments": cleaned(each["arguments"])} for each in calls]}
    return {"judge": f"It says the same as this answer, which was right:\n{text}"} if judged else {"like": text}


def _message(item: Mapping[str, Any]) -> dict[str, Any] | None:
    if item.get("type") != "message" or item.get("role") not in ASKING:
        return None
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    if any(part.get("type") not in ("input_text", "output_text", "text") for part in parts):
        return None
    role = "system" if item["role"] == "developer" else item["role"]
    text = content if isinstance(content, str) else "\n".join(part["text"] for part in parts)
    return {"role": role, "content": redacted(text)}


def _text(items: Iterable[Mapping[str, Any]]) -> str:
    return "".join(part.get("text", "") for item in items for part in item.get("content") or ())


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    told = {"name": tool["name"], "description": tool.get("description") or ""}
    return {**told, "parameters": tool.get("parameters") or {}}


def cleaned(text: str) -> Any:
    """Redacted string by string, so that the structure stays intact."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return redacted(value)
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items()}
        return [clean(each) for each in value] if isinstance(value, list) else value

    try:
        return clean(orjson.loads(text or "{}"))
    except orjson.JSONDecodeError:
        return {}
