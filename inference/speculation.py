"""Speculation in the engine: who gets a draft in a step, and what became of it. Owned by the engine's thread."""

from __future__ import annotations

import logging

from inference.config import EngineConfig
from inference.cost import StepCost
from inference.drafter import Drafter
from inference.errors import InferenceError
from inference.request import Request
from inference.scheduler import Plan
from inference.speculate import DraftLength, Stream

log = logging.getLogger("firsttoken.engine")


class Speculation:
    """Without a drafter it does nothing. `cost` is that of the model's steps, `context` what a slot holds."""

    def __init__(self, drafter: Drafter | None, config: EngineConfig, cost: StepCost, context: int) -> None:
        self._drafter = drafter
        self._context = context
        longest = config.draft_max if drafter else 0
        self.length = DraftLength(longest, min(config.draft_min, longest), cost)
        if drafter:
            self.length.draft_cost = drafter.cost
        self.drafted = self.accepted = 0

    def extend(self, plan: Plan) -> None:
        """Let the drafter guess on, if that pays. Its failure costs speed, never an answer."""
        if self._drafter is None or self.length.rests() or not plan.work or not plan.decodes_only:
            return
        length = self.length.choose([self._stream(self._drafter, work.request) for work in plan.work])
        if not length:
            return
        try:
            drafts = self._drafter.propose([(work.slot, work.request.tokens) for work in plan.work], length)
        except InferenceError:
            log.exception("the draft model failed; going on without it")
            self.close()
            return
        plan.work = [work.with_draft(drafts.get(work.slot, ())[: self._room(work.request)]) for work in plan.work]

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """The model agreed with the first `accepted` of `drafted` tokens."""
        request.acceptance.observe(drafted, accepted)
        self.length.verified(accepted)
        self.drafted += drafted
        self.accepted += accepted

    def close(self) -> None:
        if self._drafter:
            self._drafter.close()
        self._drafter = None

    @staticmethod
    def _stream(drafter: Drafter, request: Request) -> Stream:
        assert request.slot is not None
        return Stream(request.acceptance, len(request.generated), drafter.missing(request.slot, request.tokens))

    def _room(self, request: Request) -> int:
        """Tokens that may be drafted: the answer, and the slot, must hold them and one more."""
        if request.exact:  # rows of a draft are computed in another way than a single one
            return 0
        answer = request.max_tokens - len(request.generated)
        return max(0, min(answer, self._context - len(request.tokens)) - 1)
