"""JWT bearer tokens: which signatures are accepted, and what a valid token says about its bearer. And the public keys
of their issuer: fetched over HTTP, cached, and refreshed before a request has to wait for them."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OctKey, RSAKey
from joserfc.jws import JWSRegistry

from inference.trace import Trace
from worker.auth.auth_settings import TokenSettings
from worker.auth.scope import USUAL, Scope, known
from worker.lifecycle.supervisor import Healthy, Supervised, Supervisor

log = logging.getLogger("firsttoken.auth")

REFRESH_S = 300.0
REFETCH_MIN_S = 30.0  # a stream of tokens with made-up key ids must not become a stream of requests to the issuer
FETCH_TIMEOUT_S = 5.0
DOCUMENT_BYTES_MAX = 256 * 1024  # of an issuer: usually a few kilobytes
KINDS: dict[str, type[RSAKey | ECKey]] = {"RSA": RSAKey, "EC": ECKey}


class KeysUnavailable(Exception):
    """The issuer's keys were never fetched and cannot be fetched now."""


class Jwks:
    """The keys of one JWKS document. A failed refresh keeps the old keys: an issuer's outage signs nobody out."""

    def __init__(self, url: str, *, refetch_min_s: float = REFETCH_MIN_S) -> None:
        self.url = url
        self._shown = urlsplit(url).netloc.rpartition("@")[2]  # the userinfo before the host may contain a password
        self._refetch_min_s = refetch_min_s
        self._keys: list[RSAKey | ECKey] = []
        self._tried_at = -float("inf")
        self._lock = asyncio.Lock()
        self._refresher: Supervised | None = None

    async def start(self, supervisor: Supervisor) -> None:
        """Fetch once and keep refreshing in the background."""
        await self._fetch()
        self._refresher = supervisor.start("jwks", self._refresh, retry_max_s=REFRESH_S, expected=(KeysUnavailable,))

    async def close(self) -> None:
        if self._refresher:
            await self._refresher.stop()

    async def find(self, kid: str | None, algorithm: str, trace: Trace) -> RSAKey | ECKey | None:
        """The key that may verify this token; an unknown `kid` triggers a refetch, but not too often.

        Raises KeysUnavailable if no key was ever fetched.
        """
        key = self._pick(kid, algorithm)
        if key is None and time.monotonic() - self._tried_at >= self._refetch_min_s:
            parent = len(trace.spans) - 1 if trace.spans else None
            with trace.span("jwks", lane="auth", parent=parent):
                async with self._lock:
                    if time.monotonic() - self._tried_at >= self._refetch_min_s:  # else another has fetched them
                        await self._fetch()
            key = self._pick(kid, algorithm)
        if key is None and not self._keys:
            raise KeysUnavailable(f"no keys from {self._shown}")
        return key

    def _pick(self, kid: str | None, algorithm: str) -> RSAKey | ECKey | None:
        """By id; a token without one is unambiguous only if a single key fits its algorithm."""
        kind = RSAKey if algorithm.startswith("RS") else ECKey
        fitting = [key for key in self._keys if isinstance(key, kind) and key.get("use") in (None, "sig")]
        if kid is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.kid == kid), None)

    async def _refresh(self, healthy: Healthy) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            async with self._lock:
                if not await self._fetch():
                    raise KeysUnavailable(f"no keys from {self._shown}")
            healthy()

    async def _fetch(self) -> bool:
        """Whether the fetch succeeded."""
        self._tried_at = time.monotonic()
        try:
            timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
            async with aiohttp.ClientSession(timeout=timeout) as client, client.get(self.url) as response:
                response.raise_for_status()
                self._keys = parse(await read_document(response))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.warning("the keys at %s could not be fetched; the previous ones stay in use: %r", self._shown, error)
            return False
        return True


async def read_document(response: aiohttp.ClientResponse) -> bytes:
    """Raises ValueError for one that is too large."""
    document = bytearray()
    async for part in response.content.iter_any():
        document += part
        if len(document) > DOCUMENT_BYTES_MAX:
            raise ValueError(f"the document is larger than {DOCUMENT_BYTES_MAX} bytes")
    return bytes(document)


def parse(document: bytes) -> list[RSAKey | ECKey]:
    """The public signature keys of a JWKS document; an unusable key does not invalidate the others.

    Symmetric keys are skipped: a key in a public document is no secret. Raises ValueError if none is left.
    """
    content = json.loads(document)
    entries = content.get("keys") if isinstance(content, dict) else None
    keys = [key for entry in entries if (key := _parse_key(entry))] if isinstance(entries, list) else []
    if not keys:
        raise ValueError("not a JWKS document with RSA or EC keys")
    return keys


def _parse_key(entry: object) -> RSAKey | ECKey | None:
    kind = str(entry.get("kty")) if isinstance(entry, dict) else ""
    if not isinstance(entry, dict) or kind not in KINDS:
        return None
    try:
        return KINDS[kind].import_key(entry)
    except (JoseError, ValueError, KeyError) as error:  # KeyError: a curve that the library does not know
        log.warning("a key of the issuer cannot be used: %r", error)
        return None


