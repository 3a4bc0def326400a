"""Idempotency-Key: a request that is repeated with its key never starts a second generation, unless the platform failed
the first one.

A stored answer is sent again. Of an answer that is not stored only the key is kept, none of its content: its repetition
is refused, which is better than a second generation. One that failed through no fault of its request is begun again by
its next repetition, once, if all that its turn may call on the server may run twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

import orjson
from aiohttp import web

from migrations.pool import DATABASE_AWAY, Database, certain
from worker.errors import PLATFORM, ApiError, invalid
from worker.http.request import BODY, TRACE

log = logging.getLogger("firsttoken.runs")

REMEMBERED = timedelta(hours=24)
CLAIM_S = 2.0  # how long a request waits for a database that does not say whether the key was free
SETTLE_S = 2.0  # how long a request waits for that; the janitor tries again later
UNSETTLED_MAX = 10_000  # beyond, the oldest stay in use until this worker ends or the key expires
# The first response of a key, locked, if the platform failed it and nothing followed it in its conversation.
_FAILED = """
select r.id, r.conversation_id
  from idempotency_keys k join responses r on r.tenant_id = k.tenant_id and r.id = k.response_id
 where k.tenant_id = $1 and k.key = $2 and k.claim <> $3 and r.status = 'failed' and r.body->'error'->>'code' = $4
   and not exists (select from items i where i.tenant_id = $1 and i.conversation_id = r.conversation_id and i.chosen
                   and i.response_id is distinct from r.id
                   and i.position > (select min(position) from items
                                     where tenant_id = $1 and conversation_id = r.conversation_id
                                       and response_id = r.id and chosen))
   for update of k
"""
_REWIND = """
update items set chosen = false where tenant_id = $1 and conversation_id = $2 and response_id = $3 and chosen
"""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The request that had the key first. Without `response_id` its answer is not stored."""

    fingerprint: bytes
    response_id: str | None
    answered: bool


class Claim(NamedTuple):
    """The attempt of one request to be the first with its key."""

    tenant_id: UUID
    key: str
    id: UUID


class IdempotencyKeys:
    """Of all tenants: a claim names its own."""

    def __init__(self, database: Database, worker: int) -> None:
        """`worker`: the number of this worker's lock."""
        self._database, self._worker = database, worker
        self._unsettled: dict[Claim, bool] = {}  # and whether it was answered

    async def claim(
        self, claim: Claim, fingerprint: bytes, response_id: str | None, *, again: bool = False
    ) -> Earlier | None:
        """None when this request is the first of its key; otherwise the one that was. A COMMIT whose outcome is unknown
        is repeated, which does nothing again.

        A first one whose worker died before anything of it was stored counts no more; nor does, with `again`, one that
        the platform failed. What that had left at the end of its conversation becomes another version; where the
        conversation has gone on, it counts.
        """
        return await certain(lambda: self._claimed(claim, fingerprint, response_id, again=again), CLAIM_S)

    async def _claimed(
        self, claim: Claim, fingerprint: bytes, response_id: str | None, *, again: bool
    ) -> Earlier | None:
        tenant_id, key, _ = claim
        async with self._database.tenant(tenant_id) as connection:
            failed = await connection.fetchrow(_FAILED, *claim, PLATFORM) if again else None
            first = await connection.fetchval(
                """insert into idempotency_keys as k (tenant_id, key, claim, fingerprint, response_id, worker)
                   values ($1, $2, $3, $4, $5, $6)
                   on conflict (tenant_id, key) do update
                      set fingerprint = excluded.fingerprint, response_id = excluded.response_id,
                          worker = excluded.worker, claim = excluded.claim, answered = false, created_at = now()
                    where k.claim = excluded.claim
                       or k.created_at < now() - $7::interval
                       or not k.answered and not worker_lives(k.worker)
                          and not exists (select from responses r where r.tenant_id = $1 and r.id = k.response_id)
                       or k.response_id = $8 and k.fingerprint = excluded.fingerprint
                   returning true""",
                *claim,
                fingerprint,
                response_id,
                self._worker,
                REMEMBERED,
                failed and failed["id"],
            )
            if first and failed:
                await connection.execute(_REWIND, tenant_id, failed["conversation_id"], failed["id"])
            if first:
                return None
            row = await connection.fetchrow(
                "select fingerprint, response_id, answered from idempotency_keys where tenant_id = $1 and key = $2",
                tenant_id,
                key,
            )
        return Earlier(**row) if row else None

    async def settle(self, claim: Claim, *, answered: bool) -> None:
        """The request of a claim has ended. `answered`: its key stays used, and nothing of its answer is stored;
        otherwise there is no answer, and the next request with the key counts as the first. Never raises: it may not be
        known whether the key was claimed at all.
        """
        if len(self._unsettled) >= UNSETTLED_MAX:
            self._unsettled.pop(next(iter(self._unsettled)))
            log.error("an idempotency key could not be released in time and stays in use")
        self._unsettled[claim] = answered
        with suppress(*DATABASE_AWAY):
            async with asyncio.timeout(SETTLE_S):
                await self._settle(claim)

    async def settle_all(self) -> None:
        """Try again. Raises what the database raises."""
        for claim in tuple(self._unsettled):
            if claim in self._unsettled:  # not settled meanwhile by its own request
                await self._settle(claim)

    async def _settle(self, claim: Claim) -> None:
        if await self.try_to_settle(claim, answered=self._unsettled[claim]):
            self._unsettled.pop(claim, None)

    async def try_to_settle(self, claim: Claim, *, answered: bool) -> bool:
        """Settle it now. Whether that is done: not while a response is stored that nobody makes.

        Waits for a claim whose COMMIT is still under way: of a client that left while the database stood still, it may
        be carried out after this was asked for, and the key would stay in use.
        """
        async with self._database.tenant(claim.tenant_id) as connection:
            if not answered:
                await connection.execute(
                    """insert into idempotency_keys (tenant_id, key, claim, fingerprint, worker)
                       values ($1, $2, $3, '', 0) on conflict do nothing""",
                    *claim,
                )
            await connection.execute(
                """update idempotency_keys set answered = true where tenant_id = $1 and key = $2 and claim = $3"""
                if answered
                else """delete from idempotency_keys k where tenant_id = $1 and key = $2 and claim = $3
                        and not exists (select from responses r where r.tenant_id = $1 and r.id = k.response_id)""",
                *claim,
            )
            left = await connection.fetchval(  # also where a response went away behind the first look at it
                """select true from idempotency_keys k
                   left join responses r on r.tenant_id = k.tenant_id and r.id = k.response_id
                   where k.tenant_id = $1 and k.key = $2 and k.claim = $3 and not k.answered
                     and (r.id is null or r.worker is not null and r.completed_at is null)""",
                *claim,
            )
        return not left

    async def forget(self) -> None:
        await self._database.fetch("select forget_idempotency_keys($1)", REMEMBERED)


