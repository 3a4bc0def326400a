"""One step of a turn: a generation, the items it becomes, and the tools that start while it still runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agents.calls import RunningCalls
from agents.events import Event, ItemFinished
from agents.message import FunctionCall
from agents.offer import Offer
from agents.reply import Reply
from agents.sink import EventSink
from agents.spans import StepSpans
from inference.core import Delta, Finish, Generation


@dataclass(slots=True)
class Step:
    generation: Generation
    reply: Reply
    calls: RunningCalls
    spans: StepSpans
    offer: Offer
    ended: bool = False
    reasoning_tokens: int = 0

    async def run(self, sink: EventSink) -> None:
        """Write what the model says, as it says it. Raises InferenceError when the engine fails."""

        def receive(delta: Delta) -> None:
            for event in self.feed(delta):
                sink.write(event)

        await self.generation.stream(receive)

    def feed(self, delta: Delta) -> list[Event]:
        if not self.spans.told_prefill:
            self.spans.prefilled()
        events = self._started(self.reply.feed(delta.text, delta.logprobs))
        if self.reply.thinking:
            self.reasoning_tokens += delta.tokens
        return events

    def end(self, *, fallback: str = "") -> list[Event]:
        """The last events of the step; nothing the second time."""
        if self.ended:
            return []
        self.ended = True
        self.spans.decoded()
        return self._started(self.reply.finish(cut_off=self.generation.finish is not Finish.STOP, fallback=fallback))

    def cancel(self) -> None:
        """Free the sequence and stop the tools. Idempotent, and never waits."""
        self.generation.cancel()
        self.calls.cancel()
        self.spans.decoded()

    @property
    def goes_on(self) -> bool:
        """Whether the model is to see results and speak again: not when the caller has to run a function first."""
        asks_caller = any(call.name in self.offer.functions for call in self.reply.calls)
        return bool(self.calls.pending) and not asks_caller and self.generation.finish is Finish.STOP

    def _started(self, events: Sequence[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, ItemFinished) and isinstance(event.item, FunctionCall):
                self._take(event.item)
        return list(events)

    def _take(self, call: FunctionCall) -> None:
        """Start a call of the server's. What was cut off never runs, and the caller's functions run elsewhere."""
        if call.name in self.offer.functions or call.status == "incomplete":
            return
        if call.status == "failed":
            self.calls.refuse(call, f"the tool call could not be read: {self.reply.broken[call.call_id]}")
        else:
            self.calls.start(call)
