"""How many tokens to draft, decided for each step from measurements. Pure.

A draft of k tokens is verified in one step of k + 1 rows. With acceptance p per token that step yields
(1 - p^(k+1)) / (1 - p) tokens (Leviathan et al., arXiv 2211.17192). The k with the most tokens per second over all
streams of the step is chosen; 0 if every draft would be a loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from inference.attention import step_parts
from inference.config import DRAFT_TOKENS_MAX
from inference.engine.step import StepCost
from inference.generation import Acceptance

# Lengths considered besides the longest allowed. Neighbours of the longer ones cost and yield nearly the same.
LENGTHS = (1, 2, 3, 4, 6, 8, 12, DRAFT_TOKENS_MAX)
# Length of trials, at first and occasionally while drafts are a loss: enough to learn acceptance, and still cheap.
TRIAL = 3
TRIALS_FIRST = 4
# Steps until the next trial. A trial costs the time of a few steps, so each one without a gain doubles the wait.
PATIENCE_MIN, PATIENCE_MAX = 100, 3200
REST_STEPS = 8  # while drafts are a loss, they are not reconsidered at every step: that costs time too
# Where acceptance is known without drafts, it changes with any token. Deciding takes some 15 microseconds a stream.
REST_STREAMS = 8  # streams for each step of rest
# Trials then only correct a wrong idea of what more rows cost. They wait for a step in which each stream may be drafted
# for, as that says what so many rows cost, and which promises as many tokens as this for each.
PROMISING = 2.0
# What a draft must promise: its price is an estimate, which leaves out that tokens of its rows are drawn one by one.
MARGIN = 1.1
TRIAL_READS = 8  # most tokens the drafter may have to prefill for a trial, per generated token: its prefill is fast


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of a step: its slot, its acceptance, how many tokens the drafter has to prefill first, and the most
    tokens that can be drafted; 0: none. `predicted`: the request predicted them."""

    slot: int
    acceptance: Acceptance
    generated: int
    missing: int
    room: int = DRAFT_TOKENS_MAX
    predicted: bool = False

    def yields(self, drafted: int) -> float:
        """Expected number of tokens of a step with such a draft."""
        p = self.acceptance.per_token
        return (1 - p ** (drafted + 1)) / (1 - p)


@dataclass(slots=True)
class DraftLength:
    """Chooses k between `shortest` and `longest`; 0 means no draft. The costs are those of the model and the drafter.

    `parted`: whether the model computes a step in parts (see `step_parts`). `tries`: whether acceptance is learned from
    drafts alone, so that some must be made for that.
    """

    longest: int
    shortest: int = 0
    cost: StepCost = field(default_factory=StepCost)
    draft_cost: StepCost = field(default_factory=StepCost)
    parted: bool = False
    tries: bool = True
    _trials: Counter[int] = field(default_factory=Counter)  # by number of streams
    _waited: int = 0
    _patience: int = PATIENCE_MIN
    _rest: int = 0

    def rests(self) -> bool:
        """Whether to skip drafting without further checks; each call counts a step."""
        self._waited += 1
        self._rest -= 1
        return self._rest >= 0 or not self.longest

    def rest(self, steps: int) -> None:
        """Skip drafting for that many steps."""
        self._rest = steps

    def choose(self, streams: Sequence[Stream], pace_s: float = inf) -> int:
        """Tokens to draft in the next step, for each stream with room for them. A stream with low acceptance is not
        slowed beyond `pace_s` for the benefit of others."""
        if not self.longest or not any(stream.room for stream in streams):
            return 0
        length = max(self.shortest, self._best(streams, pace_s))
        self.rest(0 if length else REST_STEPS if self.tries else len(streams) // REST_STREAMS)
        return length

    def _best(self, streams: Sequence[Stream], pace_s: float) -> int:
        longest = min(self.longest, max(stream.room for stream in streams))
        rates = {k: self._rate(k, streams) for k in {0, longest, *LENGTHS} if k <= longest}
        if not rates[0]:  # the cost of a step without drafts is not known yet
            return 0
        if pace_s < inf:
            slowest_s = max(pace_s, len(streams) / rates[0])
            rates = {k: rate for k, rate in rates.items() if not k or self._pace_s(k, streams) <= slowest_s}
        best = max(rates, key=lambda k: (rates[k] / MARGIN if k else rates[0], -k))
        able = [stream for stream in streams if stream.room]
        if best and not self._pays(able, 1 / rates[0] - 1 / rates[best]):
            return 0
        if best:
            self._waited, self._patience = 0, PATIENCE_MIN
        elif (self.tries or _promising(streams)) and self._wants_trial(able):
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
        """Whether prefilling what the drafter lacks pays off, if the answers continue as long again as they are now."""
        missing = sum(s.missing for s in streams)
        reading_s = self.draft_cost.predict(missing) or 0.0
        return sum(s.generated for s in streams) * saved_s >= reading_s or missing <= 2 * len(streams)

    def _rate(self, k: int, streams: Sequence[Stream]) -> float:
        """Tokens per second of a step with drafts of k tokens, or as many as there is room for."""
        return sum(_yields(k, streams)) / self._step_s(k, streams)

    def _pace_s(self, k: int, streams: Sequence[Stream]) -> float:
        """Seconds per token of the stream with the lowest expected yield."""
        return self._step_s(k, streams) / min(_yields(k, streams))

    def _step_s(self, k: int, streams: Sequence[Stream]) -> float:
        """Seconds for drafting and verifying; infinite if unknown."""
        drafts = [min(k, stream.room) for stream in streams]
        seconds = self._verifying_s(streams, drafts)
        if seconds is None:
            return inf
        drafting = sum(1 for drafted in drafts if drafted)
        return seconds + max(drafts) * (self.draft_cost.predict(drafting) or 0.0)

    def _verifying_s(self, streams: Sequence[Stream], drafts: Sequence[int]) -> float | None:
        rows = [(stream.slot, 1 + drafted) for stream, drafted in zip(streams, drafts, strict=True)]
        total_s = 0.0
        whole = sum(count for _, count in rows)
        for size in [len(slots) * each for slots, each in step_parts(rows)] if self.parted else [whole]:
            seconds = self.cost.predict(size)
            if seconds is None:
                return None
            total_s += seconds
        return total_s


def _promising(streams: Sequence[Stream]) -> bool:
    even = all(stream.room >= TRIAL for stream in streams)
    return even and sum(_yields(TRIAL, streams)) >= PROMISING * len(streams)


def _yields(k: int, streams: Iterable[Stream]) -> list[float]:
    return [stream.yields(min(k, stream.room)) for stream in streams]
