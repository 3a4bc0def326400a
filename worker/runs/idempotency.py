"""Idempotency-Key: a request that is repeated with its key never starts a second generation.

What is stored is told again. Of an answer that is not stored only the key is remembered, not a word of what was said:
a repetition is refused then, which is less than an answer and more than a second one.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
from aiohttp import web

from worker.errors import ApiError
from worker.runs.disconnect import Disconnect
from worker.runs.idempotency_store import Earlier
from worker.services import PRINCIPAL, SERVICES

HEADER = "Idempotency-Key"
KEY_CHARS_MAX = 255
COME_BACK = Disconnect(30.0)  # how long an answer with a key waits for its caller: clients retry after at most 8 s


@dataclass(frozen=True, slots=True)
class Once:
    """A request with a key. `fingerprint` tells another request that has the same key."""

    request: web.Request
    key: str
    fingerprint: bytes

    @classmethod
    async def of(cls, request: web.Request) -> Once | None:
        """None without a key. Raises ApiError 400."""
        key = request.headers.get(HEADER)
        if key is None:
            return None
        if not 1 <= len(key) <= KEY_CHARS_MAX or not key.isprintable() or not key.isascii():
            message = f"Invalid '{HEADER}': it has 1 to {KEY_CHARS_MAX} printable ASCII characters."
            raise ApiError(400, message, param=HEADER, code="invalid_value")
        body = orjson.dumps(orjson.loads(await request.read() or b"{}"), option=orjson.OPT_SORT_KEYS)
        return cls(request, key, hashlib.sha256(request.path.encode() + b"\n" + body).digest())

    async def claim(self, response_id: str | None) -> Earlier | None:
        """The earlier request with this key; None for the first one. Raises ApiError 422 when that asked for other."""
        services, tenant_id = self.request.app[SERVICES], self.request[PRINCIPAL].tenant_id
        worker = services.runs.presence.worker
        earlier = await services.runs.keys.claim(tenant_id, self.key, self.fingerprint, response_id, worker)
        if earlier is not None and earlier.fingerprint != self.fingerprint:
            message = f"The '{HEADER}' of this request was used for another request: take a new one."
            raise ApiError(422, message, param=HEADER, code="idempotency_key_reused")
        return earlier

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """What fails in here is not remembered."""
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
            tenant_id = self.request[PRINCIPAL].tenant_id
            await self.request.app[SERVICES].runs.keys.answer(tenant_id, self.key)

    async def _release(self) -> None:
        await self.request.app[SERVICES].runs.keys.release(self.request[PRINCIPAL].tenant_id, self.key)


def _known(earlier: Earlier) -> ApiError:
    if not earlier.answered:
        return in_use()
    message = f"The request with this '{HEADER}' was answered, and nothing of the answer is stored: take a new one."
    return ApiError(409, message, param=HEADER, code="idempotency_key_used")


def in_use() -> ApiError:
    message = f"The request with this '{HEADER}' is being answered. Try again in a moment."
    return ApiError(409, message, param=HEADER, code="idempotency_key_in_use", retry_after_s=1.0)
