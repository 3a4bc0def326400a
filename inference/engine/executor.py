"""The executor: runs a plan on the device and samples tokens where they are due. Used by the engine's thread only."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inference.backend import Backend
from inference.engine.sampler import likelihoods
from inference.engine.scheduler import Scheduler
from inference.engine.step import Plan, Work
from inference.errors import InferenceError
from inference.generation import Finish
from inference.kvcache.slots import Placement
from inference.kvcache.tiers import Tiers
from inference.request import Request
from inference.speculative.controller import SpeculationController
from inference.trace import now_ns

log = logging.getLogger("firsttoken.engine")


# Called with a request's next token; called when a request ends.
Accept: TypeAlias = Callable[[Request, int], None]
End: TypeAlias = Callable[[Request, Finish, InferenceError | None], None]


class Executor:
    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        speculation: SpeculationController,
        tiers: Tiers,
        accept: Accept,
        finish: End,
        totals: Counter[str],
    ) -> None:
        self._backend = backend
        self._scheduler = scheduler
        self._speculation = speculation
        self._tiers = tiers
        self._accept = accept
        self._finish = finish
        self._totals = totals
        self._begun: list[tuple[Request, NDArray[np.float32]]] = []  # each with the logits behind its prompt

    def place(self, plan: Plan) -> None:
        """Give the admitted requests their slots, and draw the first tokens of those that need no step for it."""
        started_ns = now_ns()
        for request, placement in plan.placements:
            self._place(request, placement, started_ns)

    def run(self, plan: Plan) -> int | None:
        """Returns how many nanoseconds the device computed; None if the step was empty or failed."""
        began_ns = now_ns()
        has_drafts = self._speculation.extend(plan)
        started_ns = now_ns()
        if has_drafts:
            _charge_drafting(plan.work, started_ns - began_ns)
        return self._compute(plan.work, started_ns) if plan.work else None

    def keep_ends(self) -> None:
        """Keep the ends of prompts that were prefilled ahead, or whose answers have just begun, before another step.
        First tokens, which should be on their way by now, do not wait for the copies."""
        for request, logits in self._begun:
            assert request.slot is not None
            goes_on = request.finish is None
            self._tiers.keep_end(request.slot, len(request.prompt), logits, goes_on=goes_on, ahead=request.ahead)
            if request.ahead:
                self._tiers.keep_shared(request.slot)
        self._begun.clear()

    def _place(self, request: Request, placement: Placement, started_ns: int) -> None:
        logits = placement.logits
        try:
            self._tiers.place(placement)
        except (InferenceError, MemoryError) as error:  # a state that cannot be restored costs time, not the request
            log.error("a prompt is recomputed from the start: %s", error)
            self._backend.truncate(placement.slot, 0)
            self._scheduler.restart_prefill(request, placement)
            logits = None
        if not request.ahead and not request.stamps.admitted_ns:  # a preempted request was counted before
            self._totals["prompt_tokens"] += len(request.prompt)
            self._totals["cached_tokens"] += request.cached_tokens
        request.stamps.admitted_ns = request.stamps.admitted_ns or started_ns
        if logits is not None:
            request.stamps.prefilled_ns = now_ns()
            self._draw(request, logits)
            if not (self._backend.rewinds or placement.checkpoint):
                self._begun.append((request, logits))

    def _compute(self, work: Sequence[Work], started_ns: int) -> int | None:
        try:
            logits = self._backend.decode(work)
        except InferenceError as error:
            self._recover(work, error)
            return None
        computed_ns = now_ns()
        self._scheduler.computed(work)
        row_ns = _charge(work, computed_ns - started_ns)
        most_likely = self._most_likely(work, logits)
        row, together = 0, len(work)
        for each in work:
            request = each.request
            steps = request.decode_steps if request.stamps.prefilled_ns else request.prefill_steps
            steps.count += 1
            steps.requests += together
            if each.scored:
                _score(each, logits[row : row + each.scored])
                row += each.scored
            if not each.sampled:
                self._tiers.keep_checkpoint(each.slot)
                continue
            if not request.stamps.prefilled_ns:
                request.stamps.prefilled_ns = computed_ns
            if request.begins or request.ahead:
                self._begun.append((request, logits[row]))
            if request.ahead or not request.max_tokens:
                self._finish(request, Finish.LENGTH, None)
            elif most_likely is not None and most_likely[row] not in request.sampler.never:
                self._accept(request, most_likely[row])
            elif each.sampled == 1:
                self._draw(request, logits[row])
            else:
                self._verify(each, logits[row : row + each.sampled], row_ns)
            row += each.sampled
        return computed_ns - started_ns

    @staticmethod
    def _most_likely(work: Sequence[Work], logits: NDArray[np.float32]) -> list[int] | None:
        """The most likely token of each row if the whole step needs no more than that: one argmax over all rows takes
        half as long as one per row."""
        for each in work:
            if each.outputs > 1 or (each.outputs and not each.request.takes_most_likely):
                return None
        return logits.argmax(axis=1).tolist() if len(logits) else None

    def _recover(self, work: Sequence[Work], error: InferenceError) -> None:
        """Retry a failed step in halves, so that only the request that caused the failure ends."""
        if len(work) == 1:
            self._fail(work[0], error)
            return
        log.warning("a step with %d requests failed and is retried in halves: %s", len(work), error)
        rest = [each for each in work if self._undo(each, error)]
        half = (len(rest) + 1) // 2
        for part in (rest[:half], rest[half:]):
            if part:
                self._compute(part, now_ns())
                self.keep_ends()

    def _undo(self, work: Work, error: InferenceError) -> bool:
        """Remove what a failed step left in a slot. If a recurrent state cannot be rewound, its request ends."""
        try:
            self._backend.truncate(work.slot, work.position)
        except InferenceError:
            self._fail(work, error)
            return False
        return True

    def _fail(self, work: Work, error: InferenceError) -> None:
        """End the request. The slot is emptied too: its content may have caused the failure."""
        log.error("a request failed: %s", error)
        self._backend.truncate(work.slot, 0)
        work.request.computed = 0
        self._finish(work.request, Finish.ERROR, error)

    def _verify(self, work: Work, rows: NDArray[np.float32], row_ns: int) -> None:
        """Sample a token from each row of a draft for as long as it matches the draft.

        The request's own sampler draws each token from the model's own logits, so the answer is distributed exactly as
        without a draft: this is the acceptance rule of speculative sampling for a deterministic draft.
        """
        request, accepted = work.request, 0
        for row, foreseen in zip(rows, [*work.draft, None], strict=True):
            self._draw(request, row)
            if request.finish is not None or request.generated[-1] != foreseen:
                break
            accepted += 1
            self._scheduler.advance(request, 1)
        self._speculation.verified(work, accepted)
        request.spent.speculation_ns += (len(work.draft) - accepted) * row_ns
        end = work.position + len(work.tokens)
        self._backend.truncate(work.slot, end - len(work.draft) + accepted)

    def _draw(self, request: Request, logits: NDArray[np.float32]) -> None:
        try:
            reasoning, written = request.reasoning, request.generated
            due = reasoning.due(written) if reasoning else None
            token = request.sampler.draw(logits, due, reasoning.banned(written) if reasoning else ())
            if reasoning and due is not None and token != due:
                reasoning.refuse()
        except InferenceError as error:
            self._finish(request, Finish.ERROR, error)
        except Exception as error:  # isolation: one request's settings must not end the others
            log.exception("sampling a token failed")
            self._finish(request, Finish.ERROR, InferenceError(f"no token could be sampled: {error}"))
        else:
            self._accept(request, token)


def _score(work: Work, rows: NDArray[np.float32]) -> None:
    """Record the log probabilities of the prompt tokens that follow these rows, unless they were computed before."""
    request = work.request
    for place, row in enumerate(rows, start=work.position + 1):
        if place == len(request.scores) + 1:
            request.scores.append(likelihoods(row, request.prompt[place], request.scores_top or 0))


def _charge(work: Sequence[Work], step_ns: int) -> int:
    """Charge the time of a step to its requests, in proportion to their rows; returns the time per row."""
    row_ns = step_ns // sum([len(each.tokens) for each in work])
    for each in work:
        each.request.spent.engine_ns += row_ns * len(each.tokens)
    return row_ns


def _charge_drafting(work: Sequence[Work], drafting_ns: int) -> None:
    """Charge the time spent on drafting, accepted or not, to the requests with a draft, in proportion to its length."""
    drafted = sum([max(0, each.sampled - 1) for each in work])
    if not drafted:
        return
    for each in work:
        if each.sampled > 1:
            share_ns = drafting_ns * (each.sampled - 1) // drafted
            each.request.spent.engine_ns += share_ns
            each.request.spent.speculation_ns += share_ns
