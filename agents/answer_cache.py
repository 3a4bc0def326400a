"""Caches of answers: reused for the identical prompt of the same tenant, on the same model, with the same sampling, and
for similar questions.

A prompt contains everything that its answer depends on: instructions, conversation, the current passages, results of
tools. So nothing has to be invalidated, and a cached answer is one that the model could generate again.
"""

from __future__ import annotations

import asyncio
import random
import re
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from agents.message import Item, Message
from agents.prompt import assemble
from agents.router import Candidate
from agents.toolbox import AvailableTools
from agents.turn import Turn
from inference.errors import InferenceError
from inference.frozen import dataclass
from inference.generation import Delta, Facts, Finish, Sampling, Stamps
from inference.lru_cache import LruCache
from inference.trace import Span, Trace, now_ns
from retrieval.passage import Passage

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


@dataclass(slots=True)
class Savings:
    """How often a cache had an answer, and what that saved."""

    hits: int = 0
    misses: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, answer: CachedAnswer, seconds: float) -> None:
        self.hits += 1
        self.tokens += len(answer.ids)
        self.seconds += seconds

    def stats(self, cache: str) -> dict[str, float]:
        return {
            f"{cache}_hits_total": self.hits,
            f"{cache}_misses_total": self.misses,
            f"{cache}_saved_tokens_total": self.tokens,
            f"{cache}_saved_seconds_total": round(self.seconds, 3),
        }


class AnswerCache:
    """Evicts the least recently used. For the event loop only."""

    def __init__(self, bytes_max: int) -> None:
        self._kept = LruCache[bytes, CachedAnswer](bytes_max, lambda _, answer: answer.size)
        self.saved = Savings()

    def __repr__(self) -> str:
        return f"<AnswerCache {len(self._kept)} answers | {self._kept.size} of {self._kept.size_max} bytes>"

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
        self.saved.misses += answer is None
        return answer

    def put(self, key: bytes, answer: CachedAnswer) -> None:
        """Only an answer that ended by itself: one that was cut off by its client or a deadline is incomplete."""
        if answer.finish in REPEATABLE:
            self._kept.put(key, answer)

    def stats(self) -> dict[str, float]:
        return {"answer_cache_bytes": self._kept.size, **self.saved.stats("answer_cache")}


class CachedGeneration:
    """A `Generation` that is already complete. Its prompt counts as cached."""

    def __init__(self, answer: CachedAnswer, prompt_tokens: int) -> None:
        now = now_ns()
        self.facts = Facts(stamps=Stamps(now, now, now, now, now, now), cached_tokens=prompt_tokens)
        self.prompt_tokens = prompt_tokens
        self.place: int | None = None
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


_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
# The vector of a sentence hardly shows whether it is negated.
DENYING = (
    "not no never none nothing without except cannot can't don't doesn't didn't isn't aren't won't "
    "nicht kein keine keinen nie niemals ohne ne pas jamais sans nunca sin"
)
DENIALS = frozenset(DENYING.split())
_SAID = re.compile(r"[\w']+")
_BETWEEN_SENTENCES = re.compile(r"(?<=[.?!;:])\s+|(?<=[。？！；])\s*|\n")


def overlap(right: str, text: str) -> float:
    """F1 of the words (Rajpurkar et al. 2016, "SQuAD")."""
    wanted, said = (Counter(_WORD.findall(each.casefold())) for each in (right, text))
    shared = (wanted & said).total()
    return 2 * shared / (wanted.total() + said.total()) if shared else 0.0


def particulars(question: str) -> tuple[str, ...]:
    """Its numbers, negations, and everything besides the question: questions that differ in them are different, however
    similar they sound. "Say that Bob knows" after a question hardly moves its vector, and must not decide what other
    users are answered."""
    said = question.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    denied = (word for word in _SAID.findall(said) if word in DENIALS)
    return (*_NUMBER.findall(said), *denied, *_beside(said))


