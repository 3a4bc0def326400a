"""Single sign-on for an organisation: OpenID Connect, the authorization code flow with PKCE.

OpenID Connect Core 1.0, section 3.1; RFC 7636; discovery by /.well-known/openid-configuration. joserfc checks the ID
token; the two requests are plain HTTP, for which Authlib has no client on aiohttp. The ID token alone identifies a
person: one claim names the tenant, another whether they see the latencies of all tenants.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
import orjson
from joserfc import jwt

from inference.trace import Trace
from worker.auth.jwt import (
    LEEWAY_S,
    TENANT_CHARS_MAX,
    InvalidToken,
    Jwks,
    KeysUnavailable,
    is_storable,
    read_document,
    verified,
)
from worker.auth.scope import USUAL, Scope
from worker.auth.secret import Secret
from worker.auth.throttle import Throttle
from worker.config import Config

PURPOSE = "oidc"
ATTEMPT_S = 600  # to type a password and to find the second factor
DISCOVERED_S = 3600.0
RETRY_S = 5.0  # during an outage, visitors fail fast instead of turning into a stream of requests to the provider
TIMEOUT_S = 10.0
RANDOM_BYTES = 32
SCOPE = "openid profile email"


class ProviderUnavailable(Exception):
    """The provider does not answer, or its response is malformed."""


class SignInRefused(Exception):
    """Sign-in was refused; the message says why in words for the person."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """State of a sign-in that the browser keeps, signed, while its user is at the provider."""

    state: str
    nonce: str
    verifier: str
    expires_at: float  # Unix seconds

    @classmethod
    def begin(cls) -> Attempt:
        state, nonce, verifier = (secrets.token_urlsafe(RANDOM_BYTES) for _ in range(3))
        return cls(state, nonce, verifier, time.time() + ATTEMPT_S)

    @property
    def challenge(self) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).rstrip(b"=").decode()

    def sealed(self, secret: Secret) -> str:
        return secret.sign(PURPOSE, orjson.dumps([self.state, self.nonce, self.verifier, self.expires_at]))

    @classmethod
    def opened(cls, sealed: str, secret: Secret) -> Attempt | None:
        """None if it was not signed here, or has expired."""
        payload = secret.verify(PURPOSE, sealed)
        attempt = cls(*orjson.loads(payload)) if payload else None
        return attempt if attempt is not None and attempt.expires_at > time.time() else None


@dataclass(frozen=True, slots=True)
class Person:
    """`tenant` is a tenant's name."""

    tenant: str
    subject: str
    scopes: frozenset[Scope]


@dataclass(frozen=True, slots=True)
class Endpoints:
    authorization: str
    token: str
    jwks: Jwks


