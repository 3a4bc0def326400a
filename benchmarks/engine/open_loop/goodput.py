"""Which turns were on time, and the resulting goodput. Pure.

Goodput as in DistServe (arXiv 2401.09670): only turns that meet their targets count. Every turn of the trace has an
outcome.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from benchmarks.engine.measures import percentile


class Ending(StrEnum):
    COMPLETE = "complete"  # all of its tokens arrived
    REFUSED = "refused"  # the server replied that it is too busy
    FAILED = "failed"  # an error, or fewer tokens than requested
    CUT_OFF = "cut off"  # still running when the run ended
    UNASKED = "unasked"  # never sent: an earlier turn of its session did not complete


@dataclass(frozen=True, slots=True)
class Targets:
    ttft_s: float
    tpot_s: float

    def __str__(self) -> str:
        """As `--targets` of the worker has them: milliseconds to the first token / per token after it."""
        return f"{self.ttft_s * 1e3:g}/{self.tpot_s * 1e3:g}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one turn, in seconds of one clock. `due_s`: when it should have been sent, even if it was late."""

    ending: Ending
    due_s: float = 0.0
    first_s: float | None = None  # arrival of its first piece of text
    last_s: float | None = None
    tokens: int = 0

    @property
    def ttft_s(self) -> float:
        return math.inf if self.first_s is None else self.first_s - self.due_s

    @property
    def tpot_s(self) -> float:
        """Mean seconds per token after the first; None if there are none."""
        if self.first_s is None or self.last_s is None:
            return math.inf
        return (self.last_s - self.first_s) / max(1, self.tokens - 1)

    def in_time(self, targets: Targets) -> bool:
        complete = self.ending is Ending.COMPLETE
        return complete and self.ttft_s <= targets.ttft_s and self.tpot_s <= targets.tpot_s


@dataclass(frozen=True, slots=True)
class Goodput:
    """The judgement of a run. Percentiles are over the turns that were sent; None where the percentile would fall on a
    turn that never got that far."""

    turns: int
    in_time: int
    late: int
    refused: int
    failed: int
    cut_off: int
    unasked: int
    good_turns_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None
    tpot_p95_ms: float | None

    @property
    def share(self) -> float:
        """The share of all turns that were on time."""
        return self.in_time / self.turns if self.turns else 0.0

    def numbers(self) -> dict[str, float | None]:
        return asdict(self) | {"share": self.share}


def judge(outcomes: Sequence[Outcome], targets: Targets, window_s: float) -> Goodput:
    """Judge a run. `window_s`: the period in which the sessions of these turns started."""
    ended = {ending: sum(outcome.ending is ending for outcome in outcomes) for ending in Ending}
    in_time = sum(outcome.in_time(targets) for outcome in outcomes)
    asked = [outcome for outcome in outcomes if outcome.ending is not Ending.UNASKED]
    ttft_s, tpot_s = [outcome.ttft_s for outcome in asked], [outcome.tpot_s for outcome in asked]
    return Goodput(
        turns=len(outcomes),
        in_time=in_time,
        late=ended[Ending.COMPLETE] - in_time,
        refused=ended[Ending.REFUSED],
        failed=ended[Ending.FAILED],
        cut_off=ended[Ending.CUT_OFF],
        unasked=ended[Ending.UNASKED],
        good_turns_per_s=in_time / window_s,
        ttft_p50_ms=_percentile_ms(ttft_s, 50),
        ttft_p95_ms=_percentile_ms(ttft_s, 95),
        tpot_p50_ms=_percentile_ms(tpot_s, 50),
        tpot_p95_ms=_percentile_ms(tpot_s, 95),
    )


def _percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    value = percentile(seconds, percent) * 1e3 if seconds else math.inf
    return value if math.isfinite(value) else None
