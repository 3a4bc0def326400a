"""Looks up cached answers: to the identical prompt, or to a similar question."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from agents.answer_cache import AnswerCache, CachedAnswer, CachedGeneration
from agents.available_tools import AvailableTools
from agents.message import Item, Message
from agents.model_registry import Candidate
from agents.prompt import assemble
from agents.semantic_cache import CONTEXT_CHARS_MAX, CacheSlot, SemanticCache, SemanticQuery
from agents.turn import Turn
from inference.errors import InferenceError
from inference.generation import Sampling
from inference.trace import Trace
from retrieval.passage import Passage


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

    def seconds(self, answer: CachedAnswer) -> float:
        """The time that generating it would take."""
        speed = self.candidate.speed
        return len(self.prompt) * speed.read_s + len(answer.ids) * speed.write_s


@dataclass(frozen=True, slots=True)
class AnswerLookup:
    """`same` caches answers to identical prompts, `similar` those to similar questions; None: no cache."""

    same: AnswerCache | None = None
    similar: SemanticCache | None = None

    async def find(self, ask: LookupQuery, trace: Trace) -> tuple[CachedGeneration | None, CacheSlot]:
        """The cached answer, or where to cache the generated one. A step on trial is not compared with similar
        questions: its model may be abandoned."""
        key = ask.key(ask.prompt) if self.same else None
        found, asked = self._same(ask, key, trace), None
        if found is None and not ask.on_trial:
            found, asked = await self._alike(ask, trace)
        return (None, CacheSlot(key, asked)) if found is None else (found, CacheSlot())

    def keep(self, cache_slot: CacheSlot, answer: CachedAnswer) -> None:
        """Cache an answer."""
        if self.same is not None and cache_slot.key is not None:
            self.same.put(cache_slot.key, answer)
        if self.similar is not None and cache_slot.asked is not None:
            self.similar.put(cache_slot.asked, answer)

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
        seconds = ask.seconds(answer)
        self.same.saved(answer, seconds)
        span.attributes["saved_ms"] = round(1e3 * seconds, 3)
        return CachedGeneration(answer, len(ask.prompt))

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
                seconds = ask.seconds(found.answer)
                similar.saved(found, seconds)
                span.attributes |= {"similarity": round(found.similarity, 4), "saved_ms": round(1e3 * seconds, 3)}
                return CachedGeneration(found.answer, len(ask.prompt)), asked
            span.name = "semantic_cache_check" if asked and asked.given else "semantic_cache_miss"
            return None, asked
        return None, None
