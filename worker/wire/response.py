"""The response object of the public contract, its items, and events as clients see them, in two dialects: OpenAI's own
and that of the Open Responses specification. And what a person thinks of it.

The header `OpenResponses-Version` of the request that creates a response selects the second; the default is the first.
They differ only in this: reasoning has another name, an error is an event before the response fails, and citations are
identified by their URL alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import StringConstraints

from agents.events import STEERED, TurnFinished, Usage
from agents.message import Item, new_id
from agents.payload import CALLS, to_payload
from inference.frozen import dataclass
from worker.wire import limits
from worker.wire.events import WireEvent, cut, error
from worker.wire.options import tier_used
from worker.wire.response_request import ResponseRequest
from worker.wire.strict import Strict

DIALECT_HEADER = "OpenResponses-Version"
RENAMED = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}


class Dialect(Enum):
    OPENAI = "openai"
    OPEN_RESPONSES = "open_responses"

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Dialect:
        return cls.OPEN_RESPONSES if DIALECT_HEADER in headers else cls.OPENAI

    def spelled(self, event: WireEvent) -> list[WireEvent]:
        """An event of the first dialect in this one."""
        if self is Dialect.OPENAI:
            return [event]
        renamed = {**event, "type": RENAMED.get(event["type"], event["type"])}
        return [error(_complaint(event["response"])), renamed] if event["type"] == "response.failed" else [renamed]

    def cited(self, item: dict[str, Any]) -> dict[str, Any]:
        """An item of the first dialect, with its citations in this one."""
        if self is Dialect.OPENAI or item["type"] != "message":
            return item
        return {**item, "content": [_with_urls(part) for part in item["content"]]}


def _with_urls(part: dict[str, Any]) -> dict[str, Any]:
    notes = part.get("annotations")
    return {**part, "annotations": [{**note, "type": "url_citation"} for note in notes]} if notes else part


def _complaint(response: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "server_error", "param": None, **(response["error"] or {})}


def public_item(item: Item, with_results: bool = False, dialect: Dialect = Dialect.OPENAI) -> dict[str, Any]:
    """An item as clients see it: search results only on request."""
    return dialect.cited(_public(to_payload(item), with_results))


def public_response(body: dict[str, Any], with_results: bool = False) -> dict[str, Any]:
    """A stored response as clients see it."""
    return {**body, "output": [_public(item, with_results) for item in body["output"]]}


def _public(payload: dict[str, Any], with_results: bool) -> dict[str, Any]:
    match payload:
        case {"type": "file_search_call"} if not with_results:
            return {**payload, "results": None}
        case {"type": type, "status": "failed"} if type in CALLS and type != "mcp_call":  # others do not fail
            return {**payload, "status": "incomplete"}
    return payload


BUDGET = "firsttoken:budget"  # metadata of an answer that was concluded because this budget was spent
Status: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0, **usage.image_details},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """What all snapshots of one response share: its identity and its request."""

    request: ResponseRequest
    model: str
    id: str = field(default_factory=lambda: new_id("resp"))
    created_at: int = field(default_factory=lambda: int(time.time()))
    dialect: Dialect = Dialect.OPENAI
    usual: Mapping[str, float] = field(default_factory=dict)  # sampling of the model, where the request sets none
    _told: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # the first snapshot

    def queued(self) -> dict[str, Any]:
        return self.snapshot("queued", ())

    def started(self) -> dict[str, Any]:
        return self.snapshot("in_progress", ())

    def finished(self, turn: TurnFinished, output: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The final object of a turn; `output` are its items in the public format."""
        snapshot = self.snapshot(turn.status, output)
        if turn.status != "cancelled":  # the usage of an interrupted answer is not known
            snapshot["usage"] = usage_object(turn.usage)
        if turn.status == "completed":
            snapshot["completed_at"] = int(time.time())
        if turn.status == "incomplete":
            reason = STEERED if turn.cut == STEERED else "max_output_tokens"
            snapshot["incomplete_details"] = {"reason": reason, **cut(turn)}
        if turn.budget is not None and len(snapshot["metadata"]) < limits.METADATA_PAIRS_MAX:
            snapshot["metadata"] = {**snapshot["metadata"], BUDGET: turn.budget}
        if turn.status == "failed":
            snapshot["error"] = {
                "code": turn.error_code or "server_error",
                "message": turn.error_message or "The answer could not be completed. Please try again.",
            }
        return snapshot

    def snapshot(self, status: Status, output: Sequence[dict[str, Any]]) -> dict[str, Any]:
        if not self._told:
            self._told.update(self._first())
        return {**self._told, "status": status, "output": list(output)}

    def _first(self) -> dict[str, Any]:
        request, sampling = self.request, self.request.drawn.completed(self.usual)
        verbosity = request.switches.verbosity
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": None,
            "status": None,
            "incomplete_details": None,
            "error": None,
            "model": self.model,
            "previous_response_id": request.previous_response_id,
            "conversation": request.conversation and {"id": request.conversation.id},
            "instructions": request.instructions,
            "output": [],
            "tools": [tool.echo() for tool in request.tools or ()],
            "tool_choice": request.choice.echo(),
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "max_tool_calls": request.max_tool_calls,
            "truncation": request.truncation or "disabled",
            "text": {"format": request.format.echo(), **({"verbosity": verbosity} if verbosity else {})},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "top_logprobs": request.top_logprobs or 0,
            "reasoning": {"effort": request.switches.effort, "summary": None},
            "usage": None,
            "max_output_tokens": request.max_output_tokens,
            "store": request.stored,
            "background": request.background is True,
            "service_tier": tier_used(request.service_tier),
            "metadata": request.metadata or {},
            "safety_identifier": request.safety_identifier,
            "prompt_cache_key": request.prompt_cache_key,
            **({"prompt_cache_options": options.echo()} if (options := request.prompt_cache_options) else {}),
            "user": request.user,
        }


RATING, COMMENT = "firsttoken:rating", "firsttoken:comment"


class Feedback(Strict):
    """A rating of null removes the feedback."""

    rating: Literal["up", "down"] | None
    comment: Annotated[str, StringConstraints(max_length=limits.METADATA_VALUE_MAX)] | None = None

    @property
    def notes(self) -> dict[str, str | None]:
        return {RATING: self.rating, COMMENT: (self.comment or None) if self.rating else None}


def feedback_object(notes: Mapping[str, str] | None) -> dict[str, str | None] | None:
    """As items show it."""
    return None if notes is None else {"rating": notes.get(RATING), "comment": notes.get(COMMENT)}
