"""A strict reader of streamed responses: it knows the contract's law of order and rebuilds the answer from deltas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Event = Mapping[str, Any]

# Every key of a response object; null only where the contract says so.
RESPONSE_KEYS = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "error", "model",
    "previous_response_id", "instructions", "output", "tools", "tool_choice", "truncation", "parallel_tool_calls",
    "text", "temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "reasoning", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier",
    "prompt_cache_key",
}  # fmt: skip
NEVER_NULL = RESPONSE_KEYS - {
    "completed_at", "incomplete_details", "error", "previous_response_id", "instructions", "usage",
    "max_output_tokens", "max_tool_calls", "safety_identifier", "prompt_cache_key", "reasoning",
}  # fmt: skip
EMPTY_PARTS: Mapping[str, Any] = {
    "message": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "reasoning": {"type": "reasoning_text", "text": ""},
}
OPENING = ["response.created", "response.in_progress"]
OPENING_LATER = ["response.created", "response.queued", "response.in_progress"]  # of one in the background
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


def check_response(response: Mapping[str, Any]) -> None:
    assert response.keys() >= RESPONSE_KEYS
    assert [key for key in sorted(NEVER_NULL) if response[key] is None] == []
    assert [item for item in response["output"] if not {"id", "type", "status"} <= item.keys()] == []


class Reader:
    """Feed it every event in order. `items` are the finished items by output index, `texts` what deltas added up to."""

    def __init__(self) -> None:
        self.types: list[str] = []
        self.items: dict[int, Mapping[str, Any]] = {}
        self.open: dict[int, Mapping[str, Any]] = {}
        self.texts: dict[int, str] = {}
        self.parts: set[int] = set()
        self.annotations: dict[int, list[Any]] = {}
        self.final: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, events: Iterable[Event]) -> Reader:
        reader = cls()
        for event in events:
            reader.feed(event)
        return reader

    def feed(self, event: Event) -> None:
        assert self.final is None, "nothing follows the terminal event"
        assert event["sequence_number"] == len(self.types)
        assert "error" not in event, "clients take a top-level error for the end"
        kind = event["type"]
        self.types.append(kind)
        if "response" in event and kind not in TERMINAL:
            opening = OPENING_LATER if event["response"]["background"] else OPENING
            assert self.types == opening[: len(self.types)]
        if "response" in event:
            check_response(event["response"])
        if kind in TERMINAL:
            self._end(event["response"], kind)
        elif "output_index" in event and not kind.startswith("firsttoken:"):
            self._of_item(kind, event, event["output_index"])

    def _end(self, response: Mapping[str, Any], kind: str) -> None:
        assert kind == f"response.{response['status']}"
        assert self.open == {}, "items are closed before the response"
        assert list(response["output"]) == [item for _, item in sorted(self.items.items())]
        assert response["usage"] is not None
        self.final = response

    def _of_item(self, kind: str, event: Event, index: int) -> None:
        if kind == "response.output_item.added":
            assert index == len(self.open) + len(self.items), "indexes count up without gaps"
            assert event["item"]["status"] == "in_progress"
            assert event["item"].get("content", []) == []
            self.open[index], self.texts[index], self.annotations[index] = event["item"], "", []
            return
        assert index in self.open, f"{kind} belongs to an open item"
        if kind == "response.output_item.done":
            self._close(event["item"], index)
            return
        assert event["item_id"] == self.open[index]["id"]
        self._inside(kind, event, index)

    def _inside(self, kind: str, event: Event, index: int) -> None:
        if kind == "response.content_part.added":
            assert event["part"] == EMPTY_PARTS[self.open[index]["type"]]
            self.parts.add(index)
        elif kind in (
            "response.output_text.delta",
            "response.reasoning_text.delta",
            "response.function_call_arguments.delta",
        ):
            assert event["delta"]
            self.texts[index] += event["delta"]
        elif kind == "response.output_text.annotation.added":
            assert event["annotation_index"] == len(self.annotations[index])
            self.annotations[index].append(event["annotation"])
        elif kind in ("response.output_text.done", "response.reasoning_text.done"):
            assert event["text"] == self.texts[index]
        elif kind == "response.function_call_arguments.done":
            assert event["arguments"] == self.texts[index]
            assert event["name"] == self.open[index]["name"]
        elif kind == "response.content_part.done":
            assert event["part"]["text"] == self.texts[index]
            assert event["part"].get("annotations", []) == self.annotations[index]
            self.parts.discard(index)

    def _close(self, item: Mapping[str, Any], index: int) -> None:
        assert index not in self.parts, "parts are closed before their item"
        assert item["id"] == self.open.pop(index)["id"]
        assert item["status"] != "in_progress"
        if item["type"] in EMPTY_PARTS:
            assert item["content"][0]["text"] == self.texts[index]
        if item["type"] == "function_call":
            assert item["arguments"] == self.texts[index]
        self.items[index] = item
