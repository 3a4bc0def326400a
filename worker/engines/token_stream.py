"""An answer's tokens on their way to the worker that asked: plain calls down to the transport, a packet a step."""

from __future__ import annotations

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


class TokenStream:
    """The body of an answer. Opened when the engine has taken the request."""

    def __init__(self, request: web.Request, id: str, generation: Generation) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=HEADERS)
        self._generation = generation
        self._id = id
        self._told = len(generation.ids)  # those that the worker has
        self._began = False
        self._chunked = True

    async def send(self) -> web.StreamResponse:
        """Send the answer to its end. Raises ClientGone."""
        try:
            await self._response.prepare(self._request)
            self._chunked = "Transfer-Encoding" in self._response.headers  # HTTP/1.0 has none
            end = await self._streamed()
            await self._response.write_eof(end)
        except ConnectionError:
            raise ClientGone("the worker closed the connection") from None
        return self._response

    async def _streamed(self) -> bytes:
        try:
            await self._generation.stream(self.receive)
        except InferenceError as error:
            return spell_error(str(error), error.status, error.code)
        first = b"" if self._began else spell_first(self._id, (), (), self._generation)
        return first + spell_end(self._generation)

    def receive(self, delta: Delta) -> None:
        """Called for what each step brings."""
        transport = self._request.transport
        ids = self._generation.ids[self._told :]
        if transport is None or not ids:
            return
        self._told += len(ids)
        if not self._began:
            self._began = True
            event = spell_first(self._id, ids, delta.logprobs, self._generation)
        elif delta.logprobs:
            event = spell_likely(ids, delta.logprobs)
        else:
            event = spell_tokens(ids)
        transport.write(b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event)
        if transport.get_write_buffer_size() > WAITING_BYTES_MAX:
            transport.abort()