def _beside(said: str) -> list[str]:
    """All sentences but the first question; empty if there is only one sentence."""
    sentences = [each for each in map(str.strip, _BETWEEN_SENTENCES.split(said)) if each]
    if len(sentences) > 1:
        asked = next((place for place, each in enumerate(sentences) if each.endswith(("?", "？"))), None)
        return [each for place, each in enumerate(sentences) if place != asked]
    return []


Vector: TypeAlias = NDArray[np.float32]  # of length 1
Keep: TypeAlias = Callable[[CachedAnswer], None]
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
    """Answers are reused for similar questions of the same tenant, after the identical conversation, with the same
    passages, on the same model. Evicts the least recently used. For the event loop only.

    `threshold` is a cosine similarity, fitted on cases (`firsttoken eval cache`). For a share of the hits, the answer
    is generated anyway and compared with the cached one: that measures how often the cache would have been wrong.
    """

    bytes_max: int
    threshold: float
    embed: Embed
    checked_share: float = CHECKED_SHARE
    chance: random.Random = field(default_factory=random.Random)
    saved: Savings = field(default_factory=Savings)
    checked: int = 0
    wrong: int = 0
    _kept: LruCache[tuple[bytes, str], _Kept] = field(init=False)
    _contexts: dict[bytes, dict[str, _Kept]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kept = LruCache(self.bytes_max, lambda _, kept: kept.size, self._dropped)

    def __repr__(self) -> str:
        return f"<SemanticCache {len(self._kept)} answers | {self._kept.size} of {self.bytes_max} bytes>"

    async def ask(self, context: bytes, question: str, salt: str) -> tuple[SemanticQuery, SemanticHit | None] | None:
        """The query, to be stored with its answer, and the hit, if there is one. None for a question that is too long,
        or whose vector is not computed in time. Raises InferenceError."""
        if not question or len(question) > QUESTION_CHARS_MAX:
            return None
        try:
            async with asyncio.timeout(PATIENCE_S):
                vector = await self.embed(question, salt)
        except TimeoutError:
            self.saved.misses += 1
            return None
        asked = SemanticQuery(context, question, vector)
        found = self._nearest(asked)
        if found is None:
            self.saved.misses += 1
            return asked, None
        if self.chance.random() < self.checked_share:
            return SemanticQuery(context, question, asked.vector, found.answer), None
        return asked, found

    def put(self, asked: SemanticQuery, answer: CachedAnswer) -> None:
        """Store the generated answer, unless it is empty or was cut off."""
        if answer.finish not in REPEATABLE or not answer.text.strip():
            return
        if asked.given is not None:
            self.checked += 1
            self.wrong += overlap(asked.given.text, answer.text) < RIGHT
        kept, key = _Kept(asked, answer, particulars(asked.question)), (asked.context, asked.question)
        self._kept.put(key, kept)
        if key not in self._kept:
            return
        beside = self._contexts.setdefault(asked.context, {})
        beside[asked.question] = kept
        if len(beside) > LOOKED_AT_MAX:
            self._kept.pop((asked.context, next(iter(beside))))

    def stats(self) -> dict[str, float]:
        return {
            "semantic_cache_bytes": self._kept.size,
            "semantic_cache_checked_total": self.checked,
            "semantic_cache_wrong_total": self.wrong,
            **self.saved.stats("semantic_cache"),
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
        self._kept.get((asked.context, known[best].asked.question))  # it counts as used
        return SemanticHit(known[best].answer, float(similarities[best]))

    def _dropped(self, key: tuple[bytes, str], _: _Kept) -> None:
        questions = self._contexts[key[0]]
        del questions[key[1]]
        if not questions:
            del self._contexts[key[0]]


@dataclass(frozen=True, slots=True)
class LookupQuery:
    """The next step of a turn: everything that its answer depends on. `steps` is the number of steps before it."""

    turn: Turn
    offer: AvailableTools
    calls_max: int
    steps: int
    output: Sequence[Item]
    passages: Sequence[Passage]
    candidate: Candidate
    prompt: Sequence[int]
    sampling: Sampling
    on_trial: bool = False

    def key(self, prompt: Sequence[int]) -> bytes | None:
        """The cache key of this prompt; None if its answer must not be reused."""
        turn = self.turn
        strict = [function.strict for function in self.offer.definitions]
        form = (turn.answer_format.schema, turn.answer_format.strict) if turn.answer_format else None
        held = (sorted(self.offer.callable), turn.tool_choice, strict, form, self.calls_max, turn.stop)
        model = f"{self.candidate.name} {self.candidate.version}"
        return AnswerCache.key(turn.salt, model, prompt, self.sampling, repr((held, bool(self.steps))))

    @property
    def question(self) -> str | None:
        """The question, if the step can only result in an answer."""
        last = self.turn.input[-1] if self.turn.input else None
        if self.offer.callable or self.steps or self.turn.prompt:
            return None
        if not isinstance(last, Message) or last.role != "user" or last.pictures:  # the same words of another picture
            return None
        return last.text

    @property
    def around(self) -> str:
        """Everything but the question; includes tools that are in the prompt but must not be called."""
        turn = replace(self.turn, input=(*self.turn.input[:-1], Message("user", "?")))
        return repr((assemble(turn, self.output, self.passages), self.offer.schemas, turn.switches))

    def reused(self, answer: CachedAnswer, saved: Savings, span: Span) -> CachedGeneration:
        """The answer, which saves the time that generating it would take."""
        speed = self.candidate.speed
        seconds = len(self.prompt) * speed.read_s + len(answer.ids) * speed.write_s
        saved.add(answer, seconds)
        span.attributes["saved_ms"] = round(1e3 * seconds, 3)
        return CachedGeneration(answer, len(self.prompt))


@dataclass(frozen=True, slots=True)
class AnswerLookup:
    """`same` caches answers to identical prompts, `similar` those to similar questions; None: no cache."""

    same: AnswerCache | None = None
    similar: SemanticCache | None = None

    async def find(self, ask: LookupQuery, trace: Trace) -> tuple[CachedGeneration | None, Keep | None]:
        """The cached answer, or what caches the generated one. A step on trial is not compared with similar questions:
        its model may be abandoned."""
        key = ask.key(ask.prompt) if self.same else None
        found, asked = self._same(ask, key, trace), None
        if found is None and not ask.on_trial:
            found, asked = await self._alike(ask, trace)
        is_cached = found is None and (key is not None or asked is not None)
        return found, partial(self._keep, key, asked) if is_cached else None

    def _keep(self, key: bytes | None, asked: SemanticQuery | None, answer: CachedAnswer) -> None:
        if self.same is not None and key is not None:
            self.same.put(key, answer)
        if self.similar is not None and asked is not None:
            self.similar.put(asked, answer)

    def _same(self, ask: LookupQuery, key: bytes | None, trace: Trace) -> CachedGeneration | None:
        """In a span of its own: Server-Timing reports it to clients."""
        if self.same is None or key is None:
            return None
        with trace.span("answer_cache") as span:
            answer = self.same.get(key)
            span.attributes["hit"] = answer is not None
        if answer is None:
            span.name = "answer_cache_miss"
            return None
        return ask.reused(answer, self.same.saved, span)

    async def _alike(self, ask: LookupQuery, trace: Trace) -> tuple[CachedGeneration | None, SemanticQuery | None]:
        """The answer to a similar question, in a span of its own, and the query."""
        similar, question = self.similar, ask.question
        if similar is None or question is None or len(around := ask.around) > CONTEXT_CHARS_MAX:
            return None, None
        key = ask.key(list(around.encode("utf-8", "surrogatepass")))
        if key is None:
            return None, None
        with trace.span("semantic_cache") as span, suppress(InferenceError):
            asked, found = await similar.ask(key, question, ask.turn.salt) or (None, None)
            span.attributes["hit"] = found is not None
            if found is not None:
                span.attributes["similarity"] = round(found.similarity, 4)
                return ask.reused(found.answer, similar.saved, span), asked
            span.name = "semantic_cache_check" if asked and asked.given else "semantic_cache_miss"
            return None, asked
        return None, None
