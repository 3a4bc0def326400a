"""How long a draft is worth making, decided anew for each step from what was measured. Pure.

A draft of k tokens is verified in one step of k + 1 rows. With acceptance p per token that step yields
(1 - p^(k+1)) / (1 - p) tokens (Leviathan et al., arXiv 2211.17192). Chosen is the k with the most tokens per second
over all streams of the step; 0 when every draft would lose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.cost import StepCost

LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)
# Looked at first, and again now and then while drafts lose: long enough to learn acceptance, short enough to be cheap.
TRIAL = 3
TRIALS_FIRST = 4
# Steps until the next trial. A trial costs a few steps' time, so each one that shows nothing new doubles the wait.
PATIENCE_MIN, PATIENCE_MAX = 100, 3200
REST_STEPS = 8  # while drafts lose, the question is not asked anew at every step: asking costs time too
TRIAL_READS = 8  # tokens that the drafter may have to read for a trial, for each that was generated: it reads fast
# Acceptance of a request that has shown nothing yet, and how many tokens' worth that belief weighs.
PRIOR, PRIOR_TOKENS = 0.7, 4.0
MEMORY = 0.95  # weight of the past at each verification: acceptance changes within an answer


@dataclass(slots=True)
class Acceptance:
    """How well the draft does for one request."""

    drafted: int = 0
    accepted: int = 0
    _hits: float = PRIOR * PRIOR_TOKENS
    _looks: float = PRIOR_TOKENS

    def observe(self, drafted: int, accepted: int) -> None:
        """A verification: the first `accepted` of `drafted` tokens were right, the next one, if any, was not."""
        self.drafted += drafted
        self.accepted += accepted
        self._hits = MEMORY * self._hits + accepted
        self._looks = MEMORY * self._looks + min(accepted + 1, drafted)

    @property
    def per_token(self) -> float:
        return min(0.99, self._hits / self._looks)


@dataclass(frozen=True, slots=True)
class Stream:
    """One candidate for a draft: how well drafts do for it, and how much the drafter has to read first."""

    acceptance: Acceptance
    generated: int
    missing: int


@dataclass(slots=True)
class DraftLength:
    """Chooses k, from `shortest` to `longest`; 0 is no draft. The costs are those of the model and of the drafter."""

    longest: int
    shortest: int = 0
    cost: StepCost = field(default_factory=StepCost)
    draft_cost: StepCost = field(default_factory=StepCost)
    by_position: Counter[int] = field(default_factory=Counter)  # accepted drafts by their place, 1 the first
    _trials: Counter[int] = field(default_factory=Counter)  # by number of streams
    _waited: int = 0
    _patience: int = PATIENCE_MIN
    _rest: int = 0

    def rests(self) -> bool:
        """Whether to go without a draft and without asking; each call is a step."""
        self._waited += 1
        self._rest -= 1
        return self._rest >= 0 or not self.longest

    def choose(self, streams: Sequence[Stream]) -> int:
        """Tokens to draft for each of these streams in the next step."""
        length = max(self.shortest, self._best(streams) if self.longest else 0)
        self._rest = 0 if length else REST_STEPS
        return length

    def verified(self, accepted: int) -> None:
        self.by_position.update(range(1, accepted + 1))

    def _best(self, streams: Sequence[Stream]) -> int:
        rates = {k: self._rate(k, streams) for k in (0, *LENGTHS) if k <= self.longest}
        if not rates[0]:  # what a step costs without a draft is not known yet
            return 0
        best = max(rates, key=lambda k: (rates[k], -k))
        if best and not self._pays(streams, 1 / rates[0] - 1 / rates[best]):
            return 0
        if best:
            self._waited, self._patience = 0, PATIENCE_MIN
        elif self._wants_trial(streams):
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
        """Whether reading what the drafter missed is worth it, if an answer goes on for as long as it has gone."""
        missing = sum(s.missing for s in streams)
        reading_s = self.draft_cost.predict(missing) or 0.0
        return sum(s.generated for s in streams) * saved_s >= reading_s or missing <= 2 * len(streams)

    def _rate(self, k: int, streams: Sequence[Stream]) -> float:
        """Tokens per second of a step with drafts of k tokens."""
        seconds = self.cost.predict(len(streams) * (k + 1))
        if seconds is None:
            return 0.0
        seconds += k * (self.draft_cost.predict(len(streams)) or 0.0)
        p = [s.acceptance.per_token for s in streams]
        return sum((1 - each ** (k + 1)) / (1 - each) for each in p) / seconds
