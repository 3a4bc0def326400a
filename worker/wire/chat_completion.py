"""The answer to a chat completion: choices, complete and as chunks, built from the events of a turn; usage. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from agents.events import (
    ArgumentsDelta,
    Event,
    ItemStarted,
    Queued,
    ReasoningDelta,
    TextDelta,
    TurnFinished,
    TurnStarted,
    Usage,
)
from agents.message import FunctionCall, Item, Message, Reasoning, new_id
from agents.payload import logprob_payloads
from inference.generation import TokenLogprob
from worker.wire import sse
from worker.wire.chat_request import ChatRequest
from worker.wire.events import QUEUED, cut, waiting
from worker.wire.options import ServiceTier, tier_used

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]
Choice: TypeAlias = dict[str, Any]
Chunk: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class ChatChoice:
    """Encodes one choice. Calls of functions that the client did not offer are left out: the client cannot run them.

    Reasoning is sent as `reasoning_content`, the name that servers of open models use.
    """

    functions: frozenset[str]
    index: int = 0
    _calls: dict[str, int] = field(default_factory=dict)  # item id -> index among the shown calls

    def events_of(self, event: Event) -> list[Choice]:
        """The chunks of an event. The end of a turn is encoded by `conclude`."""
        logprobs = event.logprobs if isinstance(event, TextDelta) else ()
        return [self._piece(delta, logprobs=logprobs) for delta in self._deltas(event)]

    def text(self, text: str) -> Choice:
        """The chunk of a text without logprobs."""
        return self._piece({"content": text})

    def conclude(self, finished: TurnFinished) -> Choice:
        """The last chunk: why the choice ended."""
        return {**self._piece({}, self.finish_reason(finished)), **cut(finished)}

    def whole(self, finished: TurnFinished) -> Choice:
        """The choice as one object."""
        texts = [item.text for item in finished.output if isinstance(item, Message) and item.text]
        thoughts = [item.text for item in finished.output if isinstance(item, Reasoning) and item.text]
        calls = self.open_calls(finished)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "\n".join(texts) if texts or not calls else None,
            "refusal": None,
            "annotations": [],
        }
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        return {
            "index": self.index,
            "message": message,
            "finish_reason": self.finish_reason(finished),
            "logprobs": _logprobs([told for item in finished.output for told in _told(item)]),
            **cut(finished),
        }

    def open_calls(self, finished: TurnFinished) -> list[FunctionCall]:
        """Calls that wait for the client."""
        return finished.open_calls(self.functions)

    def finish_reason(self, finished: TurnFinished) -> FinishReason:
        if finished.status == "incomplete":
            return "length"
        return "tool_calls" if self.open_calls(finished) else "stop"

    def _deltas(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case TurnStarted():
                yield {"role": "assistant", "content": ""}
            case TextDelta():
                yield {"content": event.text}
            case ReasoningDelta():
                yield {"reasoning_content": event.text}
            case ItemStarted(_, FunctionCall() as call) if call.name in self.functions:
                # The arguments begin in a chunk of their own: some clients drop arguments that come with the name.
                index = self._calls[call.id] = len(self._calls)
                yield {"tool_calls": [{"index": index, **_call(call)}]}
            case ArgumentsDelta() if event.item_id in self._calls:
                yield {"tool_calls": [{"index": self._calls[event.item_id], "function": {"arguments": event.text}}]}

    def _piece(
        self, delta: dict[str, Any], finish: FinishReason | None = None, logprobs: Sequence[TokenLogprob] = ()
    ) -> Choice:
        return {"index": self.index, "delta": delta, "finish_reason": finish, "logprobs": _logprobs(logprobs)}


def _call(call: FunctionCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _told(item: Item) -> Sequence[TokenLogprob]:
    return item.logprobs if isinstance(item, Message) else ()


def _logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    return {"content": logprob_payloads(logprobs), "refusal": None} if logprobs else None


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion, complete or in chunks, which all carry the same id."""

    request: ChatRequest
    model: str
    id: str = field(default_factory=lambda: new_id("chatcmpl"))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def metadata(self) -> Mapping[str, str] | None:
        return self.request.metadata

    @property
    def service_tier(self) -> ServiceTier | None:
        return self.request.service_tier

    def narrators(self) -> list[ChatChoice]:
        """One for each choice."""
        return [ChatChoice(self.request.functions_given, index) for index in range(self.request.choices)]

    def chunk(self, choice: dict[str, Any]) -> Chunk:
        """A chunk of one choice."""
        chunk = self._frame("chat.completion.chunk", [choice])
        return {**chunk, "usage": None} if self.request.with_usage else chunk

    def waiting(self, event: Queued) -> Chunk:
        """The chunk for requests in the queue: without choices, like the one with the usage."""
        return {**self._frame("chat.completion.chunk", []), QUEUED: waiting(event)}

    def usage(self, finished: Sequence[TurnFinished]) -> list[Chunk]:
        """The last chunk, for clients that asked for the usage."""
        if not self.request.with_usage:
            return []
        return [{**self._frame("chat.completion.chunk", []), "usage": usage_object(usage_of(finished))}]

    def whole(self, choices: Sequence[dict[str, Any]], finished: Sequence[TurnFinished]) -> dict[str, Any]:
        """The completion as one object."""
        return {**self._frame("chat.completion", choices), "usage": usage_object(usage_of(finished))}

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


class ChunkEncoder:
    """Encodes one choice as chunks."""

    def __init__(self, completion: Completion, narrator: ChatChoice) -> None:
        self._completion = completion
        self._narrator = narrator
        self._text = sse.Template(sse.encode_data(completion.chunk(narrator.text(sse.HOLE))))

    def frames(self, event: Event) -> list[bytes]:
        if isinstance(event, TextDelta) and not event.logprobs:  # nearly all events
            return [self._text.filled(event.text)]
        if isinstance(event, Queued):  # the choices are queued together: one of them reports
            return [] if self._narrator.index else [sse.encode_data(self._completion.waiting(event))]
        return [sse.encode_data(self._completion.chunk(piece)) for piece in self._narrator.events_of(event)]

    def last(self, finished: TurnFinished) -> list[bytes]:
        if finished.status == "failed":
            return [sse.encode_data({"error": failure(finished)})]
        return [sse.encode_data(self._completion.chunk(self._narrator.conclude(finished)))]


def failure(finished: TurnFinished) -> dict[str, Any]:
    """The error of a failed choice."""
    message = finished.error_message or "The answer could not be completed. Please try again."
    return {"message": message, "type": "server_error", "param": None, "code": finished.error_code or "server_error"}


def usage_of(finished: Sequence[TurnFinished]) -> Usage:
    """Choices share one prompt, which counts once, and have an output each."""
    output = sum((replace(each.usage, input_tokens=0, cached_tokens=0, image_tokens=0) for each in finished), Usage())
    first = finished[0].usage
    return output + Usage(first.input_tokens, first.cached_tokens, image_tokens=first.image_tokens)


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0, **usage.image_details},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