HEADER = "Idempotency-Key"
KEY_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class Once:
    """A request with a key. `fingerprint` detects a different request with the same key."""

    request: web.Request
    keys: IdempotencyKeys
    claim: Claim
    fingerprint: bytes

    @classmethod
    def of(cls, request: web.Request, keys: IdempotencyKeys, tenant_id: UUID) -> Once | None:
        """None without a key. Raises ApiError 400."""
        key = request.headers.get(HEADER)
        if key is None:
            return None
        if not 1 <= len(key) <= KEY_CHARS_MAX or not key.isprintable() or not key.isascii():
            raise invalid(HEADER, f"it must have 1 to {KEY_CHARS_MAX} printable ASCII characters.")
        body = orjson.dumps(orjson.loads(request[BODY] or b"{}"), option=orjson.OPT_SORT_KEYS)
        fingerprint = hashlib.sha256(request.path.encode() + b"\n" + body).digest()
        return cls(request, keys, Claim(tenant_id, key, uuid4()), fingerprint)

    @asynccontextmanager
    async def first(
        self, response_id: str | None, ending: Ending | None = None, *, again: bool = False
    ) -> AsyncIterator[Earlier | None]:
        """The earlier request with this key; None for the first one, which is not remembered if it is refused in here.
        `again`: one that the platform failed may be begun again.

        Raises ApiError 422 when the two differ.
        """
        earlier = None
        try:
            with self.request[TRACE].span("edge"):
                earlier = await self.keys.claim(self.claim, self.fingerprint, response_id, again=again)
            if earlier is not None and earlier.fingerprint != self.fingerprint:
                message = f"The '{HEADER}' of this request was used for another request: use a new key."
                raise ApiError(422, message, param=HEADER, code="idempotency_key_reused")
            yield earlier
        except BaseException:  # also when the caller leaves, be it before we know whether the key is ours
            if earlier is None:
                await self.settle(answered=ending is not None and ending.failed and not ending.repeats)
            raise

    async def settle(self, *, answered: bool) -> None:
        await self.keys.settle(self.claim, answered=answered)


@dataclass(slots=True)
class Ending:
    """How an answer that is not stored has ended."""

    failed: bool = False  # through no fault of its request
    repeats: bool = True  # what it may have called on the server may run twice


@asynccontextmanager
async def unstored(once: Once | None) -> AsyncIterator[Ending]:
    """The whole of an answer that is not stored, which says how it ends. Raises ApiError 409 for a repetition."""
    ending = Ending()
    if once is None:
        yield ending
        return
    async with once.first(None, ending) as earlier:
        if earlier is not None and earlier.answered:
            message = f"The request with this '{HEADER}' is over, and its answer was not stored: use a new key."
            raise ApiError(409, message, param=HEADER, code="idempotency_key_used")
        if earlier is not None:
            raise in_use()
        yield ending
    transport = once.request.transport
    arrived = transport is not None and not transport.is_closing()
    await once.settle(answered=not ending.repeats if ending.failed else arrived)


def in_use() -> ApiError:
    message = f"The request with this '{HEADER}' is being answered. Try again in a moment."
    return ApiError(409, message, param=HEADER, code="idempotency_key_in_use", retry_after_s=1.0)
