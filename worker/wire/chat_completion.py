"""Chat completions, whole and in chunks. Pure: chunks are made of what happens in a turn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from agents.events import ArgumentsDelta, Event, ItemStarted, TextDelta, TurnFinished, TurnStarted, Usage
from agents.message import FunctionCall, FunctionCallOutput, Item, Message, new_id
from agents.payload import logprob_payloads
from inference.sequence import TokenLogprob
from worker.wire.chat_request import ChatRequest
from worker.wire.tier import tier_used

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]
Chunk: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class ChatNarrator:
    """Tells one completion. Calls of functions that the caller did not give are not shown: nobody could run them."""

    request: ChatRequest
    model: str
    id: str = field(default_factory=lambda: new_id("chatcmpl"))
    created: int = field(default_factory=lambda: int(time.time()))
    _calls: dict[str, int] = field(default_factory=dict)  # item id -> index among the shown calls

    def tell(self, event: Event) -> list[Chunk]:
        """The chunks that an event becomes. The end of a turn is told by `conclude`."""
        logprobs = event.logprobs if isinstance(event, TextDelta) else ()
        return [self._chunk(delta, logprobs=logprobs) for delta in self._deltas(event)]

    def conclude(self, finished: TurnFinished) -> list[Chunk]:
        """The last chunks: why the answer ended, and what it cost when the caller asked for that."""
        if finished.status == "failed":
            return [{"error": failure(finished)}]
        chunks = [self._chunk({}, finish_reason(finished, self.request))]
        if self.request.with_usage:
            chunks.append({**self._chunk({}), "choices": [], "usage": usage_object(finished.usage)})
        return chunks

    def whole(self, finished: TurnFinished) -> dict[str, Any]:
        """The completion as one object."""
        texts = [item.text for item in finished.output if isinstance(item, Message) and item.text]
        calls = open_calls(finished, self.request)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "\n".join(texts) if texts or not calls else None,
            "refusal": None,
            "annotations": [],
        }
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": finish_reason(finished, self.request),
            "logprobs": _logprobs([told for item in finished.output for told in _told(item)]),
        }
        return {**self._frame("chat.completion", [choice]), "usage": usage_object(finished.usage)}

    def _deltas(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case TurnStarted():
                yield {"role": "assistant", "content": ""}
            case TextDelta():
                yield {"content": event.text}
            case ItemStarted(_, FunctionCall() as call) if call.name in self.request.functions_given:
                # The arguments begin in a fragment of their own: clients lose what rides with the name.
                index = self._calls[call.id] = len(self._calls)
                yield {"tool_calls": [{"index": index, **_call(call)}]}
            case ArgumentsDelta() if event.item_id in self._calls:
                yield {"tool_calls": [{"index": self._calls[event.item_id], "function": {"arguments": event.text}}]}

    def _chunk(
        self, delta: dict[str, Any], finish: FinishReason | None = None, logprobs: Sequence[TokenLogprob] = ()
    ) -> Chunk:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": _logprobs(logprobs)}
        chunk = self._frame("chat.completion.chunk", [choice])
        return {**chunk, "usage": None} if self.request.with_usage else chunk

    def _frame(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "service_tier": tier_used(self.request.service_tier),
            "system_fingerprint": None,
            "choices": list(choices),
        }


def open_calls(finished: TurnFinished, request: ChatRequest) -> list[FunctionCall]:
    """Calls that wait for the caller."""
    answered = {item.call_id for item in finished.output if isinstance(item, FunctionCallOutput)}
    return [
        item
        for item in finished.output
        if isinstance(item, FunctionCall) and item.name in request.functions_given and item.call_id not in answered
    ]


def finish_reason(finished: TurnFinished, request: ChatRequest) -> FinishReason:
    if finished.status == "incomplete":
        return "length"
    return "tool_calls" if open_calls(finished, request) else "stop"


def failure(finished: TurnFinished) -> dict[str, Any]:
    message = finished.error_message or "The answer could not be finished. Please try again."
    return {"message": message, "type": "server_error", "param": None, "code": finished.error_code or "server_error"}


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _call(call: FunctionCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _told(item: Item) -> Sequence[TokenLogprob]:
    return item.logprobs if isinstance(item, Message) else ()


def _logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    return {"content": logprob_payloads(logprobs), "refusal": None} if logprobs else None
