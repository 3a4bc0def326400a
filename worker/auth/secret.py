"""The secret of an installation: keyed hashes for what is stored, signatures for what a browser carries."""

from __future__ import annotations

import base64
import hashlib
import hmac


class Secret:
    """Every purpose has a key of its own, so that a hash made for one is worth nothing for another."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def digest(self, purpose: str, value: str) -> bytes:
        """HMAC-SHA256, 32 bytes. Without the secret a stolen table of digests cannot be searched."""
        key = hmac.digest(self._secret, purpose.encode(), hashlib.sha256)
        return hmac.digest(key, value.encode(), hashlib.sha256)

    def sign(self, purpose: str, payload: bytes) -> str:
        """`<payload>.<signature>`, both URL-safe."""
        body = base64.urlsafe_b64encode(payload).rstrip(b"=").decode()
        return f"{body}.{self.digest(purpose, body).hex()}"

    def verify(self, purpose: str, signed: str) -> bytes | None:
        """The payload of what `sign` made for the same purpose; None for anything else."""
        body, _, signature = signed.partition(".")
        if not (body.isascii() and signature.isascii()):
            return None
        if not hmac.compare_digest(self.digest(purpose, body).hex(), signature):
            return None
        return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
