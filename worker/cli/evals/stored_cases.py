"""Stored answers of a tenant as cases, and as examples for fine-tuning in the format of chat completions. Pure.

What may identify somebody or grant access is removed, as far as its format reveals it. Names of people have no format:
read a file before handing it on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from agents.store.responses import Answered
from worker.cli.evals.suite import CALLS_MAX, TOKENS

CHARS_MAX = 100_000  # of one text; the rest is cut off
# Linear in the length of the text: no part of a pattern can match in two ways.
_KINDS = (
    ("url", re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://\S{1,2000}", re.IGNORECASE)),
    ("email", re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}")),
    ("key", re.compile(r"\b(?:sk|pk|ft|ghp|xox[abp])[-_][A-Za-z0-9_-]{12,}")),
    ("id", re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")),
    ("account", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,4})?\b")),
    ("address", re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")),
    ("number", re.compile(r"(?<![\w.])\+?+\(?+\d{1,4}+\)?+(?:[ /.-]?+\(?+\d{1,5}+\)?+){1,7}+(?!\w)")),
    ("token", re.compile(r"\b(?=[A-Za-z_-]{0,64}\d)[A-Za-z0-9_-]{32,}")),
)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
DIGITS_MIN = 7  # of a phone number or a card; dates and prices have fewer


def redacted(text: str) -> str:
    """With placeholders such as [email] for what was removed."""
    text = text[:CHARS_MAX]
    for name, form in _KINDS:
        text = form.sub(lambda found, name=name: _mark(name, found[0]), text)  # type: ignore[misc]
    return text


def _mark(name: str, found: str) -> str:
    if name == "number" and (sum(map(str.isdigit, found)) < DIGITS_MIN or _DATE.fullmatch(found)):
        return found
    return f"[{name}]"


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


def example_of(answer: Answered) -> dict[str, Any] | None:
    """Redacted; None for an answer that does not follow from its messages alone, because of passages or server tools,
    or with anything but text in it."""
    case = case_of(answer, judged=False)
    if case is None or "stores" in case:
        return None
    tools = case.get("tools") or []
    calls = [item for item in answer.body.get("output") or () if item["type"] == "function_call"]
    if any(call["name"] not in {tool["name"] for tool in tools} for call in calls):
        return None
    wrote: dict[str, Any] = {"role": "assistant", "content": said_in(answer) or None}
    if calls:
        wrote["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": call["name"], "arguments": orjson.dumps(cleaned(call["arguments"])).decode()},
            }
            for number, call in enumerate(calls, 1)
        ]
    system = [{"role": "system", "content": case["instructions"]}] if "instructions" in case else []
    example: dict[str, Any] = {"messages": [*system, *case["messages"], wrote]}
    if tools:
        example["tools"] = [{"type": "function", "function": tool} for tool in tools]
    return example
