"""Events of a streamed response, one builder each, named as the public contract names them.

An event is a dict with `type`; the narrator numbers it. Events of our own are "firsttoken:<name>" and may be ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from agents.events import Queued, TurnFinished
from retrieval.passage import Passage

WireEvent: TypeAlias = dict[str, Any]

QUEUED = "firsttoken:queued"
CUT = "firsttoken:cut"


def response(kind: str, snapshot: dict[str, Any]) -> WireEvent:
    """`kind` is created, queued, in_progress, completed, incomplete or failed."""
    return {"type": f"response.{kind}", "response": snapshot}


def cut(finished: TurnFinished) -> dict[str, str]:
    """The field that says what cut an answer off: see `TurnFinished`."""
    return {CUT: finished.cut} if finished.cut else {}


def steer(kind: str, response_id: str, steer_id: str | None, more: Mapping[str, Any] | None = None) -> WireEvent:
    """`kind` is accepted or failed; a steer that was refused has no id."""
    named = {"id": steer_id} if steer_id else {}
    return {"type": f"response.steer.{kind}", "steer": {**named, "previous_response_id": response_id, **(more or {})}}


def error(details: dict[str, Any]) -> WireEvent:
    """An error; `details` are type, code, message and param. The OpenAI client raises it immediately."""
    return {"type": "error", "error": details}


def output_item_added(output_index: int, item: dict[str, Any]) -> WireEvent:
    return {"type": "response.output_item.added", "output_index": output_index, "item": item}


def output_item_done(output_index: int, item: dict[str, Any]) -> WireEvent:
    return {"type": "response.output_item.done", "output_index": output_index, "item": item}


def output_text_part(text: str = "", annotations: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}


def reasoning_part(text: str = "") -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def content_part_added(output_index: int, item_id: str, part: dict[str, Any]) -> WireEvent:
    return _of_text("response.content_part.added", output_index, item_id) | {"part": part}


def content_part_done(output_index: int, item_id: str, part: dict[str, Any]) -> WireEvent:
    return _of_text("response.content_part.done", output_index, item_id) | {"part": part}


def output_text_delta(output_index: int, item_id: str, delta: str, logprobs: Sequence[dict[str, Any]]) -> WireEvent:
    return _of_text("response.output_text.delta", output_index, item_id) | {"delta": delta, "logprobs": list(logprobs)}


def output_text_done(output_index: int, item_id: str, text: str, logprobs: Sequence[dict[str, Any]]) -> WireEvent:
    return _of_text("response.output_text.done", output_index, item_id) | {"text": text, "logprobs": list(logprobs)}


def reasoning_text_delta(output_index: int, item_id: str, delta: str) -> WireEvent:
    return _of_text("response.reasoning_text.delta", output_index, item_id) | {"delta": delta}


def reasoning_text_done(output_index: int, item_id: str, text: str) -> WireEvent:
    return _of_text("response.reasoning_text.done", output_index, item_id) | {"text": text}


def annotation_added(output_index: int, item_id: str, annotation_index: int, annotation: dict[str, Any]) -> WireEvent:
    event = _of_text("response.output_text.annotation.added", output_index, item_id)
    return event | {"annotation_index": annotation_index, "annotation": annotation}


def arguments_delta(output_index: int, item_id: str, delta: str, form: str = "function") -> WireEvent:
    """`form` is function or mcp."""
    return _of_item(f"response.{form}_call_arguments.delta", output_index, item_id) | {"delta": delta}


def arguments_done(output_index: int, item_id: str, name: str, arguments: str) -> WireEvent:
    event = _of_item("response.function_call_arguments.done", output_index, item_id)
    return event | {"name": name, "arguments": arguments}


def mcp_arguments_done(output_index: int, item_id: str, arguments: str) -> WireEvent:
    return _of_item("response.mcp_call_arguments.done", output_index, item_id) | {"arguments": arguments}


def mcp(kind: str, state: str, output_index: int, item_id: str) -> WireEvent:
    """`kind` is call or list_tools, `state` in_progress, completed or failed."""
    return _of_item(f"response.mcp_{kind}.{state}", output_index, item_id)


def input_delta(output_index: int, item_id: str, delta: str) -> WireEvent:
    return _of_item("response.custom_tool_call_input.delta", output_index, item_id) | {"delta": delta}


def input_done(output_index: int, item_id: str, text: str) -> WireEvent:
    return _of_item("response.custom_tool_call_input.done", output_index, item_id) | {"input": text}


def shell_command(kind: str, output_index: int, command_index: int, text: str) -> WireEvent:
    """`kind` is added, delta or done."""
    field = "delta" if kind == "delta" else "command"
    event = {"type": f"response.shell_call_command.{kind}", "output_index": output_index}
    return event | {"command_index": command_index, field: text}


def file_search(kind: str, output_index: int, item_id: str) -> WireEvent:
    """`kind` is in_progress, searching or completed."""
    return _of_item(f"response.file_search_call.{kind}", output_index, item_id)


def sources(response_id: str, output_index: int, passages: Sequence[Passage]) -> WireEvent:
    """The passages that the answer may cite; passages[i] is [i + 1] in its text."""
    return {
        "type": "firsttoken:sources",
        "response_id": response_id,
        "output_index": output_index,
        "passages": [
            {
                "number": number,
                "file_id": passage.file_id,
                "filename": passage.filename,
                "title": passage.title,
                "text": passage.text,
                "start_char": passage.start_char,
                "end_char": passage.end_char,
                "score": passage.score,
            }
            for number, passage in enumerate(passages, 1)
        ],
    }


def waiting(event: Queued) -> dict[str, Any]:
    """The position of a request in the model's queue."""
    return {"place": event.place, "expected_ms": event.expected_ms}


def queued(response_id: str, event: Queued) -> WireEvent:
    return {"type": QUEUED, "response_id": response_id, **waiting(event)}


def trace(payload: dict[str, Any]) -> WireEvent:
    """The trace of this turn: where its time went."""
    return {"type": "firsttoken:trace", "trace": payload}


def _of_item(kind: str, output_index: int, item_id: str) -> WireEvent:
    return {"type": kind, "item_id": item_id, "output_index": output_index}


def _of_text(kind: str, output_index: int, item_id: str) -> WireEvent:
    return _of_item(kind, output_index, item_id) | {"content_index": 0}
