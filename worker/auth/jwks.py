"""The public keys of a token issuer: fetched over HTTP, cached, and refreshed before a request has to wait for them."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from urllib.parse import urlsplit

import aiohttp
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from inference.trace import Trace
from worker.lifecycle.supervisor import Supervised, Supervisor, Well

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

    async def _refresh(self, well: Well) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            async with self._lock:
                if not await self._fetch():
                    raise KeysUnavailable(f"no keys from {self._shown}")
            well()

    async def _fetch(self) -> bool:
        """Whether the fetch succeeded."""
        self._tried_at = time.monotonic()
        try:
            timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
            async with aiohttp.ClientSession(timeout=timeout) as client, client.get(self.url) as response:
                self._keys = parse(await _read(response))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.warning("the keys at %s could not be fetched; the previous ones stay in use: %r", self._shown, error)
            return False
        return True


async def _read(response: aiohttp.ClientResponse) -> bytes:
    response.raise_for_status()
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
