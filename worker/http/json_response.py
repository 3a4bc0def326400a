"""JSON responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

PIECE_BYTES = 256 * 1024  # given to the transport at once; 16 MB take it a twentieth of a second


def json_response(content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON response; UUIDs and times are written as text."""
    return json_bytes(orjson.dumps(content), status=status, headers=headers)


def json_bytes(body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """A response whose JSON is written already."""
    sent = body if len(body) <= PIECE_BYTES else Pieces(body)
    return web.Response(status=status, body=sent, content_type="application/json", headers=headers)


class Pieces(Payload):
    """A long body, of which the client takes a piece before the next one is copied."""

    _value: bytes
    _autoclose = True  # nothing is open

    def __init__(self, body: bytes) -> None:
        super().__init__(body, content_type="application/json")
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for begin in range(0, len(self._value), PIECE_BYTES):
            await writer.write(self._value[begin : begin + PIECE_BYTES])
