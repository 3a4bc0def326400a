"""An answer's tokens on their way to the worker that asked: plain calls down to the transport, a packet a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from inference.core import Delta, Generation
from inference.errors import InferenceError
from inference.remote.answer_stream import (
    spell_end,
    spell_error,
    spell_first,
    spell_likely,
    spell_tokens,
)
from worker.errors import ClientGone

# What may wait for a worker that does not read: the tokens of a long answer, with twenty alternatives each for some
# thousands of them.
WAITING_BYTES_MAX = 8 * 2**20
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}


class TokenSink(Protocol):
    """Where an answer goes."""

    def tokens(self, ids: Sequence[int]) -> None: ...

    def event(self, data: bytes) -> None: ...


class TokenStream:
    """What an engine tells of an answer, step by step, to an outlet."""

    def __init__(self, outlet: TokenSink, id: str, generation: Generation) -> None:
        self._outlet = outlet
        self._generation = generation
        self._id = id
        self._told = len(generation.ids)  # those that the worker has
        self._began = False

    async def end(self) -> bytes:
        """Tell the answer; returns its last events."""
        try:
            await self._generation.stream(self.receive)
        except InferenceError as error:
            return spell_error(str(error), error.status, error.code)
        first = b"" if self._began else spell_first(self._id, (), (), self._generation)
        return first + spell_end(self._generation)

    def receive(self, delta: Delta) -> None:
        """Called for what each step brings."""
        ids = self._generation.ids[self._told :]
        if not ids:
            return
        self._told += len(ids)
        if not self._began:
            self._began = True
            self._outlet.event(spell_first(self._id, ids, delta.logprobs, self._generation))
        elif delta.logprobs:
            self._outlet.event(spell_likely(ids, delta.logprobs))
        else:
            self._outlet.tokens(ids)


class HttpBody:
    """The body of an answer over HTTP. Opened when the engine has taken the request."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=HEADERS)
        self._chunked = True

    async def send(self, id: str, generation: Generation) -> web.StreamResponse:
        """Send the answer to its end. Raises ClientGone."""
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
        if transport.get_write_buffer_size() > WAITING_BYTES_MAX:
            transport.abort()
