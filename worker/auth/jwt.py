"""JWT bearer tokens: which signatures are accepted, and what a valid token says about its bearer."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OctKey, RSAKey
from joserfc.jws import JWSRegistry

from inference.trace import Trace
from worker.auth.auth_settings import TokenSettings
from worker.auth.jwks import Jwks
from worker.auth.scope import USUAL, Scope, known

log = logging.getLogger("firsttoken.auth")

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
        header = header_of(token)
        algorithm = str(header.get("alg"))
        key = await self._key(algorithm, header.get("kid"), trace)
        registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)  # issuers add headers of their own
        try:
            claims = jwt.decode(token, key, algorithms=[algorithm], registry=registry).claims
            self._claims.validate(claims)
        except JoseError as error:
            raise InvalidToken(error.description or error.error.replace("_", " ")) from error
        except (ValueError, RecursionError) as error:  # claims may nest deeper than the parser allows
            raise InvalidToken("the token is damaged") from error
        return self._bearer(claims)

    async def _key(self, algorithm: str, kid: object, trace: Trace) -> OctKey | RSAKey | ECKey:
        if algorithm in SYMMETRIC and self._secret is not None:
            return self._secret
        if algorithm in ASYMMETRIC and self.jwks is not None:
            key = await self.jwks.find(kid if isinstance(kid, str) else None, algorithm, trace)
            if key is None:
                raise InvalidToken("no key of the issuer matches this token")
            return key
        raise InvalidToken("tokens with this algorithm are not accepted")

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


def header_of(token: str) -> dict[str, Any]:
    encoded = token.split(".", 1)[0]
    try:
        header = orjson.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (binascii.Error, ValueError) as error:
        raise InvalidToken("the token is damaged") from error
    if not isinstance(header, dict):
        raise InvalidToken("the token is damaged")
    return header
