"""A step: the work that the scheduler plans and the executor computes; and what steps cost, learned from earlier ones,
which decides how long a prefill chunk or a draft is worth its time. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from inference.backend import Chunk
from inference.kvcache.slots import Placement
from inference.request import Request


@dataclass(slots=True, kw_only=True)
class Work(Chunk):
    """Tokens of one request to compute in this step. `outputs` is 0 in the middle of a prompt, 1 where a token is
    sampled, one more for each drafted token, and before these come the `scored` ones, of prompt tokens whose log
    probabilities are wanted. `forced`: the draft consists of tokens for which the grammar leaves no choice;
    `predicted`: of those that the request predicted.

    `apart`: prompt tokens of an exact request (see EXACT_ROWS_MIN), so that no other stream determines how their rows
    are split, and the vectors of a picture, which cannot be in one batch with tokens.
    """

    request: Request
    forced: bool = False
    predicted: bool = False
    scored: int = 0

    @property
    def sampled(self) -> int:
        """Rows from which a token may be sampled."""
        return self.outputs - self.scored

    @property
    def draft(self) -> Sequence[int]:
        return self.tokens[len(self.tokens) - self.sampled + 1 :] if self.sampled > 1 else ()

    def with_draft(self, draft: Sequence[int], *, forced: bool = False, predicted: bool = False) -> Work:
        tokens = [*self.tokens, *draft]
        return replace(self, tokens=tokens, outputs=1 + len(draft), forced=forced, predicted=predicted)


@dataclass(slots=True)
class Plan:
    """A step to execute: first place the requests, then compute the work, which is sorted by slot."""

    placements: list[tuple[Request, Placement]] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    preempted: int = 0

    @property
    def decodes_only(self) -> bool:
        """Whether the step has no prompt tokens."""
        return all(work.request.decodes for work in self.work)

    @property
    def rows(self) -> int:
        return sum(len(work.tokens) for work in self.work)

    def cost_follows_rows(self, *, parted: bool) -> bool:
        """Whether its duration says how long other steps with as many rows take. `parted`: slots have KV streams of
        their own, so drafts of different lengths are computed in parts (see
        inference.speculative.draft_length.step_parts)."""
        if any(work.scored or work.vectors for work in self.work):  # logits, or a batch of its own, take longer
            return False
        return not parted or len({work.outputs or 1 for work in self.work}) == 1


SMOOTHING = 0.2  # weight of the newest step; of the first ones, the mean counts
# An observation counts as at most this many times the usual step: more means that the machine did something else in
# between. Steps that have become so much slower for good are learned after a few.
PAUSE = 2.0
# The time between two steps depends on what the event loop is doing, so it is averaged over many; a longer gap than
# this means that the steps did not follow each other directly.
BETWEEN_SMOOTHING, BETWEEN_MAX_S = 0.02, 0.1


@dataclass(slots=True)
class _Known:
    """The usual step of one size."""

    rows: float
    seconds: float
    steps: int = 1


_rows = attrgetter("rows")


class StepCost:
    """Pure. Steps are grouped by the power of two of their rows; between groups the cost is interpolated linearly."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._ordered: list[_Known] = []  # the smallest size first
        self.between_s = 0.0  # from the end of a step to the start of the next, where one follows at once

    def observe_between(self, seconds: float) -> None:
        """Record the gap between two steps, in which tokens were sampled and published and the next step was planned,
        while the event loop had the interpreter for some of the time."""
        self.between_s += BETWEEN_SMOOTHING * (min(seconds, BETWEEN_MAX_S) - self.between_s)

    def observe(self, rows: int, seconds: float) -> None:
        known = self._known.get(rows.bit_length())
        if known is None:
            known = self._known[rows.bit_length()] = _Known(rows, seconds)
            self._ordered = [self._known[size] for size in sorted(self._known)]
            return
        known.steps += 1
        weight = max(SMOOTHING, 1 / known.steps)
        known.rows += weight * (rows - known.rows)
        known.seconds += weight * (min(seconds, PAUSE * known.seconds) - known.seconds)

    def predict(self, rows: int) -> float | None:
        """Seconds for a step of that many rows; None if no step of that size or smaller was seen.

        Beyond the largest size seen, a row is assumed to cost what it costs there, which overestimates it.
        """
        known = self._ordered
        above = bisect_right(known, rows, key=_rows)
        if 0 < above < len(known):
            low, high = known[above - 1], known[above]
            share = (rows - low.rows) / (high.rows - low.rows)
            return low.seconds + share * (high.seconds - low.seconds)
        if not known or rows.bit_length() < int(known[0].rows).bit_length():
            return None
        nearest = known[max(0, above - 1)]
        return nearest.seconds * rows / nearest.rows
