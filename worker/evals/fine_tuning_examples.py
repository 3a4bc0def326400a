"""Accepted answers as examples for fine-tuning: conversations in the format of chat completions, with tools. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from agents.store.answered import Answered
from worker.evals.stored_cases import case_of, cleaned, said_in


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
