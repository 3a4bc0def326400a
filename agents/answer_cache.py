"""The cache of answers: reused for the identical prompt of the same tenant, on the same model, with the same sampling.

A prompt contains everything that its answer depends on: instructions, conversation, the current passages, results of
tools. So nothing has to be invalidated, and a cached answer is one that the model could generate again.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TypeAlias

from agents.router import Candidate
from agents.toolbox import AvailableTools
from agents.turn import Turn
from inference.frozen import dataclass
from inference.generation import Delta, Facts, Finish, Sampling, Stamps
from inference.lru_cache import LruCache
from inference.trace import Trace, now_ns

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


class CachedGeneration:
    """A `Generation` that is already complete. Its prompt counts as cached."""

    def __init__(self, answer: CachedAnswer, prompt_tokens: int) -> None:
        now = now_ns()
        self.facts = Facts(stamps=Stamps(now, now, now, now, now, now), cached_tokens=prompt_tokens)
        self.prompt_tokens = prompt_tokens
        self.queue_position: int | None = None
        self.read_tokens: int | None = None
        self.ids: list[int] = []
        self.finish: Finish | None = None
        self._answer = answer

    @classmethod
    def delivered(cls, answer: CachedAnswer, prompt_tokens: int) -> CachedGeneration:
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

    def end_reasoning(self) -> None:
        """Without effect: all of it is there."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """Everything that the answer of a turn's next step depends on. `steps` is the number of steps before it."""

    turn: Turn
    offer: AvailableTools
    calls_max: int
    steps: int
    candidate: Candidate
    prompt: Sequence[int]
    sampling: Sampling

    @property
    def key(self) -> bytes | None:
        """None if its answer must not be reused: sampling without a seed asks for a new answer each time, and log
        probabilities belong to the generation that they were computed for."""
        turn, sampling = self.turn, self.sampling
        draws = sampling.temperature > 0 and sampling.seed is None
        if draws or sampling.top_logprobs is not None or sampling.ignore_eos:
            return None
        strict = [function.strict for function in self.offer.definitions]
        form = (turn.answer_format.schema, turn.answer_format.strict) if turn.answer_format else None
        # What constrains the answer, in place of its compiled grammar.
        held = (sorted(self.offer.callable), turn.tool_choice, strict, form, self.calls_max, turn.stop, self.steps > 0)
        model = self.candidate.name, self.candidate.version
        told = repr((turn.salt, model, replace(sampling, grammar=None), held))
        digest = blake2b(told.encode(), digest_size=KEY_BYTES)
        digest.update(array("q", self.prompt).tobytes())
        return digest.digest()

    def computing_s(self, answer: CachedAnswer) -> float:
        """The time that generating this answer would take."""
        speed = self.candidate.speed
        return len(self.prompt) * speed.prefill_token_s + len(answer.ids) * speed.decode_token_s


CacheAnswer: TypeAlias = Callable[[CachedAnswer], None]


class AnswerCache:
    """Evicts the least recently used. For the event loop only."""

    def __init__(self, bytes_max: int) -> None:
        self._kept = LruCache[bytes, CachedAnswer](bytes_max, lambda _, answer: answer.size)
        self._hits = self._misses = self._saved_tokens = 0
        self._saved_s = 0.0

    def __repr__(self) -> str:
        return f"<AnswerCache {len(self._kept)} answers | {self._kept.size} of {self._kept.size_max} bytes>"

    def find(self, step: NextStep, trace: Trace) -> tuple[CachedGeneration | None, CacheAnswer | None]:
        """The cached answer of a step, or what caches the generated one. It has a span of its own, which Server-Timing
        reports to clients."""
        if (key := step.key) is None:
            return None, None
        with trace.span("answer_cache") as span:
            answer = self.get(key)
            span.attributes["hit"] = answer is not None
        if answer is None:
            span.name = "answer_cache_miss"
            return None, partial(self.put, key)
        seconds = step.computing_s(answer)
        self._hits += 1
        self._saved_tokens += len(answer.ids)
        self._saved_s += seconds
        span.attributes["saved_ms"] = round(1e3 * seconds, 3)
        return CachedGeneration(answer, len(step.prompt)), None

    def get(self, key: bytes) -> CachedAnswer | None:
        answer = self._kept.get(key)
        self._misses += answer is None
        return answer

    def put(self, key: bytes, answer: CachedAnswer) -> None:
        """Only an answer that ended by itself: one that was cut off by its client or a deadline is incomplete."""
        if answer.finish in REPEATABLE:
            self._kept.put(key, answer)

    def stats(self) -> dict[str, float]:
        return {
            "answer_cache_bytes": self._kept.size,
            "answer_cache_hits_total": self._hits,
            "answer_cache_misses_total": self._misses,
            "answer_cache_saved_tokens_total": self._saved_tokens,
            "answer_cache_saved_seconds_total": round(self._saved_s, 3),
        }
