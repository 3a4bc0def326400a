"""One choice of a chat completion, complete and as chunks, built from the events of a turn. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from agents.events import ArgumentsDelta, Event, ItemStarted, ReasoningDelta, TextDelta, TurnFinished, TurnStarted
from agents.message import FunctionCall, Item, Message, Reasoning
from agents.payload import logprob_payloads
from inference.generation import TokenLogprob
from worker.wire.events import cut

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]
Choice: TypeAlias = dict[str, Any]


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
