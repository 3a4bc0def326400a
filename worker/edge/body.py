"""Request bodies as they arrive: bounded in size, time and memory, of a tenant and in total; and decompressed."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self
from uuid import UUID

from aiohttp import web

from worker.errors import ApiError, ClientGone, rate_limited

RETRY_AFTER_S = 1.0  # about the duration of a short response, which frees its request


class Budget:
    """Counts the bytes of requests that have not been answered yet. For the event loop only."""

    def __init__(self, bytes_max: int, tenant_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._tenant_bytes_max = tenant_bytes_max
        self._held: dict[UUID, int] = {}
        self.held_bytes = 0

    def reserve(self, tenant_id: UUID) -> Reservation:
        """What is added to the reservation counts until the end of its block."""
        return Reservation(self, tenant_id)

    def change(self, tenant_id: UUID, by: int) -> None:
        """Raises ApiError(429) if the tenant, or all of them together, would exceed the limit."""
        held = self._held.get(tenant_id, 0) + by
        if by > 0:
            if held > self._tenant_bytes_max:
                megabytes = self._tenant_bytes_max // 2**20
                raise _refused(f"Your requests in progress hold {megabytes} MB, which is the limit.")
            if self.held_bytes + by > self._bytes_max:
                raise _refused("The worker is busy with large requests.")
        self.held_bytes += by
        self._held[tenant_id] = held
        if not held:
            del self._held[tenant_id]


class Reservation:
    """The bytes of one request, or of one connection."""

    def __init__(self, budget: Budget, tenant_id: UUID) -> None:
        self._budget = budget
        self._tenant_id = tenant_id
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.resize(0)

    def resize(self, size: int) -> None:
        """Hold this many bytes from now on. Raises ApiError(429), which leaves the reservation unchanged."""
        self._budget.change(self._tenant_id, size - self.bytes)
        self.bytes = size


BUDGET: web.AppKey[Budget] = web.AppKey("budget", Budget)


def _refused(message: str) -> ApiError:
    return rate_limited(f"{message} Try again in a moment.", RETRY_AFTER_S)


# A body may take as long as its maximum size takes at this rate: half that of a mobile network at its cell edge.
BYTES_PER_S_MIN = 32 * 1024
STALL_S = 15.0  # that a body may pause: longer than a phone needs from one cell to the next
PIECE_BYTES = 64 * 1024
MEMORY_BYTES_MAX = 1024 * 1024  # of a file that arrives or is written: a larger one is on disk
# By their names in Content-Encoding, the `wbits` of zlib for their format. Every other coding would add attack surface.
CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
DAMAGED = "The body is damaged: it does not match its headers."


async def read_body(request: web.Request, holding: Reservation, *, bytes_max: int) -> bytes:
    """The whole body, decompressed. Raises ApiError 400, 408, 413, 415 and 429, and ClientGone."""
    coding = coding_of(request)
    if (request.content_length or 0) > bytes_max:
        raise too_large(bytes_max)
    if request.content.is_eof() and request.content.exception() is None:  # it arrived with the headers, as most do
        received = request.content.read_nowait()
        if len(received) > bytes_max:
            raise too_large(bytes_max)
        holding.resize(len(received))
    else:
        received = await _received(request, holding, bytes_max=bytes_max)
    if coding is None:
        return received
    holding.resize(len(received) + bytes_max)
    body = await asyncio.to_thread(inflated, received, CODINGS[coding], bytes_max)
    holding.resize(len(body))
    return body


async def _received(request: web.Request, holding: Reservation, *, bytes_max: int) -> bytes:
    received = bytearray()
    async with arriving(request, bytes_max=bytes_max) as progress:
        while piece := await request.content.read(PIECE_BYTES):
            progress()
            if len(received) + len(piece) > bytes_max:
                raise too_large(bytes_max)
            holding.resize(len(received) + len(piece))
            received += piece
    return bytes(received)


def coding_of(request: web.BaseRequest) -> str | None:
    """How the body is compressed; None if it is not. Raises ApiError 415."""
    coding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if coding == "identity":
        return None
    if coding not in CODINGS:
        message = f"A body may be compressed with {' or '.join(sorted({*CODINGS} - {'x-gzip'}))} only."
        raise ApiError(415, message, param="Content-Encoding", code="unsupported_content_encoding")
    return coding


@asynccontextmanager
async def arriving(request: web.BaseRequest, *, bytes_max: int) -> AsyncIterator[Callable[[], None]]:
    """Wraps the reading of a body. Call what this yields for each chunk: after STALL_S seconds without one, or when
    the whole takes too long, the request fails. Raises ApiError 400 and 408, and ClientGone.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + STALL_S + bytes_max / BYTES_PER_S_MIN
    try:
        async with asyncio.timeout(STALL_S) as limit:
            yield lambda: limit.reschedule(min(loop.time() + STALL_S, end))
    except TimeoutError:
        raise ApiError(408, "The body of the request took too long to arrive.", code="request_timeout") from None
    except (ConnectionError, web.RequestPayloadError):
        raise _broken(request) from None
    except RuntimeError:
        if not is_gone(request):
            raise
        raise _broken(request) from None  # how the reader of a lost connection reports it


def _broken(request: web.BaseRequest) -> Exception:
    if is_gone(request):
        return ClientGone("the client left before its request was complete")
    return ApiError(400, DAMAGED, code="invalid_body")


def is_gone(request: web.BaseRequest) -> bool:
    return request.transport is None or request.transport.is_closing()


def inflated(data: bytes, wbits: int, bytes_max: int) -> bytes:
    """The decompressed body, of at most `bytes_max` bytes. Raises ApiError 400 and 413."""
    stream = zlib.decompressobj(wbits)
    try:
        body = stream.decompress(data, bytes_max + 1)
    except zlib.error:
        raise ApiError(400, DAMAGED, param="Content-Encoding", code="invalid_body") from None
    if len(body) > bytes_max:
        raise too_large(bytes_max)
    if not stream.eof or stream.unused_data:
        raise ApiError(400, DAMAGED, param="Content-Encoding", code="invalid_body")
    return body


def too_large(bytes_max: int) -> ApiError:
    message = f"The request body is larger than {bytes_max} bytes, which is the limit."
    return ApiError(413, message, code="request_too_large")
