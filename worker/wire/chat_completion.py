"""The object around the choices of a chat completion, and its usage."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from agents.events import Event, Queued, TextDelta, TurnFinished, Usage
from agents.message import new_id
from worker.wire import sse
from worker.wire.chat_choice import ChatChoice
from worker.wire.chat_request import ChatRequest
from worker.wire.events import QUEUED, waiting
from worker.wire.options import ServiceTier, tier_used

Chunk: TypeAlias = dict[str, Any]


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
