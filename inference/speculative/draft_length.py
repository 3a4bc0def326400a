"""How long a draft is worth making, decided for each step from measurements. Pure.

A draft of k tokens is verified in one step of k + 1 rows. With acceptance p per token that step yields
(1 - p^(k+1)) / (1 - p) tokens (Leviathan et al., arXiv 2211.17192). Chosen is the k with the most tokens per second
over all streams of the step; 0 when every draft would lose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from inference.core import Acceptance
from inference.engine.step_cost import StepCost

# Tokens of the longest draft: with more, the last ones are hardly ever reached, and each takes memory for its logits.
DRAFT_TOKENS_MAX = 16
# Of all streams of a step together, of what their grammars leave no choice of: with a vocabulary of 150,000, the logits
# of as many rows take 20 MB.
FORCED_TOKENS_MAX = 32
# What is weighed, besides the longest that is allowed. Neighbours of the longer ones cost and bring nearly the same.
LENGTHS = (1, 2, 3, 4, 6, 8, 12, DRAFT_TOKENS_MAX)
# Looked at first, and again now and then while drafts lose: long enough to learn acceptance, short enough to be cheap.
TRIAL = 3
TRIALS_FIRST = 4
# Steps until the next trial. A trial costs a few steps' time, so each one that shows nothing new doubles the wait.
PATIENCE_MIN, PATIENCE_MAX = 100, 3200
REST_STEPS = 8  # while drafts lose, they are not reconsidered at every step: that costs time too
TRIAL_READS = 8  # tokens that the drafter may have to read for a trial, for each that was generated: it reads fast


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of a step: its slot, how well drafts do for it, how much must be read for one first, and how many
    tokens it may have; 0: none."""

    slot: int
    acceptance: Acceptance
    generated: int
    missing: int
    room: int = DRAFT_TOKENS_MAX

    def yields(self, drafted: int) -> float:
        """Tokens that a step with such a draft is expected to give."""
        p = self.acceptance.per_token
        return (1 - p ** (drafted + 1)) / (1 - p)


@dataclass(slots=True)
class DraftLength:
    """Chooses k, from `shortest` to `longest`; 0 is no draft. The costs are those of the model and of the drafter.

    `parted`: whether the model computes a step in parts (see `step_parts`).
    """

    longest: int
    shortest: int = 0
    cost: StepCost = field(default_factory=StepCost)
    draft_cost: StepCost = field(default_factory=StepCost)
    parted: bool = False
    _trials: Counter[int] = field(default_factory=Counter)  # by number of streams
    _waited: int = 0
    _patience: int = PATIENCE_MIN
    _rest: int = 0

    def rests(self) -> bool:
        """Whether to go without a draft and without asking; each call is a step."""
        self._waited += 1
        self._rest -= 1
        return self._rest >= 0 or not self.longest

    def rest(self, steps: int) -> None:
        """Go without drafts for that many steps."""
        self._rest = steps

    def choose(self, streams: Sequence[Stream], pace_s: float = inf) -> int:
        """Tokens to draft in the next step for each of its streams that has room for that many. A stream that expects
        little of its draft is not slowed beyond `pace_s` for those that expect much."""
        if not self.longest or not any(stream.room for stream in streams):
            return 0
        length = max(self.shortest, self._best(streams, pace_s))
        self.rest(0 if length else REST_STEPS)
        return length

    def _best(self, streams: Sequence[Stream], pace_s: float) -> int:
        longest = min(self.longest, max(stream.room for stream in streams))
        rates = {k: self._rate(k, streams) for k in {0, longest, *LENGTHS} if k <= longest}
        if not rates[0]:  # what a step costs without a draft is not known yet
            return 0
        if pace_s < inf:
            slowest_s = max(pace_s, len(streams) / rates[0])
            rates = {k: rate for k, rate in rates.items() if not k or self._pace_s(k, streams) <= slowest_s}
        best = max(rates, key=lambda k: (rates[k], -k))
        able = [stream for stream in streams if stream.room]
        if best and not self._pays(able, 1 / rates[0] - 1 / rates[best]):
            return 0
        if best:
            self._waited, self._patience = 0, PATIENCE_MIN
        elif self._wants_trial(able):
            return min(TRIAL, self.longest)
        return best

    def _wants_trial(self, streams: Sequence[Stream]) -> bool:
        size = len(streams).bit_length()
        if self._trials[size] >= TRIALS_FIRST and self._waited <= self._patience:
            return False
        if any(s.missing > s.generated * TRIAL_READS for s in streams):
            return False
        if self._trials[size] >= TRIALS_FIRST:
            self._patience = min(2 * self._patience, PATIENCE_MAX)
        self._trials[size] += 1
        self._waited = 0
        return True

    def _pays(self, streams: Sequence[Stream], saved_s: float) -> bool:
        """Whether reading what the drafter missed is worth it, if an answer continues for as long as it has gone."""
        missing = sum(s.missing for s in streams)
        reading_s = self.draft_cost.predict(missing) or 0.0
        return sum(s.generated for s in streams) * saved_s >= reading_s or missing <= 2 * len(streams)

    def _rate(self, k: int, streams: Sequence[Stream]) -> float:
        """Tokens per second of a step with drafts of k tokens, or of as many as there is room for."""
        return sum(_yields(k, streams)) / self._step_s(k, streams)

    def _pace_s(self, k: int, streams: Sequence[Stream]) -> float:
        """Seconds for a token of the stream that expects least of such drafts."""
        return self._step_s(k, streams) / min(_yields(k, streams))

    def _step_s(self, k: int, streams: Sequence[Stream]) -> float:
        """Of drafting and verifying; infinite where it is not known."""
        drafts = [min(k, stream.room) for stream in streams]
        seconds = self._verifying_s(streams, drafts)
        if seconds is None:
            return inf
        drafting = sum(1 for drafted in drafts if drafted)
        return seconds + max(drafts) * (self.draft_cost.predict(drafting) or 0.0)

    def _verifying_s(self, streams: Sequence[Stream], drafts: Sequence[int]) -> float | None:
        rows = [(stream.slot, 1 + drafted) for stream, drafted in zip(streams, drafts, strict=True)]
        total_s = 0.0
        for size in step_parts(rows) if self.parted else (sum(count for _, count in rows),):
            seconds = self.cost.predict(size)
            if seconds is None:
                return None
            total_s += seconds
        return total_s


def _yields(k: int, streams: Iterable[Stream]) -> list[float]:
    return [stream.yields(min(k, stream.room)) for stream in streams]


def step_parts(rows: Iterable[tuple[int, int]]) -> Iterator[int]:
    """How a step is divided into parts, each of which reads the whole model: slots, in their order, with the number of
    rows of each -> rows of each part.

    With a KV stream for each slot, llama.cpp computes rows of several slots together only where these slots follow each
    other, and as many rows of each as all of them have: three rows of one slot and one of the next are two parts of
    two rows.
    """
    left = dict(rows)
    while left:
        together = [next(iter(left))]
        while together[-1] + 1 in left:
            together.append(together[-1] + 1)
        each = min(left[slot] for slot in together)
        yield each * len(together)
        for slot in together:
            left[slot] -= each
        left = {slot: count for slot, count in left.items() if count}
