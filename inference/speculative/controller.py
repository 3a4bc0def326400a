"""Speculation in the engine: who gets a draft in a step, and what became of it. Owned by the engine's thread."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from inference.config import EngineConfig
from inference.engine.scheduler import Plan
from inference.engine.step_cost import StepCost
from inference.errors import InferenceError
from inference.request import Request
from inference.speculative.draft_length import DraftLength, Stream

log = logging.getLogger("firsttoken.engine")

# Steps until a drafter that failed is tried again, twice as many each time in a row: it may have been short of memory
# for a moment, and one that is broken must neither slow each step nor fill the log.
RETRY_STEPS_MIN, RETRY_DOUBLINGS_MAX = 50, 8


class Drafting(Protocol):
    """What guesses the tokens to come: a `Drafter`, or a `Lookup`."""

    cost: StepCost  # of a step in which it drafts one more token for each stream

    def look(self, wanted: Sequence[tuple[Request, int]]) -> list[Stream]:
        """Requests, and the room for their drafts -> how good a draft would be for each, and how long it can be."""
        ...

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> dict[int, list[int]]:
        """Requests in order of their slots, and how many tokens to draft for each -> drafts by slot, where there are
        some. Follows upon `look`. Raises InferenceError."""
        ...

    def close(self) -> None: ...


class SpeculationController:
    """Without a drafter it does nothing. `cost` is that of the model's steps, `context` what a slot holds, `parted`
    whether slots have KV streams of their own."""

    def __init__(
        self, drafter: Drafting | None, config: EngineConfig, cost: StepCost, context: int, *, parted: bool
    ) -> None:
        self._drafter = drafter
        self._context = context
        longest = config.draft_max if drafter else 0
        self.length = DraftLength(longest, min(config.draft_min, longest), cost, parted=parted)
        if drafter:
            self.length.draft_cost = drafter.cost
        self._failures = 0  # in a row
        self._drafted, self._accepted = [0] * longest, [0] * longest  # tokens by their place in the draft

    def extend(self, plan: Plan) -> None:
        """Let the drafter guess on, if that pays. Its failure costs speed, never an answer."""
        if self._drafter is None or self.length.rests() or not plan.work or not plan.decodes_only:
            return
        streams = self._drafter.look([(work.request, self._room(work.request)) for work in plan.work])
        length = self.length.choose(streams)
        lengths = [(work.request, min(length, stream.room)) for work, stream in zip(plan.work, streams, strict=True)]
        wanted = [(request, drafted) for request, drafted in lengths if drafted]
        if not wanted:
            return
        try:
            drafts = self._drafter.propose(wanted)
        except InferenceError:
            steps = RETRY_STEPS_MIN << min(self._failures, RETRY_DOUBLINGS_MAX)
            log.exception("drafting failed; it is retried in %d steps", steps)
            self.length.rest(steps)
            self._failures += 1
            return
        self._failures = 0
        plan.work = [work.with_draft(drafts.get(work.slot, ())) for work in plan.work]

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """The model agreed with the first `accepted` of `drafted` tokens."""
        request.acceptance.observe(drafted, accepted)
        for places, tokens in ((self._drafted, drafted), (self._accepted, accepted)):
            for place in range(tokens):
                places[place] += 1

    def stats(self) -> dict[str, Any]:
        """Totals; those by position, 1 for a draft's first token, are mappings."""
        return {
            "drafted_total": sum(self._drafted),
            "accepted_total": sum(self._accepted),
            "drafted_by_position_total": _by_position(self._drafted),
            "accepted_by_position_total": _by_position(self._accepted),
        }

    def close(self) -> None:
        if self._drafter:
            self._drafter.close()
        self._drafter = None

    def _room(self, request: Request) -> int:
        """Tokens that may be drafted: the answer, and the slot, must hold them and one more."""
        if request.exact:  # rows of a draft are computed in another way than a single one
            return 0
        answer, held = request.max_tokens - len(request.generated), len(request.prompt) + len(request.generated)
        return max(0, min(self.length.longest, answer - 1, self._context - held - 1))


def _by_position(places: list[int]) -> dict[str, int]:
    return {str(position): tokens for position, tokens in enumerate(places, start=1)}
