"""One choice of a chat completion while it runs: its turn, how it is told, and where it is accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.agent import Agent
from agents.events import TOKENS, Event, TextDelta, TurnFinished, Usage
from agents.turn import Turn
from inference.errors import InferenceError
from inference.trace import Trace
from worker.auth.principal import Principal
from worker.runs.event_stream import EventStream
from worker.runs.ledger import Ledger
from worker.runs.record import mark_first_token
from worker.runs.run_services import RunServices
from worker.wire import sse
from worker.wire.chat_choice import ChoiceNarrator
from worker.wire.chat_completion import Chunk, Completion, failure

# What may wait for a client that reads slowly and cannot come back: an answer of 8,000 tokens, merged or not.
WAITING_BYTES_MAX = 4 * 2**20
EVENT_BYTES = 250  # of an event beside its text; a likelihood takes about as much


@dataclass(frozen=True, slots=True)
class Choice:
    """The choices of a completion run beside each other; in the KV cache they share their prompt."""

    agent: Agent
    turn: Turn
    narrator: ChoiceNarrator
    ledger: Ledger

    @classmethod
    def of(
        cls,
        services: RunServices,
        principal: Principal,
        trace: Trace,
        turn: Turn,
        narrator: ChoiceNarrator,
        completion: Completion,
    ) -> Choice:
        """The first choice is what the request's own trace tells; each other one has a trace of the same beginning."""
        if narrator.index:
            trace = Trace(start_ns=trace.start_ns, started_at=trace.started_at, attributes={"choice": narrator.index})
        metadata = completion.request.metadata
        ledger = Ledger(services, principal, trace, completion.id, None, completion.model, metadata)
        return cls(services.agent, turn, narrator, ledger)

    @property
    def trace(self) -> Trace:
        return self.ledger.trace

    async def stream(self, stream: EventStream, frame: Callable[[dict[str, Any]], Chunk]) -> TurnFinished:
        """Send the choice as it happens, to its last piece. Raises ClientGone, and what refuses the turn."""
        with self.ledger.recording() as outcome:
            finished = await self._streamed(ChoiceSink(stream, self.narrator, frame, self.trace), stream)
            outcome.status = finished.status
            failed = finished.status == "failed"
            last = {"error": failure(finished)} if failed else frame(self.narrator.conclude(finished))
            with self.trace.span("flush", blocked_ms=stream.blocked_ns / 1e6):
                await stream.write([sse.encode_data(last)])
            return finished

    async def whole(self) -> TurnFinished:
        """Wait for the end of the choice. Raises what refuses the turn."""
        with self.ledger.recording() as outcome:
            finished = await self.agent.run(self.turn, self.trace, Unread(self.trace))
            outcome.status = finished.status
            return finished

    async def _streamed(self, sink: ChoiceSink, stream: EventStream) -> TurnFinished:
        stream.on_room.append(sink.flush)
        try:
            finished = await self.agent.run(self.turn, self.trace, sink)
            await sink.drain()
            return finished
        except InferenceError as error:
            if not stream.is_open:
                raise
            # Another choice has begun to stream: this one can only be told as failed.
            return TurnFinished("failed", (), Usage(), error_message=str(error))
        finally:
            stream.on_room.remove(sink.flush)


class ChoiceSink:
    """Sends the events of a choice. Those for which the client has no room wait here, and go out merged."""

    def __init__(
        self,
        stream: EventStream,
        narrator: ChoiceNarrator,
        frame: Callable[[dict[str, Any]], Chunk],
        trace: Trace,
    ) -> None:
        self._stream = stream
        self._narrator = narrator
        self._frame = frame
        self._trace = trace
        self._text = sse.Template(sse.encode_data(frame(narrator.text(sse.HOLE))))
        self._waiting: list[Event] = []
        self._waiting_bytes = 0
        self._marked = False  # the first token, in the trace

    async def open(self) -> None:
        await self._stream.open()

    def write(self, event: Event) -> None:
        if self._waiting or not self._stream.has_room:
            self._hold(event)
        else:
            self._send(event)

    async def drain(self) -> None:
        await self._stream.room()
        while self._waiting:  # another choice may have filled the room
            await self._stream.room()
            self.flush()

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        held = merged(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        for event in held:
            self.write(event)

    def _hold(self, event: Event) -> None:
        self._waiting.append(event)
        if isinstance(event, TOKENS):
            likelihoods = sum(1 + len(each.top) for each in getattr(event, "logprobs", ()))
            self._waiting_bytes += len(event.text) + EVENT_BYTES * (1 + likelihoods)
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self._stream.cut()

    def _send(self, event: Event) -> None:
        if isinstance(event, TextDelta) and not event.logprobs:  # nearly all events
            self._stream.send([self._text.filled(event.text)])
        elif pieces := self._narrator.tell(event):
            self._stream.send([sse.encode_data(self._frame(piece)) for piece in pieces])
        if not self._marked and isinstance(event, TOKENS):
            self._marked = True
            mark_first_token(self._trace)


class Unread:
    """A sink for an answer that is sent when it is whole: all that it notes is when its first token was there."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._marked = False

    async def open(self) -> None:
        pass

    def write(self, event: Event) -> None:
        if not self._marked and isinstance(event, TOKENS):
            self._marked = True
            mark_first_token(self._trace)

    async def drain(self) -> None:
        pass


def merged(events: Sequence[Event]) -> list[Event]:
    """Text that waits together goes out together: neighbouring deltas of one item become one."""
    runs: list[list[Event]] = []
    for event in events:
        first = runs[-1][0] if runs else None
        if isinstance(event, TOKENS) and isinstance(first, TOKENS) and event.item_id == first.item_id:
            runs[-1].append(event)
        else:
            runs.append([event])
    return [_joined(run) for run in runs]


def _joined(events: Sequence[Event]) -> Event:
    first = events[0]
    if len(events) == 1 or not isinstance(first, TOKENS):
        return first
    text = "".join([event.text for event in events if isinstance(event, TOKENS)])
    if isinstance(first, TextDelta):
        told = [event.logprobs for event in events if isinstance(event, TextDelta)]
        return replace(first, text=text, logprobs=tuple(each for logprobs in told for each in logprobs))
    return replace(first, text=text)


async def all_of(choices: Sequence[Coroutine[Any, Any, TurnFinished]]) -> list[TurnFinished]:
    """Run them beside each other. What one of them raises ends the others, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(choice) for choice in choices]
    except ExceptionGroup as raised:
        raise raised.exceptions[0] from None
    return [task.result() for task in tasks]
