"""Speculation in the engine: which streams get a draft in a step, and how well it did. Used by the engine's thread.

A draft is either forced by a grammar or guessed by a drafter. Both are verified alike, so neither changes a token: the
model may still tokenise a forced text differently.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Protocol

from inference.backend import Backend
from inference.config import DRAFT_TOKENS_MAX, FORCED_TOKENS_MAX, EngineConfig
from inference.engine.step import Plan, StepCost, Work
from inference.errors import InferenceError
from inference.generation import Predicted
from inference.request import Request
from inference.speculative.draft_length import DraftLength, Stream

log = logging.getLogger("firsttoken.engine")

# Steps until a failed drafter is retried, doubled with each failure in a row: it may have been short of memory for a
# moment, and a broken one must neither slow each step nor fill the log.
RETRY_STEPS_MIN, RETRY_DOUBLINGS_MAX = 50, 8
NO_DRAFTS: tuple[dict[int, list[int]], frozenset[int]] = {}, frozenset()


class Drafter(Protocol):
    """Guesses the next tokens: a `DraftModel`, or a `PromptLookup`."""

    cost: StepCost  # of drafting one more token for each stream in a step
    watches: bool  # whether it knows its acceptance without drafting, from the tokens that the model writes
    predicted_only: bool  # whether requests that predict nothing get no drafts

    def look(self, wanted: Sequence[tuple[Request, int]]) -> list[Stream]:
        """Requests, and the room for their drafts -> expected acceptance and possible length of a draft for each."""

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[int, list[int]]:
        """Requests in order of their slots, and how many tokens to draft for each -> drafts by slot, where there are
        any. Called after `look`. Raises InferenceError."""

    def close(self) -> None: ...


class SpeculationController:
    """`cost` is that of the steps of `backend`. Nothing is drafted for a model that cannot drop rejected tokens."""

    def __init__(self, drafter: Drafter | None, config: EngineConfig, cost: StepCost, backend: Backend) -> None:
        self._backend = backend
        self._drafter = drafter = drafter if backend.drops else None
        self._has_rows = config.drafts_for_all
        longest = config.draft_max if drafter else 0
        self.length = DraftLength(longest, min(config.draft_min, longest), cost, parted=backend.streams)
        if drafter:
            self.length.draft_cost = drafter.cost
            self.length.tries = not drafter.watches
        self._forced = 0  # accepted tokens of forced drafts
        self._failures = 0  # in a row
        self._drafted, self._accepted = [0] * longest, [0] * longest  # tokens by position in the draft

    def extend(self, plan: Plan) -> bool:
        """Add drafts to the streams of a step without prompts. Returns whether there are any."""
        if not plan.work or plan.prefills:
            return False
        forced = self._without_choice(plan.work)
        drafts, predicted = self._guessed(plan.work, forced)
        if extended := {**drafts, **forced}:
            plan.work = [
                work.with_draft(
                    extended.get(work.slot, ()), forced=work.slot in forced, predicted=work.slot in predicted
                )
                for work in plan.work
            ]
        return bool(extended)

    def _without_choice(self, rows: Sequence[Work]) -> dict[int, list[int]]:
        """Drafts forced by grammars, by slot. The model agrees with most of them, so only the delay of the other
        streams is weighed: where slots have KV streams of their own, such rows form a separate part (see `step_parts`),
        which takes as long again as the rows of as many streams."""
        texts = {work.slot: self._text(work.request) for work in rows if work.request.sampler.constrained}
        left, forced = FORCED_TOKENS_MAX, dict[int, list[int]]()
        for slot, text in texts.items():
            if draft := text[:left]:
                forced[slot] = draft
                left -= len(draft)
        return forced if FORCED_TOKENS_MAX - left >= len(rows) - 1 else {}

    def _text(self, request: Request) -> list[int]:
        room = self._room(request, DRAFT_TOKENS_MAX if self._backend.drops else 0)
        return request.sampler.forced()[:room] if room else []

    def _guessed(
        self, rows: Sequence[Work], forced: Mapping[int, Sequence[int]]
    ) -> tuple[dict[int, list[int]], frozenset[int]]:
        """Drafts of the drafter for the streams without a forced one, and the slots of those that a request predicted.
        None for those with pictures, which the drafter cannot see. A failure costs speed, never an answer."""
        if self._drafter is None:
            return NO_DRAFTS
        rooms = [self._room_of(work, forced, self._drafter) for work in rows]
        if not any(rooms) or self.length.rests():
            return NO_DRAFTS
        streams = self._drafter.look([(work.request, room) for work, room in zip(rows, rooms, strict=True)])
        pace_s = min((work.request.pace_s for work in rows if work.request.pace_s is not None), default=inf)
        length = self.length.choose(streams, pace_s)
        lengths = [(work.request, min(length, stream.room)) for work, stream in zip(rows, streams, strict=True)]
        wanted = list(self._within_outputs(lengths, sum(map(len, forced.values()))))
        if not wanted:
            return NO_DRAFTS
        try:
            drafts = self._drafter.propose(wanted)
        except InferenceError:
            steps = RETRY_STEPS_MIN << min(self._failures, RETRY_DOUBLINGS_MAX)
            log.exception("drafting failed; it is retried in %d steps", steps)
            self.length.rest(steps)
            self._failures += 1
            return NO_DRAFTS
        self._failures = 0
        return drafts, frozenset(stream.slot for stream in streams if stream.predicted)

    def _room_of(self, work: Work, forced: Collection[int], drafter: Drafter) -> int:
        request = work.request
        if work.slot in forced or request.pictures or (drafter.predicted_only and not request.prediction):
            return 0
        return self._room(request, self.length.longest)

    def _within_outputs(self, lengths: Iterable[tuple[Request, int]], taken: int) -> Iterator[tuple[Request, int]]:
        """Where the context has no rows for a draft of each stream, they share those for forced tokens."""
        left = inf if self._has_rows else FORCED_TOKENS_MAX - taken
        for request, drafted in lengths:
            if drafted := int(min(drafted, left)):
                left -= drafted
                yield request, drafted

    def verified(self, work: Work, accepted: int) -> None:
        """Record that the model agreed with the first `accepted` tokens of a draft."""
        drafted = len(work.draft)
        if work.forced:
            self._forced += accepted
            return
        work.request.acceptance.observe(drafted, accepted)
        if work.predicted:
            work.request.predicted += Predicted(accepted, drafted - accepted)
        for places, tokens in ((self._drafted, drafted), (self._accepted, accepted)):
            for place in range(tokens):
                places[place] += 1

    def stats(self) -> dict[str, Any]:
        """Totals of the drafter, except `forced`, which counts accepted tokens of forced drafts. Those by position (1
        is a draft's first token) are mappings."""
        return {
            "drafted_total": sum(self._drafted),
            "accepted_total": sum(self._accepted),
            "forced_total": self._forced,
            "drafted_by_position_total": _by_position(self._drafted),
            "accepted_by_position_total": _by_position(self._accepted),
        }

    def close(self) -> None:
        if self._drafter:
            self._drafter.close()
        self._drafter = None

    def _room(self, request: Request, longest: int) -> int:
        """Tokens that may be drafted: the answer and the slot must have room for them and one more."""
        if request.exact:  # rows of a draft are computed differently from a single one
            return 0
        answer, held = request.max_tokens - len(request.generated), len(request.prompt) + len(request.generated)
        return max(0, min(longest, answer - 1, self._backend.context - held - 1))


def _by_position(places: list[int]) -> dict[str, int]:
    return {str(position): tokens for position, tokens in enumerate(places, start=1)}
