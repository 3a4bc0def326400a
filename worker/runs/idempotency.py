"""Idempotency-Key: a request that is repeated with its key never starts a second generation.

A stored answer is sent again. Of an answer that is not stored only the key is kept, none of its content: its repetition
is refused, which is better than a second generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import orjson
from aiohttp import web

from worker.errors import ApiError
from worker.runs.disconnect import Disconnect
from worker.runs.idempotency_store import Earlier
from worker.runs.run_services import RunServices

HEADER = "Idempotency-Key"
KEY_CHARS_MAX = 255
COME_BACK = Disconnect(30.0)  # how long an answer with a key waits for its client: clients retry after at most 8 s


@dataclass(frozen=True, slots=True)
class Once:
    """A request with a key. `fingerprint` detects a different request with the same key."""

    request: web.Request
    services: RunServices
    tenant_id: UUID
    key: str
    fingerprint: bytes

    @classmethod
    async def of(cls, request: web.Request, services: RunServices, tenant_id: UUID) -> Once | None:
        """None without a key. Raises ApiError 400."""
        key = request.headers.get(HEADER)
        if key is None:
            return None
        if not 1 <= len(key) <= KEY_CHARS_MAX or not key.isprintable() or not key.isascii():
            message = f"Invalid '{HEADER}': it has 1 to {KEY_CHARS_MAX} printable ASCII characters."
            raise ApiError(400, message, param=HEADER, code="invalid_value")
        body = orjson.dumps(orjson.loads(await request.read() or b"{}"), option=orjson.OPT_SORT_KEYS)
        fingerprint = hashlib.sha256(request.path.encode() + b"\n" + body).digest()
        return cls(request, services, tenant_id, key, fingerprint)

    async def claim(self, response_id: str | None) -> Earlier | None:
        """The earlier request with this key; None for the first one. Raises ApiError 422 when the two differ."""
        keys, worker = self.services.idempotency, self.services.presence.worker
        earlier = await keys.claim(self.tenant_id, self.key, self.fingerprint, response_id, worker)
        if earlier is not None and earlier.fingerprint != self.fingerprint:
            message = f"The '{HEADER}' of this request was used for another request: use a new key."
            raise ApiError(422, message, param=HEADER, code="idempotency_key_reused")
        return earlier

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """A failure in here is not kept."""
        try:
            yield
        except BaseException:  # also when the caller leaves
            await self._release()
            raise

    @asynccontextmanager
    async def unstored(self) -> AsyncIterator[None]:
        """The whole of an answer that is not stored. Raises ApiError 409 for a repetition."""
        earlier = await self.claim(None)
        if earlier is not None:
            raise _known(earlier)
        async with self.starting():
            yield
        if self.request.transport is None or self.request.transport.is_closing():  # the answer reached nobody
            await self._release()
        else:
            await self.services.idempotency.answer(self.tenant_id, self.key)

    async def _release(self) -> None:
        await self.services.idempotency.release(self.tenant_id, self.key)


def _known(earlier: Earlier) -> ApiError:
    if not earlier.answered:
        return in_use()
    message = f"The request with this '{HEADER}' was answered, and its answer was not stored: use a new key."
    return ApiError(409, message, param=HEADER, code="idempotency_key_used")


def in_use() -> ApiError:
    message = f"The request with this '{HEADER}' is being answered. Try again in a moment."
    return ApiError(409, message, param=HEADER, code="idempotency_key_in_use", retry_after_s=1.0)
