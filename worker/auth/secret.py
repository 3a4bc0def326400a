"""The secret of an installation: keyed hashes for stored credentials, signatures for what a browser carries, and seals
of what clients keep for us. And where it is kept: 32 bytes in the home folder, or 72 while it is being rotated.

    the secret 32
    the old one 32 | the new one 32 | Unix seconds from which the new one signs, a little-endian double 8

During a rotation there are two: the first hashes and signs, what the second one made is still accepted. Between the
rotation and that moment the new one only counts: no worker gets to see what another one signed with a secret that it
has not read yet.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agents.message import Compaction, Item
from agents.payload import from_payload, to_payload
from worker.config import Config
from worker.errors import ApiError, StartError
from worker.home import Home, write_atomically

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


SECRET_BYTES = 32
SIGNS_AFTER_S = 30.0  # three times the interval at which a worker rereads the file
_BOTH = struct.Struct(f"<{SECRET_BYTES}s{SECRET_BYTES}sd")


class SecretFile:
    """Several workers and commands may use it at once."""

    def __init__(self, home: Home) -> None:
        self._home = home

    @property
    def path(self) -> Path:
        return self._home.path / "secret"

    def read(self) -> tuple[bytes, ...]:
        """The accepted secrets, the signing one first; created on first use. Raises StartError if the file is
        damaged.
        """
        if not self.path.exists():
            with self._home.locked():
                if not self.path.exists():
                    write_atomically(self.path, secrets.token_bytes(SECRET_BYTES))
        return self._read()[0]

    def rotate(self) -> None:
        """Add a new secret. Raises StartError if there are already two."""
        with self._home.locked():
            (secret, *others), _ = self._read()
            if others:
                raise StartError("two secrets are already valid: drop the old one first with `firsttoken secret drop`")
            new = secrets.token_bytes(SECRET_BYTES)
            write_atomically(self.path, _BOTH.pack(secret, new, time.time() + SIGNS_AFTER_S))

    def drop(self) -> None:
        """Drop the old secret. Raises StartError if there is only one, or the new one does not sign yet."""
        with self._home.locked():
            found, signs_from = self._read()
            if len(found) == 1:
                raise StartError("there is only one secret: `firsttoken secret rotate` makes a new one")
            if signs_from > time.time():
                raise StartError(f"the new secret signs {SIGNS_AFTER_S:.0f} s after the rotation: wait for that")
            write_atomically(self.path, found[0])

    def _read(self) -> tuple[tuple[bytes, ...], float]:
        content = self.path.read_bytes()
        if len(content) == SECRET_BYTES:
            return (content,), 0.0
        if len(content) != _BOTH.size:
            raise StartError(f"{self.path} is damaged: restore it, or remove it and sign in again with new keys")
        old, new, signs_from = _BOTH.unpack(content)
        return ((new, old) if signs_from <= time.time() else (old, new)), signs_from


def read_secret(config: Config, home: Home) -> Secret:
    """The secret of the settings, which only a restart changes, or that of the home folder, which a worker rereads."""
    if config.secret:
        return Secret(*(secret.encode() for secret in (config.secret, config.secret_before) if secret))
    file = SecretFile(home)
    return Secret(*file.read(), source=file.read)


SEAL_PREFIX = "ftc1_"  # the format; another format gets another number
NONCE_BYTES = 12  # the size of AES-GCM; random nonces are safe for some billions of seals per key
SEAL_PURPOSE = "compaction"


class Seals:
    """AES-256-GCM; each tenant has its own key, derived from the installation's secret."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret

    def close(self, tenant_id: UUID, text: str) -> str:
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = nonce + AESGCM(self._secret.digest(SEAL_PURPOSE, str(tenant_id))).encrypt(nonce, text.encode(), None)
        return SEAL_PREFIX + base64.urlsafe_b64encode(sealed).decode()

    def open(self, tenant_id: UUID, sealed: str) -> str | None:
        """The text that was sealed for this tenant; None for anything else."""
        if not sealed.startswith(SEAL_PREFIX):
            return None
        try:
            content = base64.b64decode(sealed.removeprefix(SEAL_PREFIX), altchars=b"-_", validate=True)
            if SEAL_PREFIX + base64.urlsafe_b64encode(content).decode() != sealed:
                return None  # the spare bits of the last letter are set: the same bytes, but not issued here
        except (binascii.Error, ValueError):
            return None
        keys = self._secret.digests(SEAL_PURPOSE, str(tenant_id))
        return next((text for key in keys if (text := _decrypted(key, content)) is not None), None)


def _decrypted(key: bytes, content: bytes) -> str | None:
    try:
        return AESGCM(key).decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], None).decode()
    except (InvalidTag, ValueError):
        return None


def sealed(seals: Seals, tenant_id: UUID, summary: str, recent: Sequence[Item] = ()) -> str:
    """The counterpart of `opened`."""
    content = {"summary": summary, "recent": [to_payload(item) for item in recent]}
    return seals.close(tenant_id, orjson.dumps(content).decode())


def opened(seals: Seals, tenant_id: UUID, item: Item, param: str) -> Item:
    """The item; a reasoning summary with its text. Raises ApiError 400 naming `param` if it was not sealed for this
    tenant.
    """
    if not isinstance(item, Compaction):
        return item
    text = seals.open(tenant_id, item.sealed)
    if text is None:
        message = f"The encrypted content of '{param}' was not made here for you, or was changed."
        raise ApiError(400, message, param=param, code="invalid_encrypted_content")
    content = orjson.loads(text)
    return replace(item, summary=content["summary"], recent=tuple(map(from_payload, content["recent"])))
