"""From credentials to a principal: an API key, a JWT or a browser's session."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from inference.trace import Trace
from worker.auth.jwks import KeysUnavailable
from worker.auth.jwt import InvalidToken, Tokens
from worker.auth.keys import KEY_PREFIX, Grant, Keys
from worker.auth.principal import Principal, Via
from worker.auth.secret import Secret
from worker.auth.session import Sessions, require_same_origin
from worker.errors import ApiError

CACHE_S = 30.0  # a revoked key keeps working for at most this long
CACHED_MAX = 10_000
CREDENTIAL_CHARS_MAX = 8192


@dataclass(frozen=True, slots=True)
class _Cached:
    principal: Principal
    until: float  # time.time(), the clock that credentials expire by


class Authenticator:
    """Answers "who is this?" for every request, mostly from a small cache keyed by a hash of the credential."""

    def __init__(self, keys: Keys, sessions: Sessions, tokens: Tokens, secret: Secret) -> None:
        self.keys = keys
        self.sessions = sessions
        self._tokens = tokens
        self._secret = secret
        self._cache: OrderedDict[bytes, _Cached] = OrderedDict()

    async def start(self) -> None:
        if self._tokens.jwks:
            await self._tokens.jwks.start()

    async def close(self) -> None:
        if self._tokens.jwks:
            await self._tokens.jwks.close()

    async def identify(
        self, headers: Mapping[str, str], cookies: Mapping[str, str], method: str, trace: Trace
    ) -> Principal | None:
        """Who is asking; None when no credential came along.

        Raises ApiError: 401 for a bearer credential that does not count, 403 for a session used from another site.
        """
        authorization = headers.get("Authorization")
        if authorization is None:
            principal = self.sessions.read(cookies)
            if principal is not None:
                require_same_origin(method, headers)
            return principal
        scheme, _, credential = authorization.strip().partition(" ")
        credential = credential.strip()
        if scheme.lower() != "bearer" or not credential or len(credential) > CREDENTIAL_CHARS_MAX:
            raise _unauthorized("The Authorization header must be `Bearer <api key>`.")
        return await self._identify_bearer(credential, trace)

    async def _identify_bearer(self, credential: str, trace: Trace) -> Principal:
        mark = self._secret.digest("credential-cache", credential)
        cached = self._cache.get(mark)
        if cached is not None and cached.until > time.time():
            self._cache.move_to_end(mark)
            return cached.principal
        principal, expires_at = await self._verify(credential, trace)
        self._cache[mark] = _Cached(principal, min(expires_at, time.time() + CACHE_S))
        self._cache.move_to_end(mark)
        if len(self._cache) > CACHED_MAX:
            self._cache.popitem(last=False)
        return principal

    async def _verify(self, credential: str, trace: Trace) -> tuple[Principal, float]:
        """The principal, and until when (Unix seconds) the credential counts."""
        if not credential.startswith(KEY_PREFIX) and credential.count(".") == 2 and self._tokens.enabled:
            return await self._verify_token(credential, trace)
        grant = await self.keys.authenticate(credential)
        if grant is None:
            raise _unauthorized("This API key is wrong, has expired or was revoked.")
        expires_at = grant.expires_at.timestamp() if grant.expires_at else float("inf")
        return Principal(grant.tenant_id, grant.id, grant.scopes, "api_key", grant.bounds), expires_at

    async def _verify_token(self, token: str, trace: Trace) -> tuple[Principal, float]:
        try:
            bearer = await self._tokens.verify(token, trace)
        except InvalidToken as error:
            raise _unauthorized(f"This token is not valid: {error}.") from error
        except KeysUnavailable as error:
            message = "Tokens cannot be checked now: their issuer does not answer. Try again in a moment."
            raise ApiError(503, message, type="server_error", retry_after_s=1.0) from error
        tenant_id = await self.keys.tenant(bearer.tenant)
        return Principal(tenant_id, bearer.subject, bearer.scopes, "jwt"), bearer.expires_at

    async def again(self, tenant_id: UUID, via: Via, subject: str) -> Principal:
        """Somebody who was let in earlier and whose work is done only now. Raises ApiError 401 for a key that ended.

        Sessions and JWTs cannot be revoked: what they asked for in their time counts.
        """
        if via != "api_key":
            return Principal(tenant_id, subject, frozenset(), via)
        grant = await self.keys.grant(tenant_id, subject)
        if grant is None:
            raise _unauthorized("The API key that asked for this has expired or was revoked.")
        return Principal(tenant_id, subject, grant.scopes, via, grant.bounds)

    async def redeem_link(self, token: str) -> Grant | None:
        """What a one-time sign-in link allows; None when it does not count any more."""
        return await self.keys.redeem_link(token) if len(token) <= CREDENTIAL_CHARS_MAX else None


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, type="authentication_error", code="invalid_api_key")
