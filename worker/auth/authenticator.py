"""From credentials to a principal: an API key, a JWT or a browser's session. Recently checked ones are cached, so that
a request costs a hash and a lookup; and the work of a credential is ended when that is revoked.

All entries are checked again by one statement every RECHECK_S, also those whose requests are still in progress. So a
revoked credential is useless after RECHECK_S, or after CACHE_S at the latest if the database is unavailable.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from uuid import UUID

from inference.lru_cache import LruCache
from inference.trace import Trace
from worker.auth.audit import AuditLog
from worker.auth.jwt import InvalidToken, KeysUnavailable, Tokens
from worker.auth.keys import KEY_PREFIX, Grant, Keys
from worker.auth.principal import Principal, Via
from worker.auth.provider import Provider
from worker.auth.secret import Secret
from worker.auth.session import Sessions, require_same_origin
from worker.auth.throttle import Throttle
from worker.errors import ApiError
from worker.lifecycle.supervisor import Healthy, Supervised, Supervisor

CACHE_S = 30.0  # a revoked credential keeps working for at most this long
RECHECK_S = 10.0
CACHED_MAX = 10_000  # of about 1 KB each: 10 MB
IDLE_S = 900.0  # an entry that is unused for this long is dropped; a user may think and type for this long

End = Callable[[], object]


@dataclass(slots=True)
class _Entry:
    """Times are `time.monotonic()`, except for the expiry of the credential."""

    principal: Principal
    expires_at: float  # time.time()
    checked_at: float
    used_at: float
    used: bool = True  # since the last check

    def counts(self, now: float) -> bool:
        """Whether it may be used without a new check."""
        return now < self.checked_at + CACHE_S and time.time() < self.expires_at


@dataclass(slots=True)
class _Work(AbstractContextManager[None]):
    """A block of work for a subject."""

    going_on: defaultdict[str, set[End]]
    subject: str
    end: End

    def __enter__(self) -> None:
        self.going_on[self.subject].add(self.end)

    def __exit__(self, *_: object) -> None:
        ends = self.going_on[self.subject]
        ends.discard(self.end)
        if not ends:
            del self.going_on[self.subject]


class AuthCache:
    """Principals by a hash of their credential, and their work in progress by their subject."""

    def __init__(self) -> None:
        self._entries = LruCache[bytes, _Entry](CACHED_MAX)
        self._going_on: defaultdict[str, set[End]] = defaultdict(set)

    def __repr__(self) -> str:
        return f"<AuthCache {len(self._entries)} of {CACHED_MAX} | {len(self._going_on)} being answered>"

    def get(self, mark: bytes) -> Principal | None:
        entry, now = self._entries.get(mark), time.monotonic()
        if entry is None or not entry.counts(now):
            return None
        entry.used, entry.used_at = True, now
        return entry.principal

    def put(self, mark: bytes, principal: Principal, expires_at: float) -> None:
        """Add a principal that was looked up; `expires_at` of the credential is in Unix seconds."""
        now = time.monotonic()
        self._entries.put(mark, _Entry(principal, expires_at, now, now))

    def revocable(self, principal: Principal, end: End) -> AbstractContextManager[None]:
        """Wraps work for a principal: `end` is called if its credential is revoked before the block ends."""
        return _Work(self._going_on, principal.subject, end) if principal.is_revocable else nullcontext()

    def to_check(self) -> tuple[set[str], set[str]]:
        """Subjects to check again, and those of them that were used since the last check. Unused entries are
        dropped.
        """
        idle_since = time.monotonic() - IDLE_S
        for mark, entry in self._entries.items():
            if entry.used_at < idle_since:
                self._entries.pop(mark)
        revocable = [entry for _, entry in self._entries.items() if entry.principal.is_revocable]
        used = {entry.principal.subject for entry in revocable if entry.used}
        for entry in revocable:
            entry.used = False
        return {entry.principal.subject for entry in revocable} | self._going_on.keys(), used

    def checked(self, subjects: set[str], counting: set[str], asked_at: float) -> None:
        """The subjects in `counting` were still valid at `asked_at` (monotonic); the others are ended."""
        for _, entry in self._entries.items():
            if entry.principal.is_revocable and entry.principal.subject in counting:
                entry.checked_at = asked_at
        self.end(subjects - counting)

    def end(self, subjects: set[str]) -> None:
        """Their credentials are no longer valid."""
        ended = [mark for mark, entry in self._entries.items() if entry.principal.subject in subjects]
        for mark in ended:
            self._entries.pop(mark)
        for subject in subjects & self._going_on.keys():
            for end in tuple(self._going_on[subject]):
                end()


API_KEY = "X-Api-Key"
CREDENTIAL_CHARS_MAX = 8192
TIDY_EVERY_S = 3600.0


@dataclass(slots=True, eq=False, repr=False)
class Authenticator:
    """Authenticates every request, mostly from its cache of recent credentials. `provider` is the organisation's
    identity provider, if there is one."""

    keys: Keys
    sessions: Sessions
    tokens: Tokens
    secret: Secret
    audit: AuditLog
    audit_days: float = field(kw_only=True)
    provider: Provider | None = field(default=None, kw_only=True)
    throttle: Throttle = field(default_factory=Throttle, init=False)
    _auth_cache: AuthCache = field(default_factory=AuthCache, init=False)
    _tidied_at: float = field(default=-TIDY_EVERY_S, init=False)
    _watch: Supervised | None = field(default=None, init=False)

    async def start(self, supervisor: Supervisor) -> None:
        self.tokens.warn()
        if self.tokens.jwks:
            await self.tokens.jwks.start(supervisor)
        self._watch = supervisor.start("credentials", self._recheck_forever)

    async def close(self) -> None:
        if self._watch:
            await self._watch.stop()
        if self.tokens.jwks:
            await self.tokens.jwks.close()

    async def identify(
        self, headers: Mapping[str, str], cookies: Mapping[str, str], method: str, trace: Trace, address: str = ""
    ) -> Principal | None:
        """The caller; None without a credential. `address` is where the request comes from.

        Raises ApiError: 401 for an invalid bearer credential, 429 after too many of those, and 403 for a session used
        from another site.
        """
        authorization = headers.get("Authorization")
        if authorization is None and API_KEY in headers:  # as Anthropic's clients send it
            authorization = f"Bearer {headers[API_KEY]}"
        if authorization is None:
            principal = await self._identify_cookie(self.sessions.cookie(cookies))
            if principal is not None:
                require_same_origin(method, headers)
            return principal
        scheme, _, credential = authorization.strip().partition(" ")
        credential = credential.strip()
        fits = credential.isascii() and 1 <= len(credential) <= CREDENTIAL_CHARS_MAX
        if scheme.lower() != "bearer" or not fits:
            raise _unauthorized("The Authorization header must be `Bearer <api key>`, or X-Api-Key the key.")
        return await self._identify_bearer(credential, trace, address)

    async def _identify_cookie(self, cookie: str | None) -> Principal | None:
        if cookie is None or len(cookie) > CREDENTIAL_CHARS_MAX:
            return None
        mark = self.secret.cache_key("session", cookie)
        principal = self._auth_cache.get(mark)
        if principal is not None:
            return principal
        claim = self.sessions.read(cookie)
        scopes = await self.sessions.scopes(claim.tenant_id, claim.id) if claim else None
        if claim is None or scopes is None:
            return None
        principal = Principal(claim.tenant_id, claim.id, scopes, "session")
        self._auth_cache.put(mark, principal, claim.expires_at)
        return principal

    async def _identify_bearer(self, credential: str, trace: Trace, address: str) -> Principal:
        mark = self.secret.cache_key("credential", credential)
        principal = self._auth_cache.get(mark)
        if principal is None:
            async with self.throttle.checking(address):
                principal, expires_at = await self._verify(credential, trace)
            self._auth_cache.put(mark, principal, expires_at)
        return principal

    async def _verify(self, credential: str, trace: Trace) -> tuple[Principal, float]:
        """The principal, and when its credential expires (Unix seconds)."""
        if not credential.startswith(KEY_PREFIX) and credential.count(".") == 2 and self.tokens.enabled:
            return await self._verify_token(credential, trace)
        grant = await self.keys.authenticate(credential)
        if grant is None:
            raise _unauthorized("This API key is wrong, has expired or was revoked.")
        expires_at = grant.expires_at.timestamp() if grant.expires_at else float("inf")
        return Principal(grant.tenant_id, grant.id, grant.scopes, "api_key", grant.bounds), expires_at

    async def _verify_token(self, token: str, trace: Trace) -> tuple[Principal, float]:
        try:
            bearer = await self.tokens.verify(token, trace)
        except InvalidToken as error:
            raise _unauthorized(f"This token is not valid: {error}.") from error
        except KeysUnavailable as error:
            message = "Tokens cannot be checked now: their issuer does not answer. Try again in a moment."
            raise ApiError(503, message, retry_after_s=1.0) from error
        tenant_id = await self.keys.tenant(bearer.tenant)
        return Principal(tenant_id, bearer.subject, bearer.scopes, "jwt"), bearer.expires_at

    async def principal_of(self, tenant_id: UUID, via: Via, subject: str) -> Principal:
        """The caller of an earlier request whose work runs only now. Raises ApiError 401 if the key or session has
        ended. JWTs cannot be revoked: what was requested while they were valid still runs.
        """
        if via == "jwt":
            return Principal(tenant_id, subject, frozenset(), via)
        if via == "session":
            scopes = await self.sessions.scopes(tenant_id, subject)
            if scopes is None:
                raise _unauthorized("The session that asked for this has ended.")
            return Principal(tenant_id, subject, scopes, via)
        grant = await self.keys.grant(tenant_id, subject)
        if grant is None:
            raise _unauthorized("The API key that asked for this has expired or was revoked.")
        return Principal(tenant_id, subject, grant.scopes, via, grant.bounds)

    async def redeem_link(self, token: str, address: str) -> Grant:
        """What a one-time sign-in link grants. Raises ApiError 401 when it is no longer valid, or 429."""
        async with self.throttle.checking(address):
            grant = await self.keys.redeem_link(token) if len(token) <= CREDENTIAL_CHARS_MAX else None
            if grant is None:
                raise _unauthorized("This link was used or is too old.")
        return grant

    def revocable(self, principal: Principal, end: End) -> AbstractContextManager[None]:
        """Wraps work for a principal: `end` is called if its credential is revoked before the block ends."""
        return self._auth_cache.revocable(principal, end)

    def ended(self, subject: str) -> None:
        """Tell this worker that a credential was revoked. Other workers find out by `recheck`."""
        self._auth_cache.end({subject})

    async def recheck(self) -> None:
        """Find out which credentials were revoked since the last check, in one statement for all of them."""
        subjects, used = self._auth_cache.to_check()
        if subjects:
            asked_at = time.monotonic()
            self._auth_cache.checked(subjects, await self.keys.counting(subjects, used), asked_at)

    async def _recheck_forever(self, healthy: Healthy) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            await asyncio.to_thread(self.secret.reread)
            await self.recheck()
            await self._tidy()
            healthy()

    async def _tidy(self) -> None:
        if time.monotonic() - self._tidied_at >= TIDY_EVERY_S:
            await self.sessions.tidy()
            await self.audit.forget(self.audit_days)
            self._tidied_at = time.monotonic()


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key")
