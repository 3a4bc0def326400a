"""The exact tokens of turns that this model generated: a prompt rendered from them never breaks the cached prefix.

Keyed by a digest of the tenant and the message, itself keyed by the model's fingerprint: tokens of one model mean
nothing to another, and a tenant's message is never spelled with another tenant's tokens. They go into prompts as they
are, including the control tokens of tool calls, so they are only returned if they spell the message they stand for.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from inference.lru_cache import LruCache
from inference.prompt import ChatMessage
from inference.tokenizer import SIGNIFICANT

BYTES_MAX = 10 * 2**20  # the answers of some hundred long conversations
TOKEN_BYTES, TURN_BYTES = 36, 300  # per token; per turn, however short
ASKED_MAX = 10_000
DIGEST_BYTES = 16


class GeneratedTokens:
    """`salt` names the tenant. The least recently used turns are evicted first.

    Thread-safe: it is written to disk on a thread other than the event loop's.
    """

    def __init__(self, pieces: Sequence[bytes], fingerprint: bytes) -> None:
        self._pieces, self._fingerprint = pieces, fingerprint
        marks = {mark.encode() for mark in SIGNIFICANT}
        self._marks = frozenset(id for id, piece in enumerate(pieces) if piece in marks)
        self._unchecked: set[bytes] = set()  # loaded from a file: verified once their message is known
        self._kept: LruCache[bytes, tuple[int, ...]] = LruCache(
            BYTES_MAX, lambda _, ids: TURN_BYTES + TOKEN_BYTES * len(ids), lambda key, _: self._unchecked.discard(key)
        )
        self._asked: LruCache[bytes, bool] = LruCache(ASKED_MAX)  # keys already looked up elsewhere
        self._lock = threading.Lock()
        self.changes = 0  # turns put so far

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        return self._kept.size

    def get(self, message: ChatMessage, *, salt: str = "") -> tuple[int, ...] | None:
        """The tokens of a turn, marked as used; None if they are unknown or the message is not an assistant's."""
        if message.role != "assistant":
            return None
        key = self._key(message, salt)
        with self._lock:
            ids = self._kept.get(key)
            if ids is None or (key in self._unchecked and not self._spells(ids, message)):
                self._kept.pop(key)
                return None
            self._unchecked.discard(key)
        return ids

    def put(self, message: ChatMessage, ids: Sequence[int], *, salt: str = "") -> bytes | None:
        """Keep the tokens of a generated turn; returns the digest they are stored under. None if there are no tokens or
        they do not cover all of its text."""
        if not ids or not self._spells(ids, message):
            return None
        key = self._key(message, salt)
        with self._lock:
            self._kept.put(key, tuple(ids))
            self.changes += 1
        return key

    def missing(self, messages: Iterable[ChatMessage], *, salt: str = "") -> list[bytes]:
        """The digests of unknown turns, each only once: a turn not found elsewhere is not looked up again."""
        keys = [self._key(message, salt) for message in messages if message.role == "assistant"]
        with self._lock:
            new = [key for key in dict.fromkeys(keys) if key not in self._kept and key not in self._asked]
            for key in new:
                self._asked.put(key, True)
        return new

    def dump(self) -> list[tuple[bytes, tuple[int, ...]]]:
        """Digests of messages with their tokens, those of other models too; least recently used first."""
        with self._lock:
            return self._kept.items()

    def load(self, turns: Iterable[tuple[bytes, tuple[int, ...]]]) -> None:
        """Load what another worker dumped."""
        with self._lock:
            for key, ids in turns:
                self._kept.put(key, ids)
                self._unchecked.add(key)

    def _key(self, message: ChatMessage, salt: str) -> bytes:
        calls = [(call.name, call.arguments) for call in message.tool_calls]
        told = json.dumps([salt, message.role, message.content, message.reasoning, calls])
        return blake2b(told.encode(), digest_size=DIGEST_BYTES, key=self._fingerprint).digest()

    def _spells(self, ids: Sequence[int], message: ChatMessage) -> bool:
        """Whether the tokens spell the text of the message, with no token that has no text. Plain text contains no
        control tokens.

        Reasoning and tool calls are written in the model's own format. Reasoning and content have to appear in this
        order, and so do the names of all calls: the placeholder of an unreadable call says nothing of its text.
        """
        end = len(self._pieces)
        pieces = [self._pieces[token] for token in ids if 0 <= token < end]
        if len(pieces) < len(ids) or not all(pieces):
            return False
        try:
            text = b"".join(pieces).decode()
        except UnicodeDecodeError:  # cut off inside a character
            return False
        if not message.tool_calls and not message.reasoning:
            return text.strip() == message.content.strip() and self._marks.isdisjoint(ids)
        rest = iter(text)
        shown = message.reasoning + message.content
        in_order = all(character in rest for character in shown if not character.isspace())
        return in_order and all(call.name in text for call in message.tool_calls)
