"""The secret of an installation: keyed hashes for stored credentials, signatures for what a browser carries.

During a rotation there are two: the first hashes and signs, what the second one made is still accepted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Sequence

MARK_BYTES = 4  # identifies a secret without revealing anything about it


class Secret:
    """Every purpose has its own derived key, so that a hash made for one purpose is worthless for another."""

    def __init__(self, *secrets: bytes, source: Callable[[], Sequence[bytes]] | None = None) -> None:
        """`source` reads the secrets again."""
        self._source = source
        self._take(secrets)

    def __repr__(self) -> str:
        return f"<Secret {' '.join(self.marks)}>"

    def reread(self) -> None:
        """Read the secrets again. Raises what the source raises."""
        if self._source is not None:
            self._take(self._source())

    def _take(self, secrets: Sequence[bytes]) -> None:
        self._secrets = secrets
        self._cache_keys: dict[str, bytes] = {}
        self.marks = [digest[:MARK_BYTES].hex() for digest in self.digests("mark", "")]  # the signing one first

    def digest(self, purpose: str, value: str) -> bytes:
        """HMAC-SHA256, 32 bytes. Without the secret a stolen table of digests cannot be searched."""
        return _digest(self._secrets[0], purpose, value)

    def digests(self, purpose: str, value: str) -> list[bytes]:
        """What `digest` makes or has made of it, by each accepted secret."""
        return [_digest(secret, purpose, value) for secret in self._secrets]

    def cache_key(self, purpose: str, value: str) -> bytes:
        """A key for in-memory caches only: 32 bytes. Every request needs one, and OpenSSL releases the GIL for an HMAC,
        so that the event loop would wait for the engine's thread.
        """
        key = self._cache_keys.get(purpose)
        if key is None:
            key = self._cache_keys[purpose] = self.digest("cache-key", purpose)
        return hashlib.blake2b(value.encode(), key=key, digest_size=32).digest()

    def sign(self, purpose: str, payload: bytes) -> str:
        """`<payload>.<signature>`, both URL-safe."""
        body = base64.urlsafe_b64encode(payload).rstrip(b"=").decode()
        return f"{body}.{self.digest(purpose, body).hex()}"

    def verify(self, purpose: str, signed: str) -> bytes | None:
        """The payload of what `sign` made for the same purpose; None for anything else."""
        body, _, signature = signed.partition(".")
        if not (body.isascii() and signature.isascii()):
            return None
        if not any(hmac.compare_digest(digest.hex(), signature) for digest in self.digests(purpose, body)):
            return None
        return base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))


def _digest(secret: bytes, purpose: str, value: str) -> bytes:
    key = hmac.digest(secret, purpose.encode(), hashlib.sha256)
    return hmac.digest(key, value.encode(), hashlib.sha256)
