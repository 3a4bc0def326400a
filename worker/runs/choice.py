"""Answers that are not stored, while they run: their turns, their encoding, and their accounting. A message is one
choice, a completion has one or several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

import orjson
from aiohttp import web

from agents.errors import STOPPED, Interrupted
from agents.events import TOKENS, Event, EventSink, TextDelta, TurnFinished, Usage
from agents.turn import Turn
from inference.errors import InferenceError
from inference.frozen import changed, dataclass
from inference.trace import Trace
from worker.errors import PLATFORM, ClientGone, failed
from worker.http.request import BODY, IGNORED, PRINCIPAL, TRACE, in_param, json_bytes, json_response
from worker.runs.event_stream import EventStream
from worker.runs.idempotency import Ending, Once, unstored
from worker.runs.ledger import Ledger
from worker.runs.record import FirstTokens
from worker.services import SERVICES
from worker.telemetry.canaries import first_question
from worker.telemetry.telemetry import server_timing
from worker.wire.completion import ChatCompletion, ChunkEncoder, TextCompletion
from worker.wire.messages_reply import MessageEventEncoder, Reply
from worker.wire.options import TurnRequest
from worker.wire.strict import converted, parsed

# Buffered for a client that reads slowly and cannot reconnect: merged, a million tokens, or 800 with all likelihoods.
WAITING_BYTES_MAX = 4 * 2**20
EVENT_BYTES = 250  # of an event beside its text; a likelihood takes about as much


# Encodes the events of a turn as the frames of a stream, and its end, also that of one that failed.
ChoiceEncoder: TypeAlias = ChunkEncoder | MessageEventEncoder
Answer: TypeAlias = ChatCompletion | TextCompletion | Reply
# Makes the turns of an answer, one for each choice, and adds to it what is known then.
Prepare: TypeAlias = Callable[[Ledger], Awaitable[tuple[Answer, Sequence[Turn]]]]
R = TypeVar("R", bound=TurnRequest)


@dataclass(frozen=True, slots=True)
class Choice:
    """The choices of a completion run concurrently; they share their prompt in the KV cache."""

    turn: Turn
    ledger: Ledger

    @property
    def trace(self) -> Trace:
        return self.ledger.trace

    async def stream(self, stream: EventStream, encoder: ChoiceEncoder) -> TurnFinished:
        """Stream the choice to its last chunk. Raises ClientGone, and what refuses the turn."""
        with self.ledger.recording() as outcome:
            finished = await self._streamed(ChoiceSink(stream, encoder, self.trace), stream)
            outcome.status = finished.status
            with self.trace.span("flush", blocked_ms=stream.blocked_ns / 1e6):
                await stream.room()
                stream.keep(encoder.last(finished))
            return finished

    async def whole(self) -> TurnFinished:
        """Wait for the end of the choice. Raises what refuses the turn."""
        with self.ledger.recording() as outcome:
            finished = await self._run(DiscardingSink(self.trace))
            outcome.status = finished.status
            return finished

    async def _streamed(self, sink: ChoiceSink, stream: EventStream) -> TurnFinished:
        stream.on_room.append(sink.flush)
        try:
            finished = await self._run(sink)
            await sink.drain()
            return finished
        except (InferenceError, Interrupted) as error:
            if not stream.is_open:
                raise
            # Another choice has begun to stream: this one can only be sent as failed.
            return TurnFinished("failed", (), Usage(), error_message=str(error))
        finally:
            stream.on_room.remove(sink.flush)

    async def _run(self, sink: EventSink) -> TurnFinished:
        return await self.ledger.services.agent.run(self.turn, self.trace, sink)


class ChoiceSink:
    """Sends the events of a choice. Those for which the client has no room are queued here, and sent merged."""

    def __init__(self, stream: EventStream, encoder: ChoiceEncoder, trace: Trace) -> None:
        self._stream = stream
        self._encoder = encoder
        self._waiting: list[Event] = []
        self._waiting_bytes = 0
        self._first = FirstTokens(trace)

    async def open(self) -> None:
        await self._stream.open()

    def write(self, events: Sequence[Event]) -> None:
        if self._waiting or not self._stream.has_room:
            self._hold(events)
            return
        if frames := [frame for event in events for frame in self._encoder.frames(event)]:
            self._stream.send(frames)
        if not self._first.have_answered:
            self._first.made(events)
            self._first.sent()

    async def drain(self) -> None:
        await self._stream.room()
        while self._waiting:  # another choice may have filled the room
            await self._stream.room()
            self.flush()

    def flush(self) -> None:
        """Send the queued events for which there is room."""
        held = merged(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        for event in held:
            self.write([event])

    def _hold(self, events: Sequence[Event]) -> None:
        self._waiting += events
        self._waiting_bytes += bytes_of(events)
        if self._waiting_bytes > WAITING_BYTES_MAX:
            self._waiting = merged(self._waiting)
            self._waiting_bytes = bytes_of(self._waiting)
            if self._waiting_bytes > WAITING_BYTES_MAX:
                self._stream.cut()


class DiscardingSink:
    """A sink for an answer that is sent as a whole: it records only the times of the first tokens."""

    def __init__(self, trace: Trace) -> None:
        self._first = FirstTokens(trace)

    async def open(self) -> None:
        pass

    def write(self, events: Sequence[Event]) -> None:
        self._first.made(events)
        self._first.sent()

    async def drain(self) -> None:
        pass


def bytes_of(events: Sequence[Event]) -> int:
    """About as many as these events take in memory."""
    tokens = [event for event in events if isinstance(event, TOKENS)]
    likelihoods = sum(1 + len(each.top) for event in tokens for each in getattr(event, "logprobs", ()))
    return sum(len(event.text) for event in tokens) + EVENT_BYTES * (len(tokens) + likelihoods)


def merged(events: Sequence[Event]) -> list[Event]:
    """Merge consecutive deltas of one item."""
    runs = groupby(events, lambda event: event.item_id if isinstance(event, TOKENS) else id(event))
    return [_joined([*run]) for _, run in runs]


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
    if len(choices) == 1:  # nearly always: a task costs more than a token
        return [await choices[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(choice) for choice in choices]
    except ExceptionGroup as raised:
        raise raised.exceptions[0] from None
    return [task.result() for task in tasks]


async def whole_of(choices: Sequence[Choice]) -> list[TurnFinished]:
    """Run them beside each other to their ends. Raises what refuses a turn, Interrupted, and ApiError for one that
    failed."""
    return list(map(succeeded, await all_of([choice.whole() for choice in choices])))


def is_ours(finished: TurnFinished) -> bool:
    """Whether it failed through no fault of its request."""
    return finished.status == "failed" and finished.failure["code"] == PLATFORM


def succeeded(finished: TurnFinished) -> TurnFinished:
    """Of an answer that nobody has seen yet. Raises Interrupted, and ApiError for one that failed."""
    if finished.error_message == STOPPED:
        raise Interrupted
    if finished.status == "failed":
        raise failed(finished.failure)
    return finished


async def turns_of(ledger: Ledger, completion: ChatCompletion) -> list[Turn]:
    """One for each choice. Raises ApiError 400 and 404 naming what cannot be read."""
    services, principal, body = ledger.services, ledger.principal, completion.request
    messages = await services.attachments.read(principal.tenant_id, body.messages, "messages")
    if messages is not body.messages:
        body = body.model_copy(update={"messages": messages})
    asked = await converted(len(messages) + len(body.tools or ()), lambda: body.turns(principal.tenant_id))
    agent = services.choose(completion.model, body.model, principal.tenant_id, first_question(asked[0].input))
    return [ledger.applied(principal.bounded(agent.applied(turn))) for turn in asked]


def choices_of(ledger: Ledger, turns: Sequence[Turn]) -> list[Choice]:
    """The first choice uses the trace of the request; each other one has a trace with the same start."""
    of_all, choices = ledger.trace, [Choice(turns[0], ledger)]
    background = {"background": True} if "background" in of_all.attributes else {}
    for index, turn in enumerate(turns[1:], 1):
        trace = Trace(start_ns=of_all.start_ns, started_at=of_all.started_at)
        trace.attributes |= {"choice": index, **background}
        choices.append(Choice(turn, changed(ledger, trace=trace)))
    return choices


async def read_request(request: web.Request, model: type[R]) -> tuple[R, Once | None]:
    """What a request asks for, with what its headers say; and its key. Raises ApiError."""
    services, ignored = request.app[SERVICES], request[IGNORED]
    body = await parsed(model, request[BODY], ignored)
    body = body.with_headers(request.headers, services.surface_names)
    body.note_ignored(services.model_of(body.model).switches, ignored)
    return body, Once.of(request, services.idempotency_keys, request[PRINCIPAL].tenant_id)


async def respond(request: web.Request, answer: Answer, once: Once | None, prepare: Prepare) -> web.StreamResponse:
    """Send the answer to a request, streamed or whole. Raises what refuses it."""
    with in_param(answer.request.PROMPT_PARAM):
        async with unstored(once) as ending:
            ledger = Ledger(request.app[SERVICES], request[PRINCIPAL], request[TRACE], answer)
            with ledger.entering(answer.turns) as entered:
                answer, turns = await prepare(ledger)
                places = entered.pop_all()
            with places:
                choices = choices_of(ledger, turns)
                if once is not None:
                    ending.repeats = all(map(ledger.services.agent.repeats, turns))
                return await (_stream if answer.request.stream else _whole)(request, answer, choices, ending)


async def _stream(
    request: web.Request, answer: Answer, choices: Sequence[Choice], ending: Ending
) -> web.StreamResponse:
    stream, encoders = EventStream(request, answer.PING), list[ChoiceEncoder](answer.encoders)
    try:
        finished = await all_of([choice.stream(stream, of) for choice, of in zip(choices, encoders, strict=True)])
    except ClientGone:  # every choice has been closed and recorded by now
        return stream.response
    ending.failed = any(map(is_ours, finished))
    return await stream.close(*answer.closing(finished))


async def _whole(request: web.Request, answer: Answer, choices: Sequence[Choice], ending: Ending) -> web.Response:
    ended = await all_of([choice.whole() for choice in choices])
    ending.failed = any(map(is_ours, ended))
    finished, headers = list(map(succeeded, ended)), {"Server-Timing": server_timing(request[TRACE])}
    if isinstance(answer, TextCompletion):
        return json_bytes(await asyncio.to_thread(_encoded, answer, finished), headers=headers)
    return json_response(answer.whole(finished), headers=headers)


def _encoded(completion: TextCompletion, finished: Sequence[TurnFinished]) -> bytes:
    """The scores of long prompts are many: between two choices, other threads get the GIL."""
    told = completion.whole(finished)
    return orjson.dumps({**told, "choices": [orjson.Fragment(orjson.dumps(each)) for each in told["choices"]]})
