"""State that clients carry for us but can neither read nor change: encrypted, and valid for one tenant only."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agents.message import Compaction, Item
from agents.payload import from_payload, to_payload
from worker.auth.secret import Secret
from worker.errors import ApiError

PREFIX = "ftc1_"  # the format; another format gets another number
NONCE_BYTES = 12  # the size of AES-GCM; random nonces are safe for some billions of seals per key
PURPOSE = "compaction"


class Seals:
    """AES-256-GCM; each tenant has its own key, derived from the installation's secret."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret

    def close(self, tenant_id: UUID, text: str) -> str:
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = nonce + AESGCM(self._secret.digest(PURPOSE, str(tenant_id))).encrypt(nonce, text.encode(), None)
        return PREFIX + base64.urlsafe_b64encode(sealed).decode()

    def open(self, tenant_id: UUID, sealed: str) -> str | None:
        """The text that was sealed for this tenant; None for anything else."""
        if not sealed.startswith(PREFIX):
            return None
        try:
            content = base64.b64decode(sealed.removeprefix(PREFIX), altchars=b"-_", validate=True)
            if PREFIX + base64.urlsafe_b64encode(content).decode() != sealed:
                return None  # the spare bits of the last letter are set: the same bytes, but not issued here
        except (binascii.Error, ValueError):
            return None
        keys = self._secret.digests(PURPOSE, str(tenant_id))
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
