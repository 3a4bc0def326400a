"""Settings of whom a worker believes beside its own API keys: issuers of tokens, and the pages of other origins."""

from __future__ import annotations

import re
from dataclasses import dataclass

from worker.setting import Group, setting, web_address

JWT_SECRET_CHARS_MIN = 32  # an HS256 key shorter than its hash is open to brute force


def _long_enough(secret: str) -> None:
    if len(secret) < JWT_SECRET_CHARS_MIN:
        raise ValueError(f"must have {JWT_SECRET_CHARS_MIN} characters or more")


def _claim(text: str) -> None:
    if not all(text.partition("=")):
        raise ValueError(f"must be claim=value, not {text!r}")


@dataclass(frozen=True)
class TokenSettings(Group, title="JSON Web Tokens"):
    jwt_secret: str | None = setting(
        None, "accept tokens signed with HS256 and this secret", secret=True, check=_long_enough
    )
    jwt_jwks_url: str | None = setting(
        None, "accept tokens signed with RS256 or ES256 and a key from this JWKS URL", check=web_address
    )
    jwt_issuer: str | None = setting(None, "required issuer (iss) of a token")
    jwt_audience: str | None = setting(None, "required audience (aud) of a token")
    jwt_tenant_claim: str = setting("sub", "claim of a token that names its tenant")


@dataclass(frozen=True)
class SignOnSettings(Group, title="Single sign-on (OpenID Connect)"):
    oidc_issuer: str | None = setting(
        None, "URL of the OpenID Connect provider of your organisation", check=web_address, needs="oidc_client_id"
    )
    oidc_client_id: str | None = setting(None, "client id of this worker at the provider", needs="oidc_issuer")
    oidc_client_secret: str | None = setting(
        None, "client secret from the provider; public clients have none", secret=True
    )
    oidc_tenant_claim: str = setting("sub", "claim of the ID token that names the person's tenant")
    oidc_operator: str | None = setting(
        None,
        "claim=value of people who may see the latencies of all tenants, such as groups=ops",
        fallback="nobody",
        check=_claim,
    )
    oidc_url: str | None = setting(
        None,
        "public URL of the worker behind a proxy; the provider redirects to its /sign-in/organisation/callback",
        fallback="the URL in the browser",
        check=web_address,
    )


ANY = "*"
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\[\]:-]+")


@dataclass(frozen=True, slots=True)
class Cors:
    """Cross-origin requests, as in the Fetch standard. `origins` are those whose pages may call the API; "*" for all.

    They send an API key or a JWT of their own. The session cookie is not for them: credentials are never allowed.
    """

    origins: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str | None) -> Cors:
        """Origins, separated by commas. Raises ValueError with the mistake as its message."""
        origins = [part.strip().rstrip("/") for part in (text or "").split(",") if part.strip()]
        for origin in origins:
            if origin != ANY and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"must be * or origins such as https://example.com, not {origin!r}")
        return cls(frozenset(origins))

    def allowed(self, origin: str | None) -> str | None:
        """The origin to which a response to a request from this one is exposed."""
        if ANY in self.origins:
            return ANY
        return origin if origin in self.origins else None
