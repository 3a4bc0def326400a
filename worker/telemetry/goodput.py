"""Goodput: the share of responses that meet the latency targets of their surface.

Zhong et al. 2024, "DistServe: disaggregating prefill and decoding for goodput-optimized large language model serving".

The burn rate is how fast the error budget of an objective is spent, over several windows at once. A rate of 1 spends
the budget exactly; with an objective of 95 %, one turn in twenty may be late. The windows and the rates at which to
page somebody are those of "The Site Reliability Workbook" (Beyer et al. 2018, chapter 5): a long window shows that the
problem matters, a short one that it is still happening.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from worker.runs.record import APART, FAILED

if TYPE_CHECKING:  # the configuration needs the targets, and `--help` nothing of agents
    from agents.definition import Surface

USUAL = "chat=500/100,embedded=500/100,voice=300/50"  # users read about ten tokens a second
OBJECTIVE = 0.95  # the share of turns that should meet their targets
_TARGET = re.compile(r"([a-z][a-z0-9_-]{0,31})=(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Target:
    """Upper limits in milliseconds: TTFT, TPOT (time per output token after the first), and TTFA (time to the first
    token of the answer itself, behind reasoning and calls)."""

    ttft_ms: float
    tpot_ms: float
    ttfa_ms: float = inf

    def __str__(self) -> str:
        told = [("first token", self.ttft_ms), ("first answer", self.ttfa_ms), ("pace", self.tpot_ms)]
        return ", ".join(f"{name} {limit:g} ms" for name, limit in told if limit != inf)

    def met(self, ttft_ms: float | None, tpot_ms: float | None, ttfa_ms: float | None) -> bool:
        """A response of one token has no TPOT, and one that only calls a tool no TTFA; one without any token is
        late."""
        begins = ttft_ms is not None and ttft_ms <= self.ttft_ms and (ttfa_ms is None or ttfa_ms <= self.ttfa_ms)
        return begins and (tpot_ms is None or tpot_ms <= self.tpot_ms)


NO_TARGET = Target(inf, inf)


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of the surfaces that have one."""

    by_surface: Mapping[str, Target] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Targets:
        """Parse `chat=500/100,voice=300/50`. Raises ValueError with the mistake as its message."""
        found: dict[str, Target] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = _TARGET.fullmatch(part)
            if match is None:
                raise ValueError(f"must look like chat=500/100, not {part!r}")
            surface, ttft_ms, tpot_ms = match.groups()
            if surface in found:
                raise ValueError(f"names {surface} twice")
            found[surface] = Target(float(ttft_ms), float(tpot_ms))
        return cls(found)

    def with_those_of(self, surfaces: Mapping[str, Surface]) -> Targets:
        """These targets, overridden by those of a file."""
        own = {}
        for name, each in surfaces.items():
            usual = self.by_surface.get(name, NO_TARGET)
            target = Target(
                each.first_token_ms or usual.ttft_ms,
                each.pace_ms or usual.tpot_ms,
                each.first_answer_ms or usual.ttfa_ms,
            )
            if target != NO_TARGET:
                own[name] = target
        return Targets({**self.by_surface, **own})

    def met(
        self, surface: str, status: str, ttft_ms: float | None, tpot_ms: float | None, ttfa_ms: float | None
    ) -> bool | None:
        """Whether a turn met its target. None for turns that are not judged: those of surfaces without a target,
        cancelled ones, and invalid requests that no server could answer.
        """
        target = self.by_surface.get(surface)
        if target is None or status in APART:
            return None
        return status not in FAILED and target.met(ttft_ms, tpot_ms, ttfa_ms)


SLICE_S = 60.0  # counts are aggregated per minute: 360 slices for a surface
WINDOWS_S: Mapping[str, float] = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "6h": 21_600.0}
SURFACES_MAX = 64  # a configuration has fewer


class BurnRate:
    """Late and total turns by surface. `now_s` is monotonic."""

    def __init__(self, objective: float) -> None:
        """`objective`: the share of turns that must meet their targets, below 1."""
        self._allowed = 1.0 - objective
        self._slices: dict[str, deque[list[float]]] = {}  # [begin, turns, late turns], oldest first

    def add(self, surface: str, in_time: bool, now_s: float) -> None:
        if surface not in self._slices and len(self._slices) >= SURFACES_MAX:
            return
        slices = self._slices.setdefault(surface, deque())
        if not slices or now_s - slices[-1][0] >= SLICE_S:
            slices.append([now_s, 0, 0])
        slices[-1][1] += 1
        slices[-1][2] += not in_time
        while now_s - slices[0][0] > max(WINDOWS_S.values()):
            slices.popleft()

    def rates(self, now_s: float) -> Iterator[tuple[str, str, float]]:
        """(surface, window, rate); 0 without turns."""
        for surface, slices in list(self._slices.items()):
            for window, length_s in WINDOWS_S.items():
                counted = [each for each in list(slices) if now_s - each[0] <= length_s]
                turns, late = sum(each[1] for each in counted), sum(each[2] for each in counted)
                yield surface, window, late / turns / self._allowed if turns else 0.0
