"""The drafter: a small model that guesses what the large one will say. Owned by the engine's thread.

Its cache follows the requests lazily: it catches up when it is asked, so a first token never waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from inference.backend import Backend
from inference.cost import StepCost
from inference.prefix import common_length

# Tokens of a prompt that the drafter may catch up on in one step; until it has, that stream goes without a draft.
CATCH_UP_TOKENS_MAX = 128


@dataclass(frozen=True, slots=True)
class _Chunk:
    slot: int
    position: int
    tokens: Sequence[int]
    outputs: int
    apart: bool = False


class Drafter:
    """Greedy drafts, made for all streams of a step together. Uses the slots of the same numbers in its own context."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._held: dict[int, list[int]] = {}
        self.cost = StepCost()

    def propose(self, streams: Sequence[tuple[int, list[int]]], length: int) -> dict[int, list[int]]:
        """(slot, all tokens so far) of each stream, sorted by slot -> drafts by slot; none for who must catch up.

        Raises InferenceError; what the drafter holds is forgotten then.
        """
        try:
            drafts = self._catch_up(streams)
            for _ in range(length - 1):
                self._extend(drafts)
        except Exception:
            self._held.clear()
            raise
        return drafts

    def missing(self, slot: int, tokens: Sequence[int]) -> int:
        """Tokens that a stream's drafter has to catch up on."""
        return len(tokens) - common_length(self._held.get(slot, []), tokens)

    def close(self) -> None:
        self._backend.close()

    def _catch_up(self, streams: Sequence[tuple[int, list[int]]]) -> dict[int, list[int]]:
        """Compute what the drafter has not seen yet; returns the first drafted token of those who are level."""
        chunks: list[_Chunk] = []
        room = CATCH_UP_TOKENS_MAX
        for slot, tokens in streams:
            known = min(common_length(self._held.get(slot, []), tokens), len(tokens) - 1)
            self._backend.truncate(slot, known)
            missing = tokens[known : known + room]
            self._held[slot] = tokens[: known + len(missing)]
            if missing:
                chunks.append(_Chunk(slot, known, missing, outputs=int(known + len(missing) == len(tokens))))
                room -= len(missing)
        return self._decode(chunks)

    def _extend(self, drafts: dict[int, list[int]]) -> None:
        chunks = []
        for slot, draft in drafts.items():
            chunks.append(_Chunk(slot, len(self._held[slot]), draft[-1:], outputs=1))
            self._held[slot].append(draft[-1])
        for slot, tokens in self._decode(chunks).items():
            drafts[slot] += tokens

    def _decode(self, chunks: Sequence[_Chunk]) -> dict[int, list[int]]:
        if not chunks:
            return {}
        started = perf_counter()
        best = self._backend.decode(chunks).argmax(axis=1)
        self.cost.observe(sum(len(chunk.tokens) for chunk in chunks), perf_counter() - started)
        return {chunk.slot: [int(token)] for chunk, token in zip([c for c in chunks if c.outputs], best, strict=True)}
