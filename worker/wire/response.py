"""The response object of the public contract. Every key is present in every snapshot; clients rely on it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from agents.events import STEERED, TurnFinished, Usage
from agents.message import new_id
from worker.wire import limits
from worker.wire.events import cut
from worker.wire.options import tier_used
from worker.wire.public_view import Dialect
from worker.wire.response_request import ResponseRequest

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
