"""The tokens of a response on their way to the worker: plain calls down to the transport, one packet per step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from inference.errors import InferenceError
from inference.generation import Delta, Generation
from inference.remote.answer_stream import (
    spell_end,
    spell_error,
    spell_first,
    spell_likely,
    spell_tokens,
)
from worker.errors import ClientGone

# Buffer limit for a worker that does not read: the tokens of a long response, with twenty logprob alternatives each for
# some thousands of them.
WAITING_BYTES_MAX = 8 * 2**20
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}


class TokenSink(Protocol):
    """The destination of a response."""

    def tokens(self, ids: Sequence[int]) -> None: ...

    def event(self, data: bytes) -> None: ...


class TokenStream:
    """Sends the events of a response, step by step, to a sink."""

    def __init__(self, outlet: TokenSink, id: str, generation: Generation) -> None:
        self._outlet = outlet
        self._generation = generation
        self._id = id
        self._told = len(generation.ids)  # those that the worker already has
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
        if transport.get_write_buffer_size() > WAITING_BYTES_MAX:
            transport.abort()
