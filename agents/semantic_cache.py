"""The semantic cache: answers are reused for similar questions of the same tenant, after the identical conversation,
with the same passages, on the same model.

The threshold of similarity is fitted on cases (`firsttoken eval cache`). For a share of the hits, the answer is
generated anyway and compared with the cached one: that measures how often the cache would have been wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from agents.answer_cache import REPEATABLE, CachedAnswer
from agents.text_similarity import overlap, particulars

Vector: TypeAlias = NDArray[np.float32]  # of length 1
Embed: TypeAlias = Callable[[str, str], Awaitable[Vector]]  # of a text, for a tenant

QUESTION_CHARS_MAX = 1000  # for a text of more than a few sentences, a vector says too little
CONTEXT_CHARS_MAX = 50_000  # hashed on the event loop, in less than a millisecond
PATIENCE_S = 0.1  # for the vector: the first token waits for it, and the embedding model may be busy with documents
LOOKED_AT_MAX = 256  # questions of one context: some tens of microseconds
ENTRY_BYTES = 600  # per entry, besides its texts, tokens and vector
CHECKED_SHARE = 0.05  # of the hits
RIGHT = 0.6  # of the words that two answers to one question share; paraphrases share more


@dataclass(frozen=True, slots=True)
class SemanticQuery:
    """`context` is everything that the answer depends on except the question. `given` is the cached answer of a
    check.
    """

    context: bytes
    question: str
    vector: Vector
    given: CachedAnswer | None = None


@dataclass(frozen=True, slots=True)
class CacheSlot:
    """Where a generated answer will be cached: under which key, and for which question."""

    key: bytes | None = None
    asked: SemanticQuery | None = None

    def __bool__(self) -> bool:
        return self.key is not None or self.asked is not None


@dataclass(frozen=True, slots=True)
class SemanticHit:
    answer: CachedAnswer
    similarity: float


@dataclass(frozen=True, slots=True)
class _Kept:
    asked: SemanticQuery
    answer: CachedAnswer
    particulars: tuple[str, ...]

    @property
    def size(self) -> int:
        """An estimate in bytes."""
        return ENTRY_BYTES + self.answer.size + self.asked.vector.nbytes + 4 * len(self.asked.question)


@dataclass(slots=True)
class SemanticCache:
    """Evicts the least recently used. For the event loop only. `threshold` is a cosine similarity."""

    bytes_max: int
    threshold: float
    embed: Embed
    checked_share: float = CHECKED_SHARE
    chance: random.Random = field(default_factory=random.Random)
    hits: int = 0
    misses: int = 0
    checked: int = 0
    wrong: int = 0
    saved_tokens: int = 0
    saved_s: float = 0.0
    _bytes: int = 0
    _kept: OrderedDict[tuple[bytes, str], _Kept] = field(default_factory=OrderedDict)
    _contexts: dict[bytes, dict[str, _Kept]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<SemanticCache {len(self._kept)} answers | {self._bytes} of {self.bytes_max} bytes>"

    async def ask(self, context: bytes, question: str, salt: str) -> tuple[SemanticQuery, SemanticHit | None] | None:
        """The query, to be stored with its answer, and the hit, if there is one. None for a question that is too long,
        or whose vector is not computed in time. Raises InferenceError."""
        if not question or len(question) > QUESTION_CHARS_MAX:
            return None
        try:
            async with asyncio.timeout(PATIENCE_S):
                vector = await self.embed(question, salt)
        except TimeoutError:
            self.misses += 1
            return None
        asked = SemanticQuery(context, question, vector)
        found = self._nearest(asked)
        if found is None:
            self.misses += 1
            return asked, None
        if self.chance.random() < self.checked_share:
            return SemanticQuery(context, question, asked.vector, found.answer), None
        return asked, found

    def saved(self, found: SemanticHit, seconds: float) -> None:
        """A hit was used, which saved this time."""
        self.hits += 1
        self.saved_tokens += len(found.answer.ids)
        self.saved_s += seconds

    def put(self, asked: SemanticQuery, answer: CachedAnswer) -> None:
        """Store the generated answer, unless it is empty or was cut off."""
        if answer.finish not in REPEATABLE or not answer.text.strip():
            return
        if asked.given is not None:
            self.checked += 1
            self.wrong += overlap(asked.given.text, answer.text) < RIGHT
        kept = _Kept(asked, answer, particulars(asked.question))
        if kept.size > self.bytes_max:
            return
        key = asked.context, asked.question
        self._forget(key)
        self._kept[key] = self._contexts.setdefault(asked.context, {})[asked.question] = kept
        self._bytes += kept.size
        beside = self._contexts[asked.context]
        if len(beside) > LOOKED_AT_MAX:
            self._forget((asked.context, next(iter(beside))))
        while self._bytes > self.bytes_max:
            self._forget(next(iter(self._kept)))

    def stats(self) -> dict[str, float]:
        return {
            "semantic_cache_bytes": self._bytes,
            "semantic_cache_hits_total": self.hits,
            "semantic_cache_misses_total": self.misses,
            "semantic_cache_checked_total": self.checked,
            "semantic_cache_wrong_total": self.wrong,
            "semantic_cache_saved_tokens_total": self.saved_tokens,
            "semantic_cache_saved_seconds_total": round(self.saved_s, 3),
        }

    def _nearest(self, asked: SemanticQuery) -> SemanticHit | None:
        own = particulars(asked.question)
        known = [kept for kept in self._contexts.get(asked.context, {}).values() if kept.particulars == own]
        if not known:
            return None
        similarities = (np.stack([kept.asked.vector for kept in known]) * asked.vector).sum(axis=1)
        best = int(similarities.argmax())
        if similarities[best] < self.threshold:
            return None
        self._kept.move_to_end((asked.context, known[best].asked.question))
        return SemanticHit(known[best].answer, float(similarities[best]))

    def _forget(self, key: tuple[bytes, str]) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept.size
            questions = self._contexts[key[0]]
            del questions[key[1]]
            if not questions:
                del self._contexts[key[0]]