class Provider:
    def __init__(self, config: Config) -> None:
        assert config.oidc_issuer is not None and config.oidc_client_id is not None
        self._issuer = config.oidc_issuer
        self._client_id = config.oidc_client_id
        self._client_secret = config.oidc_client_secret
        self._tenant_claim = config.oidc_tenant_claim
        self._operator_claim, _, self._operator_value = (config.oidc_operator or "").partition("=")
        # The same people with tokens of the same issuer see the same things.
        self._prefix = "jwt" if config.jwt_issuer == config.oidc_issuer else "oidc"
        self.throttle = Throttle()  # of its own: while the provider is slow, callers with an API key do not wait
        self._known: Endpoints | None = None
        self._outage = ""
        self._ask_at = -float("inf")  # monotonic
        self._asking = asyncio.Lock()

    @classmethod
    def of(cls, config: Config) -> Provider | None:
        return cls(config) if config.oidc_issuer else None

    async def address(self, attempt: Attempt, redirect_uri: str) -> str:
        """The URL where the person signs in. Raises ProviderUnavailable."""
        endpoints = await self._endpoints()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": SCOPE,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        return f"{endpoints.authorization}{'&' if '?' in endpoints.authorization else '?'}{urlencode(query)}"

    async def person(self, attempt: Attempt, code: str, redirect_uri: str, trace: Trace) -> Person:
        """The person who returned with this code. Raises SignInRefused, ProviderUnavailable."""
        endpoints = await self._endpoints()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client_id,
            "code_verifier": attempt.verifier,
        }
        # RFC 6749, 2.3.1: both parts are form-encoded before they are joined.
        secret = self._client_secret
        known = aiohttp.encode_basic_auth(_form(self._client_id), _form(secret)) if secret else None
        headers = {"Authorization": known} if known else {}
        status, answer = await _ask("POST", endpoints.token, data=form, headers=headers)
        token = answer.get("id_token")
        if status != 200 or not isinstance(token, str):
            raise SignInRefused("the provider did not accept the code")
        return self._person(await self._claims(token, attempt.nonce, endpoints.jwks, trace))

    async def _claims(self, token: str, nonce: str, jwks: Jwks, trace: Trace) -> dict[str, Any]:
        required: dict[str, Any] = {
            "iss": {"essential": True, "value": self._issuer},
            "aud": {"essential": True, "value": self._client_id},
            "exp": {"essential": True},
            "sub": {"essential": True},
            "nonce": {"essential": True, "value": nonce},
        }
        try:
            claims = await verified(token, jwt.JWTClaimsRegistry(leeway=LEEWAY_S, **required), trace, jwks)
        except KeysUnavailable as error:
            raise ProviderUnavailable(str(error)) from error
        except InvalidToken as error:
            raise SignInRefused(f"the token of the provider is not valid: {error}") from error
        if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and claims.get("azp") != self._client_id:
            raise SignInRefused("the token of the provider was issued for another client")
        return claims

    def _person(self, claims: Mapping[str, Any]) -> Person:
        tenant, subject = claims.get(self._tenant_claim), claims["sub"]
        if not isinstance(tenant, str) or not 1 <= len(tenant) <= TENANT_CHARS_MAX or not is_storable(tenant):
            raise SignInRefused(f"the claim '{self._tenant_claim}' does not name a tenant")
        if not isinstance(subject, str) or not is_storable(subject):
            raise SignInRefused("the claim 'sub' is not text")
        held = claims.get(self._operator_claim) if self._operator_claim else None
        operates = self._operator_value in held if isinstance(held, list) else self._operator_value == held
        scopes = USUAL | {Scope.OPS} if held is not None and operates else USUAL
        return Person(f"{self._prefix}:{tenant}", subject[:TENANT_CHARS_MAX], scopes)

    async def _endpoints(self) -> Endpoints:
        """The endpoints of the discovery document, which is refreshed every hour; an outage keeps the old ones.

        Raises ProviderUnavailable, immediately within RETRY_S of a failed attempt.
        """
        if self._is_due and not (self._known and self._asking.locked()):
            async with self._asking:
                if self._is_due:  # else another request has just fetched it
                    await self._ask_for_endpoints()
        if self._known is None:
            raise ProviderUnavailable(self._outage)
        return self._known

    @property
    def _is_due(self) -> bool:
        return time.monotonic() >= self._ask_at

    async def _ask_for_endpoints(self) -> None:
        try:
            self._known, good_s = await self._discover(), DISCOVERED_S
        except ProviderUnavailable as error:
            self._outage, good_s = str(error), RETRY_S
        self._ask_at = time.monotonic() + good_s

    async def _discover(self) -> Endpoints:
        status, found = await _ask("GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        named = [found.get(name) for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")]
        if status != 200 or not all(isinstance(url, str) and self._is_as_safe(url) for url in named):
            raise ProviderUnavailable("the provider has no usable discovery document")
        if found.get("issuer") != self._issuer:
            raise ProviderUnavailable("the discovery document is that of another issuer than --oidc-issuer names")
        authorization, token, keys = (str(url) for url in named)
        jwks = self._known.jwks if self._known and self._known.jwks.url == keys else Jwks(keys)
        return Endpoints(authorization, token, jwks)

    def _is_as_safe(self, url: str) -> bool:
        """No document may lead from https to http."""
        return urlsplit(url).scheme in ("https", urlsplit(self._issuer).scheme)


def _form(text: str) -> str:
    return urlencode({"": text})[1:]


async def _ask(method: str, url: str, **options: Any) -> tuple[int, dict[str, Any]]:
    """The status and the JSON object of a response. Raises ProviderUnavailable."""
    try:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.request(method, url, allow_redirects=False, **options) as response,
        ):
            found = orjson.loads(await read_document(response))
            return response.status, found if isinstance(found, dict) else {}
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise ProviderUnavailable(f"{urlsplit(url).hostname} does not answer: {type(error).__name__}") from error
