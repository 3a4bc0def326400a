"""A chat model whose tokens are computed by remote engines: text and vocabulary are here, the KV cache is there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from inference.config import CONTEXT_DEFAULT
from inference.engine.scheduler import AHEAD_TOKENS_MIN
from inference.errors import EnginesAway, InferenceError, Refused
from inference.frozen import changed
from inference.generation import ANY_TERMS, Due, Priority, Sampling, Terms
from inference.grammar.lark import by_token
from inference.kvcache.radix import SharedPrefixes
from inference.llama import LlamaModel
from inference.prompt import PromptTokens
from inference.remote.fleet import EngineInfo, Fleet, Upstream
from inference.remote.protocol import MODELS_PATH, Ask, SentGrammar
from inference.remote.remote_generation import RemoteGeneration
from inference.remote.transport import Answer, Transport
from inference.request import room_for
from inference.text_model import TextModel
from inference.tokenizer import significant_tokens
from inference.trace import random_id

LOOK_S = 1.0  # between health checks: how long the loss of an idle engine goes unnoticed
LOOK_AGAIN_S = 0.1  # for an engine that is away: in a rolling restart the next one stops once this one is ready
LOOK_TIMEOUT_S = 2.0
# Consecutive health checks without a response after which an engine's streams are moved: a busy machine may miss one.
MISSES_MAX = 3
TOTALS = ("generated_tokens", "prompt_tokens", "cached_tokens", "continued")
FINGERPRINT = b"remote %d %b"  # vocabulary and name: workers that share engines share generated turns
FINGERPRINT_BYTES_MAX = 64  # BLAKE2b's limit for a key


class RemoteModel(TextModel):
    """A `LanguageModel`. `load` reads the file without its weights; then `start`, and run `watch` for its lifetime.

    `digest` turns a tenant's salt into the one sent to engines: the same for all workers that share caches.
    """

    shares_turns = True

    def __init__(
        self,
        weights: LlamaModel,
        urls: Sequence[str],
        transport: Transport,
        digest: Callable[[str], str],
        context: int = 0,
    ) -> None:
        fingerprint = (FINGERPRINT % (weights.vocabulary_size, weights.name.encode()))[:FINGERPRINT_BYTES_MAX]
        super().__init__(weights, fingerprint, context or min(weights.context_length, CONTEXT_DEFAULT))
        self._context_max = self.context_length
        self._fleet = Fleet(urls)
        self._transport, self._digest = transport, digest
        marks = {mark: self._tokenizer.mark(mark) for mark in sorted(significant_tokens(self.chat_template))}
        self._spoken = {mark: token for mark, token in marks.items() if token is not None}
        self._shared = SharedPrefixes()
        self._going: set[RemoteGeneration] = set()
        self._totals: Counter[str] = Counter()

    @classmethod
    def load(
        cls, path: Path, urls: Sequence[str], transport: Transport, digest: Callable[[str], str], context: int = 0
    ) -> RemoteModel:
        """Raises ModelNotLoaded, or InvalidTemplate for a model without a usable chat template."""
        return cls(LlamaModel.load(path, weights=False), urls, transport, digest, context)

    async def start(self) -> None:
        """Check all engines once. A worker may start before they do: until one is up, it refuses turns."""
        await asyncio.gather(*map(self._look, self._fleet.upstreams))

    async def watch(self, healthy: Callable[[], None]) -> None:
        """Check the engines for ever, each in its own task, since one whose machine is gone takes seconds."""
        async with asyncio.TaskGroup() as group:
            for upstream in self._fleet.upstreams:
                group.create_task(self._watch(upstream, healthy))

    async def _watch(self, upstream: Upstream, healthy: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(LOOK_S if upstream.is_up else LOOK_AGAIN_S)
            await self._look(upstream)
            healthy()

    async def close(self) -> None:
        for generation in tuple(self._going):
            generation.cancel()
        self._transport.close()
        await super().close()

    @property
    def failed(self) -> str | None:
        """Why no request can be served now, or None; it recovers by itself."""
        return None if self._fleet.up else "no engine is reachable"

    @property
    def away(self) -> list[str]:
        """Why each unavailable engine gets no requests."""
        return [each.away for each in self._fleet.upstreams if each.away is not None]

    @property
    def steps(self) -> int:
        """While this does not change, no request of this worker progresses."""
        return self._totals["generated_tokens"]

    def prepare(self, grammar: str, trigger: str = "", *, salt: str = "") -> SentGrammar:
        prepared = super().prepare(grammar, trigger, salt=salt)
        return SentGrammar(grammar, trigger, prepared, by_token(grammar, self._spoken))

    def generate(self, prompt: Sequence[int], sampling: Sampling, terms: Terms = ANY_TERMS) -> RemoteGeneration:
        """Also raises EnginesAway."""
        room = room_for(prompt, sampling, terms, context=self.context_length, vocabulary=len(self._pieces))
        if sampling.scores_prompt or not sampling.max_tokens:
            what = "echo with logprobs" if sampling.scores_prompt else "max_tokens of 0"
            raise Refused(f"engines in processes of their own support no {what}", 400, "unsupported_value", "model")
        held = sampling.at_most(room).kept_from(self._end_tokens)
        return self._send(prompt, held, terms)

    def expect(self, due: Due, *, salt: str = "", priority: Priority = Priority.STANDARD) -> None:
        """Only the engines can forecast. Raises EnginesAway."""
        if self.failed:
            raise EnginesAway(f"{self.failed}: try again in a moment")

    def prefill_ahead(self, prompt: Sequence[int], *, salt: str = "", exact: bool = False) -> RemoteGeneration | None:
        waiting = any(generation.waits and not generation.ahead for generation in self._going)
        if waiting or not AHEAD_TOKENS_MIN <= len(prompt) < self.context_length:
            return None
        # An engine without prefill ahead generates one token in the lowest class, which has the same effect.
        sampling = Sampling(max_tokens=1, temperature=0.0, deterministic=exact)
        with suppress(InferenceError):
            return self._send(prompt, sampling, Terms(salt, Priority.AHEAD))
        return None

    def share(self, beginning: Sequence[int]) -> None:
        self._shared.add(beginning)

    def stats(self) -> dict[str, Any]:
        """Those of the worker's side: engines report their own."""
        up = self._fleet.up
        waiting = sum(generation.waits for generation in self._going)
        return {
            **super().stats(),
            "device": "engines",
            "engines": len(self._fleet.upstreams),
            "engines_up": len(up),
            "waiting": waiting,
            "running": len(self._going) - waiting,
            "ahead": sum(generation.ahead for generation in self._going),
            **{f"{name}_total": self._totals[name] for name in TOTALS},
        }

    def _send(self, prompt: Sequence[int], sampling: Sampling, terms: Terms) -> RemoteGeneration:
        ask = Ask(
            id=random_id(128),
            prompt=prompt,
            sampling=sampling,
            terms=changed(terms, salt=self._digest(terms.salt)),
            shared=self._shared.longest(prompt),
            boundaries=PromptTokens.boundaries_of(prompt),
            end_tokens=self._end_tokens,
        )
        generation = RemoteGeneration(ask, self._fleet, self._transport, self._pieces, self._left)
        self._going.add(generation)
        return generation

    def _left(self, generation: RemoteGeneration) -> None:
        self._going.discard(generation)
        self._totals["generated_tokens"] += generation.received_tokens
        self._totals["prompt_tokens"] += generation.prompt_tokens
        self._totals["cached_tokens"] += generation.facts.cached_tokens
        self._totals["continued"] += generation.moves

    async def _look(self, upstream: Upstream) -> None:
        """Check an engine, and apply what is then known of all to the model and to its running generations."""
        await self._check(upstream)
        contexts = (each.facts.context for each in self._fleet.up if each.facts and each.facts.context)
        self.context_length = min((self._context_max, *contexts))  # a session may move to any of them
        for generation in tuple(self._going):
            generation.look()
            if upstream.is_up:  # checks of an engine that is away are frequent, and must not overload a full one
                generation.resume()

    async def _check(self, upstream: Upstream) -> None:
        try:
            health = await self._transport.get(upstream.url, "/health", LOOK_TIMEOUT_S)
            if health.status != 200:
                upstream.away = f"it reports that it is unhealthy (status {health.status})"
            elif not upstream.is_up:
                self._meet(upstream, await self._transport.get(upstream.url, MODELS_PATH, LOOK_TIMEOUT_S))
            upstream.misses = 0
        except ConnectionError as error:  # its streams notice by themselves
            upstream.away = str(error)
        except TimeoutError:
            upstream.misses += 1
            if upstream.misses >= MISSES_MAX:
                self._give_up(upstream, "it does not answer")

    def _meet(self, upstream: Upstream, answer: Answer) -> None:
        """Decide from an engine's description whether this worker can use it."""
        try:
            facts = engine_info(answer)
        except ValueError as error:
            upstream.away = str(error)
            return
        other = facts.vocabulary not in (None, self.vocabulary_digest)
        upstream.facts, upstream.away = facts, "its model has a different vocabulary" if other else None

    def _give_up(self, upstream: Upstream, reason: str) -> None:
        """The engine hangs, or its machine vanished: move its streams."""
        upstream.away = reason
        for generation in tuple(self._going):
            if generation.upstream is upstream:
                generation.lost(reason, reached=True)


def engine_info(answer: Answer) -> EngineInfo:
    """Parsed from an engine's list of models. Raises ValueError with a human-readable reason."""
    if answer.status in (401, 403):
        raise ValueError("it rejects this worker's token")
    try:
        model = orjson.loads(answer.body)["data"][0]
        own = model.get("firsttoken") or {}
        context, vocabulary = model.get("max_model_len"), own.get("vocabulary")
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise ValueError(f"it does not report what it serves (status {answer.status})") from None
    return EngineInfo(
        context if isinstance(context, int) and context > 1 else None,
        ours="firsttoken" in model,
        vocabulary=vocabulary if isinstance(vocabulary, str) else None,
        shares=own.get("channel") is True,
    )