LEEWAY_S = 30  # tolerated clock skew between machines
SYMMETRIC, ASYMMETRIC = frozenset({"HS256"}), frozenset({"RS256", "ES256"})
SCOPE_PREFIX = "firsttoken:"  # in the `scope` claim, since an issuer serves other software too
OPERATOR = "operator"  # an older name of `ops` that takes nothing away, from before every permission was a scope
TENANT_CHARS_MAX = 190


class InvalidToken(Exception):
    """The token is rejected; the message says why in words that may be shown to its bearer."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """What a valid token says. `expires_at` is Unix seconds."""

    tenant: str
    subject: str
    scopes: frozenset[Scope]
    expires_at: float


class Tokens:
    """Verifies tokens of one issuer.

    The algorithm decides which key is used, never the other way round: a public key from the JWKS is never tried as an
    HMAC secret, and an algorithm that is not listed (`none` above all) is refused before any key is touched.
    """

    def __init__(self, config: TokenSettings) -> None:
        self._secret = OctKey.import_key(config.jwt_secret) if config.jwt_secret else None
        self.jwks = Jwks(config.jwt_jwks_url) if config.jwt_jwks_url else None
        self._tenant_claim = config.jwt_tenant_claim
        required: dict[str, Any] = {"exp": {"essential": True}}
        if config.jwt_issuer:
            required["iss"] = {"essential": True, "value": config.jwt_issuer}
        if config.jwt_audience:
            required["aud"] = {"essential": True, "value": config.jwt_audience}
        self._required = required.keys()
        self._claims = jwt.JWTClaimsRegistry(leeway=LEEWAY_S, **required)

    def warn(self) -> None:
        """Log in one line which setting is missing, if tokens that were issued for other software would be accepted."""
        flags = {"--jwt-issuer": "iss", "--jwt-audience": "aud"}
        missing = [flag for flag, claim in flags.items() if claim not in self._required]
        if self.jwks is not None and missing:
            log.warning(
                "every token signed by a key of --jwt-jwks-url is accepted, even if issued for other software: set %s",
                " and ".join(missing),
            )

    @property
    def enabled(self) -> bool:
        return self._secret is not None or self.jwks is not None

    async def verify(self, token: str, trace: Trace) -> Bearer:
        """Raises InvalidToken, or KeysUnavailable when the issuer cannot be reached."""
        return self._bearer(await verified(token, self._claims, trace, self.jwks, self._secret))

    def _bearer(self, claims: Mapping[str, Any]) -> Bearer:
        tenant, subject, scope = claims.get(self._tenant_claim), claims.get("sub", ""), claims.get("scope", "")
        if not isinstance(tenant, str) or not 1 <= len(tenant) <= TENANT_CHARS_MAX:
            raise InvalidToken(f"the claim '{self._tenant_claim}' must name the tenant")
        if not isinstance(subject, str) or not is_storable(tenant + subject):
            raise InvalidToken("its claims are not plain text")
        # The prefix keeps an issuer's names apart from ours: a subject called "local" is not the local tenant.
        return Bearer(f"jwt:{tenant}", subject, _scopes(scope), float(claims["exp"]))


def is_storable(text: str) -> bool:
    """JSON may encode lone surrogates, and NUL."""
    return not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text)


def _scopes(claim: object) -> frozenset[Scope]:
    """The scopes that the `scope` claim grants: those of ours that it names, or the default ones if it names none of
    ours.
    """
    words = claim.split() if isinstance(claim, str) else []
    named = {word.removeprefix(SCOPE_PREFIX) for word in words if word.startswith(SCOPE_PREFIX)}
    granted = known(named) if named - {OPERATOR} else USUAL
    return granted | {Scope.OPS} if OPERATOR in named else granted


async def verified(
    token: str, required: jwt.JWTClaimsRegistry, trace: Trace, jwks: Jwks | None, secret: OctKey | None = None
) -> dict[str, Any]:
    """The claims of a token that was signed with one of these keys. Raises InvalidToken, KeysUnavailable."""
    header = _header_of(token)
    algorithm, kid = str(header.get("alg")), header.get("kid")
    key: OctKey | RSAKey | ECKey | None
    if algorithm in SYMMETRIC and secret is not None:
        key = secret
    elif algorithm in ASYMMETRIC and jwks is not None:
        key = await jwks.find(kid if isinstance(kid, str) else None, algorithm, trace)
    else:
        raise InvalidToken("tokens with this algorithm are not accepted")
    if key is None:
        raise InvalidToken("no key of the issuer matches this token")
    registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)  # issuers add headers of their own
    try:
        claims = jwt.decode(token, key, algorithms=[algorithm], registry=registry).claims
        required.validate(claims)
    except JoseError as error:
        raise InvalidToken(error.description or error.error.replace("_", " ")) from error
    except (ValueError, RecursionError) as error:  # claims may nest deeper than the parser allows
        raise InvalidToken("the token is damaged") from error
    return claims


def _header_of(token: str) -> dict[str, Any]:
    encoded = token.split(".", 1)[0]
    try:
        header = orjson.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (binascii.Error, ValueError) as error:
        raise InvalidToken("the token is damaged") from error
    if not isinstance(header, dict):
        raise InvalidToken("the token is damaged")
    return header
