"""Budgets of one turn, without clock and without I/O: what was used goes in, decisions come out.

When a budget is spent the model is told and answers once more from what it has. Names of budgets are those of
TurnFinished.budget: steps, calls, wall_clock, tokens, cost, repeated_call.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from agents.events import Usage
from agents.prices import FREE, Prices
from agents.turn import Limits

WALL_CLOCK = "wall_clock"
# The same call with the same arguments twice may be a fresh look; a third time the model is going in circles.
IDENTICAL_CALLS_MAX = 2
# Kept back from the token budget for the last answer, at most a quarter of it.
ANSWER_TOKENS = 256
# For the answer after the wall clock has run out: it says what was found, in a few sentences.
CONCLUSION_S = 10.0


@dataclass(slots=True)
class Budget:
    limits: Limits
    started_ns: int
    prices: Prices = FREE
    steps: int = 0
    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    circling: bool = False
    _seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def admit(self, name: str, arguments: str) -> bool:
        """Whether one more tool call may run; counts it if so."""
        same = (name, canonical(arguments))
        self._seen[same] += 1
        if self._seen[same] > IDENTICAL_CALLS_MAX:
            self.circling = True
        if self.circling or self.calls >= self.limits.calls or self.cost >= self.limits.cost:
            return False
        self.calls += 1
        self.cost += self.prices.of_call(name)
        return True

    def add_step(self, usage: Usage) -> None:
        """Account for a step that has ended."""
        self.steps += 1
        self.tokens += usage.output_tokens
        self.cost += self.prices.of_step(usage)

    def spent(self, now_ns: int) -> str | None:
        """The budget that forbids more tools, so that the next step must be the answer; None while all is well."""
        if self.circling:
            return "repeated_call"
        if self.calls >= self.limits.calls:
            return "calls"
        if self.steps + 1 >= self.limits.steps:
            return "steps"
        if self.remaining_s(now_ns) <= 0:
            return WALL_CLOCK
        if self.remaining_tokens <= min(ANSWER_TOKENS, self.limits.tokens // 4):
            return "tokens"
        if self.cost >= self.limits.cost:
            return "cost"
        return None

    def deadline_ns(self, *, concluding: bool) -> int:
        """When a step is stopped, on the monotonic clock. The last answer gets a little more time than there is."""
        seconds = self.limits.wall_clock_s + (CONCLUSION_S if concluding else 0.0)
        return self.started_ns + int(seconds * 1e9)

    def remaining_s(self, now_ns: int) -> float:
        return self.limits.wall_clock_s - (now_ns - self.started_ns) / 1e9

    @property
    def remaining_tokens(self) -> int:
        return self.limits.tokens - self.tokens


def canonical(arguments: str) -> str:
    """Equal for equal JSON, whatever its spacing and order of keys."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
