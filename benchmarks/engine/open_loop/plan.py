"""How a rate is measured: duration, number of rounds, targets. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.engine.open_loop.goodput import Targets
from benchmarks.engine.open_loop.sessions import ANSWER_TOKENS, THINK_S, TURNS_MAX, Trace, trace

CONTEXT = 2048  # holds the longest conversation that a trace can have
LEAD_S = 10.0  # the duration of a typical session, after which the load is steady
WINDOW_S_MIN, WINDOW_S_MAX = 20.0, 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How a rate is measured."""

    targets: Targets
    share: float
    rounds: int
    sessions: int  # judged per round, on average
    seed: str

    def trace(self, rate: float, number: int) -> Trace:
        """The trace of a round: the same for both sides."""
        window_s = self.window_s(rate)
        return trace(f"{self.seed}/{number}", rate, lead_s=LEAD_S, window_s=window_s, tail_s=self.cut_off_s)

    def window_s(self, rate: float) -> float:
        return min(WINDOW_S_MAX, max(WINDOW_S_MIN, self.sessions / rate))

    @property
    def cut_off_s(self) -> float:
        """The duration of the longest session if all of its turns are just on time."""
        turn_s = self.targets.ttft_s + ANSWER_TOKENS.high * self.targets.tpot_s
        return TURNS_MAX * turn_s + (TURNS_MAX - 1) * THINK_S.high
