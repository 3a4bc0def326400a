"""The measurements: one reply, a run of replies, rounds of runs, and two sides compared. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

THROUGHPUT = "tokens/s"
CHARACTERS, CHARACTER_MS = "characters/s", "ms/character p50"
TTFT, TTFT_P95, TPOT, GAP_P95 = "TTFT p50", "TTFT p95", "TPOT p50", "gap p95"  # milliseconds


@dataclass(frozen=True, slots=True)
class Reply:
    """When a reply was requested and when each piece of its text arrived, in seconds of one clock. One piece is one
    token."""

    asked_s: float
    pieces_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        return self.pieces_s[0] - self.asked_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per token after the first; None if there is only one token."""
        later = len(self.pieces_s) - 1
        return (self.pieces_s[-1] - self.pieces_s[0]) / later if later else None

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in zip(self.pieces_s, self.pieces_s[1:], strict=False)]

    def gaps_within(self, start_s: float, end_s: float) -> list[float]:
        """The gaps that overlap this span of time."""
        pairs = zip(self.pieces_s, self.pieces_s[1:], strict=False)
        return [after - before for before, after in pairs if after > start_s and before < end_s]


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed (nearest rank). Raises ValueError if there
    are none."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def measure(replies: Sequence[Reply]) -> dict[str, float]:
    """The throughput from the first request to the last token, and the latencies of the replies."""
    wall_s = max(reply.pieces_s[-1] for reply in replies) - min(reply.asked_s for reply in replies)
    first = [reply.ttft_s * 1e3 for reply in replies]
    pace = [tpot * 1e3 for reply in replies if (tpot := reply.tpot_s) is not None]
    numbers = {
        THROUGHPUT: sum(len(reply.pieces_s) for reply in replies) / wall_s,
        TTFT: statistics.median(first),
        TTFT_P95: percentile(first, 95),
    }
    if pace:
        numbers[TPOT] = statistics.median(pace)
        numbers[GAP_P95] = percentile([gap * 1e3 for reply in replies for gap in reply.gaps_s], 95)
    return numbers


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each number over the rounds: a single disturbed round does not count."""
    return {name: statistics.median(numbers[name] for numbers in rounds) for name in rounds[0]}


def ratios(ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median over the rounds of our number divided by theirs in the same round: a busy machine slows both."""
    pairs = list(zip(ours, theirs, strict=True))
    return {name: statistics.median(our[name] / their[name] for our, their in pairs) for name in ours[0]}
