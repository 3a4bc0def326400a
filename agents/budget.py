"""Budgets of one turn and the prices of what it uses. Pure: the caller passes the time and the usage.

When a budget is spent, the model is told so and answers once more from what it has. The names of budgets are those of
TurnFinished.budget: steps, calls, wall_clock, tokens, cost, repeated_call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from agents.events import Usage
from agents.turn import Limits

WALL_CLOCK = "wall_clock"
# The same call with the same arguments may be repeated once, for fresh data; at the third the model loops.
IDENTICAL_CALLS_MAX = 2
# Reserved from the token budget for the last answer, at most a quarter of it.
ANSWER_TOKENS = 256
# For the answer after the wall clock has run out: a few sentences on what was found.
CONCLUSION_S = 10.0
PRICED_TOOLS_MAX = 256  # more than the server's own tools and those of a few tool servers

Price: TypeAlias = Annotated[float, Field(ge=0, le=1e6)]


class Prices(BaseModel):
    """Prices in units that the operator chooses, such as cents or credits; 0 unless set. Tokens are priced by the
    thousand.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    input: Price = 0.0  # uncached tokens of a prompt
    cached: Price = 0.0  # cached tokens of a prompt
    output: Price = 0.0  # generated tokens
    tools: Annotated[dict[str, Price], Field(max_length=PRICED_TOOLS_MAX)] = Field(default_factory=dict)  # one call
    engine_second: Price = 0.0  # of a step's time, by its share of the batch rows
    tool_seconds: Annotated[dict[str, Price], Field(max_length=PRICED_TOOLS_MAX)] = Field(default_factory=dict)

    def of_step(self, usage: Usage, engine_second: float | None = None) -> float:
        """`engine_second` is the price of the model's own engine, if it has one."""
        computed = usage.input_tokens - usage.cached_tokens
        thousands = computed * self.input + usage.cached_tokens * self.cached + usage.output_tokens * self.output
        second = self.engine_second if engine_second is None else engine_second
        return thousands / 1000 + (usage.spent.engine_ns + usage.spent.sight_ns) / 1e9 * second

    def of_time(self, tool: str, seconds: float) -> float:
        """The cost of a call's time, in addition to its own price."""
        return self.tool_seconds.get(tool, 0.0) * seconds

    def of_call(self, tool: str) -> float:
        return self.tools.get(tool, 0.0)


FREE = Prices()


@dataclass(slots=True)
class Budget:
    limits: Limits
    started_ns: int
    prices: Prices = FREE
    steps: int = 0
    calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    tool_s: float = 0.0
    circling: bool = False
    _seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def told(self, now_ns: int) -> dict[str, Any]:
        """What is spent, as JSON."""
        return {
            "elapsed_ms": (now_ns - self.started_ns) / 1e6,
            "steps": self.steps,
            "calls": self.calls,
            "tokens": self.tokens,
            "cost": self.cost,
            "tool_s": self.tool_s,
            "circling": self.circling,
            "seen": [[name, arguments, count] for (name, arguments), count in self._seen.items()],
        }

    def spend(self, told: Mapping[str, Any], now_ns: int) -> None:
        """Restore what a turn had spent where it started. Raises KeyError, TypeError and ValueError."""
        self.started_ns = now_ns - int(told["elapsed_ms"] * 1e6)
        self.steps, self.calls, self.tokens = told["steps"], told["calls"], told["tokens"]
        self.cost, self.tool_s, self.circling = told["cost"], told["tool_s"], told["circling"]
        self._seen = Counter({(name, arguments): count for name, arguments, count in told["seen"]})

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

    def add_call(self, name: str, seconds: float) -> None:
        """Account for the time of a call that has ended."""
        self.tool_s += seconds
        self.cost += self.prices.of_time(name, seconds)

    def add_step(self, usage: Usage, engine_second: float | None = None) -> None:
        """Account for a step that has ended."""
        self.steps += 1
        self.tokens += usage.output_tokens
        self.cost += self.prices.of_step(usage, engine_second)

    def add_unused(self, usage: Usage, engine_second: float | None = None) -> None:
        """Account for what a model computed of a step that another one completed."""
        self.cost += self.prices.of_step(usage, engine_second)

    def spent(self, now_ns: int) -> str | None:
        """The name of the spent budget, after which the next step must be the answer; None while none is spent."""
        if self.circling:
            return "repeated_call"
        if self.calls >= self.limits.calls:
            return "calls"
        if self.steps + 1 >= self.limits.steps:
            return "steps"
        if self.remaining_s(now_ns) <= 0:
            return WALL_CLOCK
        if self.limits.tokens - self.tokens <= min(ANSWER_TOKENS, self.limits.tokens // 4):
            return "tokens"
        if self.cost >= self.limits.cost:
            return "cost"
        return None

    def deadline_ns(self, *, concluding: bool) -> int | None:
        """When a step is stopped, on the monotonic clock; None: never. The last answer gets at least CONCLUSION_S
        beyond the wall clock."""
        seconds = self.limits.answer_s
        if concluding:
            seconds = max(seconds, self.limits.wall_clock_s + CONCLUSION_S)
        return self.started_ns + int(seconds * 1e9) if isfinite(seconds) else None

    def remaining_s(self, now_ns: int) -> float:
        return self.limits.wall_clock_s - (now_ns - self.started_ns) / 1e9

    @property
    def remaining_tokens(self) -> int:
        """Those that the answer may still have."""
        return self.limits.answer_tokens - self.tokens


def canonical(arguments: str) -> str:
    """Equal for equal JSON, regardless of spacing and order of keys. Text that is not JSON is returned as it is."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
