"""The tokens of a response on their way to the worker: plain calls down to the transport, one packet per step. They
travel in the body of a response of their own, or on the connection that multiplexes all requests of a worker: see
`inference.remote.transport`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from aiohttp import web

from inference.errors import InferenceError
from inference.generation import Delta, Generation
from inference.remote.protocol import (
    MalformedStream,
    spell_end,
    spell_error,
    spell_first,
    spell_likely,
    spell_tokens,
)
from inference.remote.transport import ASK, CANCEL, EVENTS, LAST, TAKEN, Frame, Frames, frame, refusal, step
from worker.errors import ClientGone

# Buffer limit for a worker that does not read: the tokens of a long response, with twenty logprob alternatives each for
# some thousands of them.
BODY_BYTES_MAX = 8 * 2**20
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
# In progress at a time: far more than any queue has room for, and each may wait for its grammar to be compiled.
REQUESTS_MAX = 4096
BUSY_S = 1.0
BUSY = {"error": {"message": "This worker has reached its limit of requests here.", "code": "overloaded"}}
# Buffer limit for a worker that does not read: eight long responses with twenty logprob alternatives.
WAITING_BYTES_MAX = 64 * 2**20


class TokenStream:
    """Sends the events of a response, step by step, to its destination."""

    def __init__(self, outlet: HttpBody | SharedReply, id: str, generation: Generation) -> None:
        self._outlet = outlet
        self._generation = generation
        self._id = id
        self._sent = len(generation.ids)  # those that the worker already has
        self._began = False

    async def end(self) -> bytes:
        """Send the response; returns its last events."""
        try:
            await self._generation.stream(self.receive)
        except InferenceError as error:
            return spell_error(str(error), error.status, error.code)
        first = b"" if self._began else spell_first(self._id, (), (), self._generation)
        return first + spell_end(self._generation)

    def receive(self, delta: Delta) -> None:
        """Called with what each step produced."""
        ids = self._generation.ids[self._sent :]
        if not ids:
            return
        self._sent += len(ids)
        if not self._began:
            self._began = True
            self._outlet.event(spell_first(self._id, ids, delta.logprobs, self._generation))
        elif delta.logprobs:
            self._outlet.event(spell_likely(ids, delta.logprobs))
        else:
            self._outlet.tokens(ids)


class HttpBody:
    """The body of a response over HTTP. Opened when the engine has accepted the request."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=HEADERS)
        self._chunked = True

    async def send(self, id: str, generation: Generation) -> web.StreamResponse:
        """Send the response to its end. Raises ClientGone."""
        try:
            await self._response.prepare(self._request)
            self._chunked = "Transfer-Encoding" in self._response.headers  # HTTP/1.0 has none
            await self._response.write_eof(await TokenStream(self, id, generation).end())
        except ConnectionError:
            raise ClientGone("the worker closed the connection") from None
        return self._response

    def tokens(self, ids: Sequence[int]) -> None:
        self.event(spell_tokens(ids))

    def event(self, data: bytes) -> None:
        transport = self._request.transport
        if transport is None:
            return
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        if transport.get_write_buffer_size() > BODY_BYTES_MAX:
            transport.abort()


class SharedReply:
    """The destination of the response to one request."""

    __slots__ = ("_channel", "_number", "traceparent")

    def __init__(self, channel: ServedChannel, number: int, traceparent: str) -> None:
        self._channel, self._number, self.traceparent = channel, number, traceparent

    def taken(self) -> None:
        self._channel.send(frame(TAKEN, self._number))

    def refuse(self, status: int, body: object, retry_after_s: float | None) -> None:
        self._channel.send(refusal(self._number, status, body, retry_after_s))

    def tokens(self, ids: Sequence[int]) -> None:
        self._channel.send_tokens(self._number, ids)

    def event(self, data: bytes) -> None:
        self._channel.send(frame(EVENTS, self._number, data))

    def last(self, data: bytes) -> None:
        self._channel.send(frame(LAST, self._number, data))


Answering: TypeAlias = Callable[[SharedReply, bytes], Coroutine[Any, Any, None]]


class ServedChannel(asyncio.Protocol):
    """`answer` handles one request, and is cancelled when its caller no longer waits."""

    def __init__(self, transport: asyncio.Transport, answer: Answering, ask_bytes_max: int) -> None:
        self.closed = asyncio.Event()
        self._transport, self._answer = transport, answer
        self._frames = Frames(ask_bytes_max)
        self._going: dict[int, asyncio.Task[None]] = {}
        # All frames of one event loop iteration leave in one write: each write may wake the worker, which costs more
        # than everything else together.
        self._step: list[int] = []
        self._frames_out: list[bytes] = []
        self._is_due = False
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<ServedChannel {'closed' if self.closed.is_set() else 'open'} | {len(self._going)} requests>"

    def close(self) -> None:
        """Pending frames are still delivered."""
        self._flush()
        self._transport.close()

    # --- called by the event loop ---

    def data_received(self, data: bytes) -> None:
        try:
            for asked in self._frames.feed(data):
                self._take(asked)
        except MalformedStream:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()
        for task in tuple(self._going.values()):
            task.cancel()

    # --- called by replies ---

    def send_tokens(self, number: int, ids: Sequence[int]) -> None:
        self._step += (number, len(ids), *ids)
        self._flush_soon()

    def send(self, data: bytes) -> None:
        self._end_step()  # tokens that were sent before
        self._frames_out.append(data)
        self._flush_soon()

    # --- internal ---

    def _flush_soon(self) -> None:
        if len(self._going) == 1:  # nothing else can arrive in this iteration
            self._flush()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def _end_step(self) -> None:
        if self._step:
            self._frames_out.append(step(self._step))
            self._step = []

    def _flush(self) -> None:
        self._is_due = False
        self._end_step()
        frames, self._frames_out = self._frames_out, []
        if not frames or self._transport.is_closing():
            return
        self._transport.write(b"".join(frames))
        if self._transport.get_write_buffer_size() > WAITING_BYTES_MAX:
            self._transport.abort()

    def _take(self, asked: Frame) -> None:
        if asked.kind == ASK and asked.number not in self._going:
            traceparent, _, body = asked.content.partition(b"\n")
            reply = SharedReply(self, asked.number, traceparent.decode("latin-1"))
            if len(self._going) >= REQUESTS_MAX:
                reply.refuse(503, BUSY, BUSY_S)
                return
            task = self._loop.create_task(self._answer(reply, body), name="answer")
            self._going[asked.number] = task
            task.add_done_callback(lambda _: self._going.pop(asked.number, None))
        elif asked.kind == CANCEL:
            if (going := self._going.get(asked.number)) is not None:
                going.cancel()
        else:
            raise MalformedStream(f"an unexpected frame: {asked.kind}")
