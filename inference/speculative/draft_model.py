"""The draft model: a small model that guesses the large one's tokens. Used by the engine's thread.

Its cache follows the requests lazily: it catches up when a draft is wanted, so a first token never waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from inference.backend import Backend, Chunk
from inference.engine.step import StepCost
from inference.kvcache.radix import common_length
from inference.request import Request
from inference.speculative.draft_length import Stream

# Prompt tokens that the draft model may catch up on in one step; until then, the stream gets no draft.
CATCH_UP_TOKENS_MAX = 128
# Files of one family are padded to different lengths (gemma-3: 262,144 and 262,208 tokens). llama.cpp's limit.
PADDING_TOKENS_MAX = 128


def same_vocabulary(draft: Sequence[bytes], model: Sequence[bytes]) -> bool:
    """Whether every token that both models have means the same in both. Takes the raw texts of the tokens: the visible
    text of a token depends on the chat template, which may differ."""
    shared = min(len(draft), len(model))
    return max(len(draft), len(model)) - shared <= PADDING_TOKENS_MAX and draft[:shared] == model[:shared]


class DraftModel:
    """Greedy drafts for all streams of a step together. Uses the slots with the same numbers in its own context.

    `vocabulary` is the number of tokens that both models have: others are neither drafted nor prefilled. `free` is
    called when its context is closed.
    """

    watches = predicted_only = False

    def __init__(
        self, backend: Backend, vocabulary: int = sys.maxsize, free: Callable[[], None] = lambda: None
    ) -> None:
        self._backend, self._free = backend, free
        self._vocabulary = vocabulary
        self._held: dict[int, list[int]] = {}
        self.cost = StepCost()

    def look(self, wanted: Sequence[tuple[Request, int]]) -> list[Stream]:
        """What must be prefilled for each request, and how long its draft may be: within its room and the own slot."""
        return [self._stream(request, room) for request, room in wanted]

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[int, list[int]]:
        """Requests in order of their slots, and how many tokens to draft for each -> drafts by slot; none for streams
        that are still catching up. Raises InferenceError and then discards the cache.
        """
        lengths = {request.slot: length for request, length in wanted if request.slot is not None}
        try:
            drafts = self._catch_up((request.slot, request.tokens) for request, _ in wanted if request.slot is not None)
            for length in range(1, max(lengths.values())):
                self._extend({slot: draft for slot, draft in drafts.items() if lengths[slot] > length})
        except Exception:
            self._held.clear()
            raise
        return drafts

    def close(self) -> None:
        self._backend.close()
        self._free()

    def _stream(self, request: Request, room: int) -> Stream:
        assert request.slot is not None
        tokens = request.tokens
        missing = len(tokens) - common_length(self._held.get(request.slot, []), tokens)
        room = max(0, min(room, self._backend.context - len(tokens)))
        return Stream(request.slot, request.acceptance, len(request.generated), missing, room)

    def _catch_up(self, streams: Iterable[tuple[int, list[int]]]) -> dict[int, list[int]]:
        """Prefill what the draft model lacks; returns the first drafted token of each stream that has caught up."""
        chunks: list[Chunk] = []
        room = CATCH_UP_TOKENS_MAX
        for slot, tokens in streams:
            known = min(common_length(self._held.get(slot, []), tokens), len(tokens) - 1)
            missing = tokens[known : known + room]
            if max(missing, default=0) >= self._vocabulary:
                continue
            self._backend.truncate(slot, known)
            self._held[slot] = tokens[: known + len(missing)]
            if missing:
                chunks.append(Chunk(slot, known, missing, outputs=int(known + len(missing) == len(tokens))))
                room -= len(missing)
        return self._decode(chunks)

    def _extend(self, drafts: dict[int, list[int]]) -> None:
        chunks = []
        for slot, draft in drafts.items():
            chunks.append(Chunk(slot, len(self._held[slot]), draft[-1:], outputs=1))
            self._held[slot].append(draft[-1])
        for slot, tokens in self._decode(chunks).items():
            drafts[slot] += tokens

    def _decode(self, chunks: Sequence[Chunk]) -> dict[int, list[int]]:
        if not chunks:
            return {}
        started = perf_counter()
        best = self._backend.decode(chunks)[:, : self._vocabulary].argmax(axis=1)
        self.cost.observe(sum(len(chunk.tokens) for chunk in chunks), perf_counter() - started)
        return {chunk.slot: [int(token)] for chunk, token in zip([c for c in chunks if c.outputs], best, strict=True)}
