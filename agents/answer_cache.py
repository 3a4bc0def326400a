"""A cache of answers: reused for the identical prompt of the same tenant, on the same model, with the same sampling.

A prompt contains everything that its answer depends on: instructions, conversation, the current passages, results of
tools. So nothing has to be invalidated, and a cached answer is one that the model could generate again.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from inference.generation import Delta, Finish, Forecast, Hop, Likelihoods, Sampling, Spent, Stamps, Steps
from inference.prompt_cache import Miss
from inference.trace import now_ns

KEY_BYTES = 32
ANSWER_BYTES = 400  # per entry, besides its text and its tokens
TOKEN_BYTES = 36
REPEATABLE = (Finish.STOP, Finish.LENGTH)


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    text: str
    ids: tuple[int, ...]
    finish: Finish

    @property
    def size(self) -> int:
        """An estimate in bytes."""
        return ANSWER_BYTES + 4 * len(self.text) + TOKEN_BYTES * len(self.ids)


class AnswerCache:
    """Evicts the least recently used. For the event loop only."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[bytes, CachedAnswer] = OrderedDict()
        self._bytes = 0
        self.hits = self.misses = self.saved_tokens = 0
        self.saved_s = 0.0

    def __repr__(self) -> str:
        return f"<AnswerCache {len(self._kept)} answers | {self._bytes} of {self._bytes_max} bytes>"

    @staticmethod
    def key(salt: str, model: str, prompt: Sequence[int], sampling: Sampling, held: str) -> bytes | None:
        """`held` identifies the constraint of the answer, in place of its compiled grammar. None if an answer must not
        be reused: sampling without a seed asks for a new answer each time, and log probabilities belong to the
        generation that they were computed for."""
        draws = sampling.temperature > 0 and sampling.seed is None
        if draws or sampling.top_logprobs is not None or sampling.ignore_eos:
            return None
        digest = blake2b(repr((salt, model, replace(sampling, grammar=None), held)).encode(), digest_size=KEY_BYTES)
        digest.update(array("q", prompt).tobytes())
        return digest.digest()

    def get(self, key: bytes) -> CachedAnswer | None:
        answer = self._kept.get(key)
        if answer is None:
            self.misses += 1
            return None
        self._kept.move_to_end(key)
        return answer

    def saved(self, answer: CachedAnswer, seconds: float) -> None:
        """An answer was reused, which saved this time."""
        self.hits += 1
        self.saved_tokens += len(answer.ids)
        self.saved_s += seconds

    def put(self, key: bytes, answer: CachedAnswer) -> None:
        """Only an answer that ended by itself: one that was cut off by its client or a deadline is incomplete."""
        if answer.finish not in REPEATABLE or answer.size > self._bytes_max:
            return
        self._forget(key)
        self._kept[key] = answer
        self._bytes += answer.size
        while self._bytes > self._bytes_max:
            self._forget(next(iter(self._kept)))

    def stats(self) -> dict[str, float]:
        return {
            "answer_cache_bytes": self._bytes,
            "answer_cache_hits_total": self.hits,
            "answer_cache_misses_total": self.misses,
            "answer_cache_saved_tokens_total": self.saved_tokens,
            "answer_cache_saved_seconds_total": round(self.saved_s, 3),
        }

    def _forget(self, key: bytes) -> None:
        answer = self._kept.pop(key, None)
        self._bytes -= answer.size if answer else 0


class CachedGeneration:
    """A `Generation` that is already complete. Its prompt counts as cached."""

    def __init__(self, answer: CachedAnswer, prompt_tokens: int) -> None:
        now = now_ns()
        self.stamps = Stamps(now, now, now, now, now, now)
        self.prompt_tokens = self.cached_tokens = prompt_tokens
        self.drafted = self.accepted = 0
        self.miss: Miss | None = None
        self.forecast: Forecast | None = None
        self.place: int | None = None
        self.reading, self.writing = Steps(), Steps()
        self.spent = Spent()
        self.hops: tuple[Hop, ...] = ()
        self.scores: Sequence[Likelihoods] = ()
        self.ids: list[int] = []
        self.finish: Finish | None = None
        self._answer = answer

    @classmethod
    def over(cls, answer: CachedAnswer, prompt_tokens: int) -> CachedGeneration:
        """One whose tokens were all delivered."""
        generation = cls(answer, prompt_tokens)
        generation.ids, generation.finish = list(answer.ids), answer.finish
        return generation

    async def admitted(self) -> None:
        pass

    async def stream(self, receive: Callable[[Delta], None]) -> None:
        await asyncio.sleep(0)  # as every generation, yields to the event loop between two tokens
        if self.finish is None:
            self.ids = list(self._answer.ids)
            receive(Delta(self._answer.text, len(self.ids)))
            self.finish = self._answer.finish

    def cancel(self) -> None:
        self.finish = self.finish or Finish.CANCELLED

    def end_thought(self) -> None:
        """Without effect: all of it is there."""
