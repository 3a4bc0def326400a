"""Idempotency-Key: a request that is repeated with its key never starts a second generation.

A stored answer is sent again. Of an answer that is not stored only the key is kept, none of its content: its repetition
is refused, which is better than a second generation.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import orjson
from aiohttp import web

from migrations.pool import certain
from worker.errors import ApiError, invalid
from worker.http.request import BODY
from worker.runs.event_stream import Disconnect
from worker.runs.idempotency_store import Earlier
from worker.runs.run_services import RunServices

HEADER = "Idempotency-Key"
KEY_CHARS_MAX = 255
CLAIM_S = 2.0  # how long a request waits for a database that does not say whether the key was free
COME_BACK = Disconnect(30.0)  # how long an answer with a key waits for its client: clients retry after at most 8 s


@dataclass(frozen=True, slots=True)
class Once:
    """A request with a key. `fingerprint` detects a different request with the same key."""

    request: web.Request
    services: RunServices
    tenant_id: UUID
    key: str
    fingerprint: bytes
    claim: UUID = field(default_factory=uuid4)

    @classmethod
    def of(cls, request: web.Request, services: RunServices, tenant_id: UUID) -> Once | None:
        """None without a key. Raises ApiError 400."""
        key = request.headers.get(HEADER)
        if key is None:
            return None
        if not 1 <= len(key) <= KEY_CHARS_MAX or not key.isprintable() or not key.isascii():
            raise invalid(HEADER, f"it must have 1 to {KEY_CHARS_MAX} printable ASCII characters.")
        body = orjson.dumps(orjson.loads(request[BODY] or b"{}"), option=orjson.OPT_SORT_KEYS)
        fingerprint = hashlib.sha256(request.path.encode() + b"\n" + body).digest()
        return cls(request, services, tenant_id, key, fingerprint)

    @asynccontextmanager
    async def first(self, response_id: str | None) -> AsyncIterator[Earlier | None]:
        """The earlier request with this key; None for the first one, which is not remembered if it fails in here.

        Raises ApiError 422 when the two differ.
        """
        earlier = None
        try:
            earlier = await self._earlier(response_id)
            yield earlier
        except BaseException:  # also when the caller leaves, be it before we know whether the key is ours
            if earlier is None:
                await self._settle(answered=False)
            raise

    async def _earlier(self, response_id: str | None) -> Earlier | None:
        keys, worker = self.services.idempotency, self.services.presence.worker
        earlier = await certain(
            lambda: keys.claim(self.tenant_id, self.key, self.fingerprint, response_id, worker, self.claim), CLAIM_S
        )
        if earlier is not None and earlier.fingerprint != self.fingerprint:
            message = f"The '{HEADER}' of this request was used for another request: use a new key."
            raise ApiError(422, message, param=HEADER, code="idempotency_key_reused")
        return earlier

    @asynccontextmanager
    async def unstored(self) -> AsyncIterator[None]:
        """The whole of an answer that is not stored. Raises ApiError 409 for a repetition."""
        async with self.first(None) as earlier:
            if earlier is not None:
                raise _known(earlier)
            yield
        transport = self.request.transport
        await self._settle(answered=transport is not None and not transport.is_closing())  # or it reached nobody

    async def _settle(self, *, answered: bool) -> None:
        await self.services.claims.settle(self.tenant_id, self.key, self.claim, answered=answered)


def _known(earlier: Earlier) -> ApiError:
    if not earlier.answered:
        return in_use()
    message = f"The request with this '{HEADER}' was answered, and its answer was not stored: use a new key."
    return ApiError(409, message, param=HEADER, code="idempotency_key_used")


def in_use() -> ApiError:
    message = f"The request with this '{HEADER}' is being answered. Try again in a moment."
    return ApiError(409, message, param=HEADER, code="idempotency_key_in_use", retry_after_s=1.0)
