"""A token issuer on a real socket: its keys, its JWKS document, and how often it was asked."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

HMAC_SECRET = "a secret of at least thirty-two characters"


class Issuer:
    """`keys` are what it publishes; change them to rotate. `broken` makes it answer 500."""

    def __init__(self) -> None:
        self.rsa = RSAKey.generate_key(2048, {"kid": "rsa-1", "use": "sig"})
        self.ec = ECKey.generate_key("P-256", {"kid": "ec-1"})
        self.keys: list[RSAKey | ECKey | OctKey] = [self.rsa, self.ec]
        self.requests = 0
        self.broken = False
        self.document: dict[str, Any] | None = None  # instead of the keys
        app = web.Application()
        app.router.add_get("/jwks.json", self._jwks)
        self._server = TestServer(app)

    async def start(self) -> None:
        await self._server.start_server()

    async def close(self) -> None:
        await self._server.close()

    @property
    def url(self) -> str:
        return str(self._server.make_url("/jwks.json"))

    async def _jwks(self, request: web.Request) -> web.Response:
        self.requests += 1
        if self.broken:
            return web.Response(status=500)
        if self.document is not None:
            return web.json_response(self.document)
        private = isinstance(self.keys[0], OctKey)  # an octet key has no public part
        return web.json_response({"keys": [key.as_dict(private=private) for key in self.keys]})


def claims(**changes: Any) -> dict[str, Any]:
    """Claims of a token that is good for a minute; a change to None leaves the claim out."""
    now = int(time.time())
    standard = {"sub": "alice", "iss": "https://issuer.test", "aud": "firsttoken", "iat": now, "exp": now + 60}
    return {name: value for name, value in {**standard, **changes}.items() if value is not None}


def sign(content: dict[str, Any], key: RSAKey | ECKey | OctKey, algorithm: str, **header: Any) -> str:
    kid = {"kid": key.kid} if key.kid else {}
    return jwt.encode({"alg": algorithm, **kid, **header}, content, key, algorithms=[algorithm])
